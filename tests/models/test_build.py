"""From a configuration to modules: options, positions, numbers of parameters."""

import inspect

import pytest

from multistable import LRUConfig, ModelConfig, PositionConfig, build_model
from multistable.layers import LAYERS
from multistable.models.build import build_layer
from small_models import make_model


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_gets_the_options_it_has(name):
    """A layer that has an option of the configuration but does not get it would train with its default."""
    ring = LRUConfig(r_min=0.25, r_max=0.5, theta_max=0.75)
    position = PositionConfig(dim=6, T=10)
    sizes = {"d_input": 1, "d_output": 1, "d_model": 8, "d_state": 4}
    config = ModelConfig((name,), **sizes, alpha_surr=0.5, beta_bias=2.0, lru=ring, position=position)
    layer = build_layer(name, config)
    parts = [layer, *layer.children()] if name != "hybrid" else [layer, layer.bmru[0], layer.lru[0]]
    options = {"alpha_surr": 0.5, "beta_bias": 2.0, "r_min": 0.25, "r_max": 0.5, "theta_max": 0.75, "position_size": 6}
    for option, value in options.items():
        values = [getattr(part, option) for part in parts if hasattr(part, option)]
        assert values == [value] * len(values), option
        assert bool(values) == (option in inspect.signature(LAYERS[name]).parameters), option
    assert layer.input_size == 8 + (6 if layer.takes_position else 0)


def test_positions_go_to_the_layers_that_take_them():
    model = make_model(cells=("bmru", "lru", "hybrid", "gru"))
    assert [block.cell.input_size for block in model.blocks] == [12, 8, 12, 8]
    hybrid = model.blocks[2].cell
    assert (hybrid.bmru[0].input_size, hybrid.lru[0].input_size) == (12, 8)
    assert [block.cell.input_size for block in make_model(position=None, cells=("bmru", "hybrid")).blocks] == [8, 8]


def test_positions_everywhere_go_to_every_layer():
    position = PositionConfig(dim=4, T=11, everywhere=True)
    model = make_model(cells=("bmru", "lru", "hybrid"), position=position)
    assert [block.cell.input_size for block in model.blocks] == [12, 12, 12]
    hybrid = model.blocks[2].cell
    assert (hybrid.bmru[0].input_size, hybrid.lru[0].input_size) == (12, 12)


@pytest.mark.parametrize(
    ("cell", "block"),
    [
        ("lru", 2 * 512 * 256 + 3 * 256 + 256),  # in_proj, out_proj, nu, theta, gamma, skip
        ("bmru", 512 * (256 + 16) + 512 + 256 + 256 * 256),  # projection, bias, alpha, out_proj
        ("hybrid", 256 * 272 + 256 + 128 + 128 * 256 + 2 * 256 * 256 + 3 * 128 + 256),
        ("gru", 3 * 256 * 512 + 2 * 768 + 256 * 256),
    ],
)
def test_parameter_count(cell, block):
    H = 256
    config = ModelConfig((cell, cell), d_input=2, d_output=1, position=PositionConfig(T=784))
    count = sum(parameter.numel() for parameter in build_model(config).parameters())
    encoder, norm, glu, head = 2 * H + H, 2 * H, H * 2 * H + 2 * H, H * H + H + H + 1
    assert count == encoder + 2 * (norm + block + glu) + head

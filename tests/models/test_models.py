"""Models: streaming, pooling, positions, padding, parameters, precision, compilation."""

import dataclasses
import inspect
import json
import math

import pytest
import torch

from layer_names import NAMES
from multistable import ModelConfig, SequenceModel, build_model
from multistable.layers import LAYERS
from multistable.models import LRUConfig, PositionConfig
from multistable.models.block import Timesteps
from multistable.models.build import build_cell
from multistable.models.norm import BatchNorm
from multistable.models.position import PositionEncoding, count_steps
from multistable.models.sequence import Head

B, T = 3, 11
BASE = ModelConfig(
    cells=("lru", "bmru"),
    d_input=2,
    d_output=5,
    d_model=8,
    d_state=6,
    pooling="none",
    position=PositionConfig(dim=4, T=T),
)


def make(dtype: torch.dtype = torch.float64, **changes) -> SequenceModel:
    """A model whose batch norm has statistics of its own, in evaluation mode."""
    torch.manual_seed(0)
    model = build_model(dataclasses.replace(BASE, **changes)).to(dtype)
    model(torch.randn(16, T, 2, dtype=dtype))
    return model.eval()


def random_input(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(B, T, 2, dtype=dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def steps(model: SequenceModel, x: torch.Tensor) -> tuple[torch.Tensor, object]:
    state, outputs = None, []
    for t in range(x.shape[1]):
        y, state = model.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("cell", NAMES)
def test_steps_equal_forward(cell):
    model = make(cells=(cell, cell))
    x = random_input()
    y, state = model(x)
    stepped, last = steps(model, x)
    assert_close(stepped, y)
    assert torch.equal(last.position, state.position)
    for a, b in zip(last.cells, state.cells, strict=True):
        assert_close(a, b)


def test_steps_in_float32_flip_few_gates():
    """Matrix products of other shapes round differently, so a gate may flip: reported, and rare."""
    model = make(torch.float32, cells=("bmru", "bmru"), d_model=64, d_state=64)
    torch.manual_seed(2)
    x = torch.randn(8, 200, 2)
    states, state = [], None
    for t in range(x.shape[1]):
        _, state = model.step(x[:, t], state)
        states.append(torch.cat(state.cells, dim=-1))
    whole = []
    for block in model.blocks:
        block.cell.register_forward_hook(lambda cell, inputs, result: whole.append(result[0]))
    model(x)
    flipped = (torch.cat(whole, dim=-1) != torch.cat(states).transpose(0, 1)).double().mean().item()
    print(f"share of states that differ between step and forward in float32: {flipped:.2e}")
    assert flipped < 0.01


@pytest.mark.parametrize("pooling", ["none", "last"])
@pytest.mark.parametrize("cell", NAMES)
def test_chunks_equal_whole(cell, pooling):
    model = make(cells=(cell, "bmru", cell), pooling=pooling)
    x = random_input()
    y, state = model(x)
    outputs, carried = [], None
    for chunk in x.split([1, 4, 6], dim=1):
        output, carried = model(chunk, carried)
        carried = carried.detach().to("cpu")
        outputs.append(output)
    assert_close(torch.cat(outputs, dim=1) if pooling == "none" else outputs[-1], y)
    assert torch.equal(carried.position, torch.full((B,), T))
    for a, b in zip(carried.cells, state.cells, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("cell", ["bmru", "hybrid", "lstm"])
@pytest.mark.parametrize("lengths", [None, torch.tensor([T, 4, 1])], ids=["whole", "padded"])
def test_poolings_agree(cell, bidirectional, lengths):
    """``last`` and ``mean`` are the last and the mean of what ``none`` returns, though computed in other order."""
    model = make(cells=("lru", cell), bidirectional=bidirectional, pooling="none")
    x = random_input()
    every, _ = model(x, lengths=lengths)
    counts = torch.full((B,), T) if lengths is None else lengths
    expected = {
        "last": torch.stack([every[b, n - 1] for b, n in enumerate(counts.tolist())]),
        "mean": torch.stack([every[b, :n].mean(dim=0) for b, n in enumerate(counts.tolist())]),
    }
    for pooling, value in expected.items():
        other = build_model(dataclasses.replace(model.config, pooling=pooling)).double().eval()
        other.load_state_dict(model.state_dict())
        y, _ = other(x, lengths=lengths)
        assert_close(y, value)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_sequence_of_padding_disturbs_no_other(pooling, bidirectional):
    model, x = make(pooling=pooling, bidirectional=bidirectional), random_input()
    y, _ = model(x, lengths=torch.tensor([T, 0, 4]))
    expected, _ = model(x, lengths=torch.tensor([T, 1, 4]))
    assert_close(y[[0, 2]], expected[[0, 2]])
    assert y.isfinite().all()


def test_a_mean_over_valid_steps_does_not_overflow():
    """In float16 the sum of 1,000 steps of 100 would, their mean does not."""
    head = Head(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)).half()
    for layer in (head.fc1, head.fc2):
        torch.nn.init.ones_(layer.weight), torch.nn.init.zeros_(layer.bias)
    x = torch.full((1, 1000, 1), 100.0).half()
    assert head.mean(x, torch.ones_like(x, dtype=torch.bool)).tolist() == head.mean(x, None).tolist() == [[100.0]]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("cell", ["bmru", "lru", "gru"])
def test_padding_changes_nothing(cell, mode):
    """Neither what padding holds nor how much of it there is, in outputs, statistics and gradients."""
    lengths, x = torch.tensor([T, 4, 1]), random_input()
    padding = torch.arange(T) >= lengths[:, None]
    results = []
    for extra, value in ((0, math.nan), (5, 1e6)):
        model = make(cells=(cell, cell), bidirectional=True).train(mode == "train")
        padded = torch.cat([x.masked_fill(padding[..., None], value), torch.full((B, extra, 2), value)], dim=1)
        y, state = model(padded, lengths=lengths)
        assert (y[:, T:] == 0).all()
        y.square().sum().backward()
        grads = [parameter.grad for parameter in model.parameters()]
        buffers = [buffer for _, buffer in model.named_buffers()]
        results.append([y[:, :T], *state.cells, state.position, *buffers, *grads])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_reset_equals_separate_sequences():
    model, x = make(bidirectional=True, cells=("hybrid", "bmru")), random_input()
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, 4] = True
    y, state = model(x, reset=reset)
    first, _ = model(x[:, :4])
    second, last = model(x[:, 4:])
    assert_close(y, torch.cat([first, second], dim=1))
    assert torch.equal(state.position, last.position)


def test_counts():
    device = torch.device("cpu")
    assert count_steps(None, 3, None, device).tolist() == [[0, 1, 2]]
    assert count_steps(torch.tensor([0, 7]), 3, None, device).tolist() == [[0, 1, 2], [7, 8, 9]]
    reset = torch.tensor([[False, True, False], [False, False, False]])
    assert count_steps(torch.tensor([5, 7]), 3, reset, device).tolist() == [[5, 0, 1], [7, 8, 9]]
    _, state = make()(random_input(), lengths=torch.tensor([T, 4, 0]))
    assert state.position.tolist() == [T, 4, 0]


def test_position_encoding():
    encoding = PositionEncoding(16, 2.5, 2 * 784, 4.0)
    wavelengths = encoding.wavelengths()
    assert wavelengths[0].item() == pytest.approx(2.5)
    assert wavelengths[-1].item() == pytest.approx(1568)
    ratios = wavelengths[1:] / wavelengths[:-1]
    assert torch.allclose(ratios, ratios[0])
    code = encoding(torch.tensor([0, 3, 10**9]), torch.float64)
    for row, t in zip(code, (0, 3, 10**9), strict=True):
        phase = torch.tensor([2 * math.pi * math.fmod(t, w) / w for w in wavelengths.tolist()], dtype=torch.float64)
        assert torch.allclose(row, 4 * torch.cat([phase.sin(), phase.cos()]), atol=1e-5)
    assert PositionConfig(T=784).longest_wavelength == 1568


def test_positions_go_to_the_cells_that_take_them():
    model = make(cells=("bmru", "lru", "hybrid", "gru"))
    assert [block.cell.input_size for block in model.blocks] == [12, 8, 12, 8]
    hybrid = model.blocks[2].cell
    assert (hybrid.bmru[0].input_size, hybrid.lru[0].input_size) == (12, 8)
    assert [block.cell.input_size for block in make(position=None, cells=("bmru", "hybrid")).blocks] == [8, 8]


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


def test_bmru_parameters():
    model = make(cells=("bmru", "lru", "hybrid"))
    found = {id(parameter) for parameter in model.bmru_parameters()}
    names = [name for name, parameter in model.named_parameters() if id(parameter) in found]
    assert names == [
        "blocks.0.cell.weight_ih_l0",
        "blocks.0.cell.bias_ih_l0",
        "blocks.0.cell.alpha_l0",
        "blocks.0.out_proj.bmru",
        "blocks.2.cell.bmru.0.weight_ih_l0",
        "blocks.2.cell.bmru.0.bias_ih_l0",
        "blocks.2.cell.bmru.0.alpha_l0",
        "blocks.2.out_proj.bmru",
    ]
    assert len(model.bmru_parameters()) == len(found)


def test_block_is_its_equation():
    """x + GLU(out_proj(cell(norm(x), position)) + skip * norm(x)), each direction and part with its own matrix."""
    block = make(cells=("hybrid",), bidirectional=True).blocks[0]
    torch.manual_seed(3)
    x, position = torch.randn(B, T, 8, dtype=torch.float64), torch.randn(1, T, 4, dtype=torch.float64)
    y, _ = block(x, None, Timesteps(None, None, None, position), False)
    norm = block.norm
    u = (x - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    features, _ = block.cell(torch.cat([u, position.expand(B, T, 4)], dim=-1))
    bmru, lru = block.out_proj.bmru.chunk(2, dim=1), block.out_proj.lru.chunk(2, dim=1)
    out = block.skip * u
    for piece, weight in zip(features.split([3, 6, 3, 6], dim=-1), (bmru[0], lru[0], bmru[1], lru[1]), strict=True):
        out = out + piece @ weight.T
    a, b = block.glu(out).chunk(2, dim=-1)
    assert_close(y, x + a * torch.sigmoid(b))


def test_a_batch_without_a_valid_step_leaves_the_statistics():
    norm = BatchNorm(3)
    norm(torch.randn(2, 5, 3) + 4)
    before = norm.running_mean.clone(), norm.running_var.clone()
    norm(torch.randn(2, 5, 3), torch.zeros(2, 5, 1, dtype=torch.bool))
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])


def test_batch_norm_is_torchs_on_valid_steps():
    torch.manual_seed(0)
    x, lengths = torch.randn(4, 9, 6) * 3 + 1, torch.tensor([9, 2, 5, 1])
    valid = (torch.arange(9) < lengths[:, None])[..., None]
    ours, theirs = BatchNorm(6), torch.nn.BatchNorm1d(6)
    for _ in range(3):
        y, expected = ours(x, valid), theirs(x[valid[..., 0]])
        torch.testing.assert_close(y[valid[..., 0]], expected)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).view(x.shape))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view(x.shape))


@pytest.mark.parametrize("cell", ["bmru", "lru", "hybrid"])
def test_training_in_bfloat16(cell):
    """Tell whether the first input was -2 or 2: the loss falls from log 2 to less than a tenth of it."""
    torch.manual_seed(0)
    model = build_model(ModelConfig((cell,), d_input=1, d_output=1, d_model=16, d_state=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(80):
        x, target = 0.1 * torch.randn(64, 10, 1), torch.randint(2, (64,)).float()
        x[:, 0, 0] = 4 * target - 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, state = model(x)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(y.float()[:, 0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert state.cells[0].dtype == torch.bfloat16
    assert loss.item() < 0.05
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("cell", ["bmru", "lru", "hybrid"])
def test_compiles_as_one_graph(cell):
    """Traced forwards and backwards, without the code generation, which takes a minute on a CPU."""
    torch._dynamo.reset()
    model = make(cells=(cell, cell), pooling="last").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = random_input()
    results = []
    for run in (model, compiled):
        model.load_state_dict(make(cells=(cell, cell), pooling="last").state_dict())
        model.zero_grad()
        y, state = run(x)
        y.square().sum().backward()
        results.append([y, *state.cells, state.position, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_exports_with_dynamic_batch_and_length():
    """The sinusoids are an operator in the exported program, and follow its length."""
    model = make(cells=("bmru", "hybrid"))
    sizes = {0: torch.export.Dim("B", min=2, max=64), 1: torch.export.Dim("T", min=2, max=512)}
    program = torch.export.export(model, (random_input(),), dynamic_shapes=(sizes,))
    assert torch.ops.multistable.sinusoids.default in {node.target for node in program.graph.nodes}
    for B, T in ((3, 11), (5, 33)):
        x = torch.randn(B, T, 2, dtype=torch.float64)
        assert_close(program.module()(x)[0], model(x)[0])


def test_sinusoids_are_a_sound_operator():
    for counts in (torch.arange(12).view(3, 4), torch.arange(4).expand(3, 4), torch.zeros(2, 0, dtype=torch.int64)):
        torch.library.opcheck(torch.ops.multistable.sinusoids.default, (counts, 6, 2.5, 40.0, 4.0))


def test_dropout_only_in_training():
    model, x = make(dropout=0.5), random_input()
    assert torch.equal(model(x)[0], model(x)[0])
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])
    assert torch.equal(model.step(x[:, 0])[0], model.step(x[:, 0])[0])


def test_bad_input_is_named():
    model, x = make(), random_input()
    with pytest.raises(ValueError, match=r"x must have shape \[B, T, 2\], got \[3, 11, 1\]"):
        model(x[..., :1])
    with pytest.raises(TypeError, match=r"x must have the dtype of the weights, torch.float\d\d, got torch.float16"):
        model(x.half())
    with pytest.raises(TypeError, match=r"x must be floating point, got torch.int64"):
        model(x.long())
    with pytest.raises(ValueError, match=r"x must be on cpu like the weights, got meta"):
        model(x.to("meta"))
    with pytest.raises(ValueError, match=r"x must have shape \[B, 2\], got \[3, 11, 2\]"):
        model.step(x)
    both = make(bidirectional=True)
    with pytest.raises(ValueError, match="state must be None for a bidirectional model"):
        both(x, both(x)[1])
    with pytest.raises(RuntimeError, match="step needs a unidirectional"):
        both.step(x[:, 0])


def test_a_state_of_another_model_or_batch_is_named():
    """One of more blocks would be taken for that of the first ones."""
    model, x = make(cells=("bmru", "lru")), random_input()
    state = model(x)[1]
    for call in (lambda state: model(x, state), lambda state: model.step(x[:, 0], state)):
        with pytest.raises(TypeError, match="state must be a ModelState, as a call returns it, got Tensor"):
            call(state.cells[0])
        with pytest.raises(ValueError, match="state must be of 2 blocks, got one of 3"):
            call(state._replace(cells=(*state.cells, state.cells[0])))
        with pytest.raises(ValueError, match="state must be of 2 blocks, got one of 1"):
            call(state._replace(cells=state.cells[:1]))
        with pytest.raises(ValueError, match=r"state must be of 3 sequences, got positions \[2\]"):
            call(state._replace(position=state.position[:2]))


@pytest.mark.parametrize("lengths", [None, [0, 0, 0]])
def test_of_no_timesteps_nothing_can_be_pooled(lengths):
    x, lengths = torch.zeros(3, 0, 2).double(), None if lengths is None else torch.tensor(lengths)
    assert make(pooling="none")(x, lengths=lengths)[0].shape[:2] == (3, 0)
    for pooling in ("last", "mean"):
        with pytest.raises(ValueError, match=rf"x must have .* for pooling '{pooling}', got \[3, 0, 2\]"):
            make(pooling=pooling)(x, lengths=lengths)


def test_config_survives_json():
    config = dataclasses.replace(BASE, lru=LRUConfig(r_min=0.5), dropout=0.1)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert ModelConfig.from_dict({"cells": ["bmru"], "d_input": 1, "d_output": 1}) == ModelConfig(("bmru",), 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": ["bmru", "xlstm"]}, "cells must be names out of bmru, lru"),
        ({"cells": "bmru"}, "cells must be a tuple of names, one per block, got the string 'bmru'"),
        ({"cells": []}, "cells must be names out of bmru, lru"),
        ({"d_model": 0}, "d_model must be a positive integer, got 0"),
        ({"pooling": "max"}, "pooling must be one of last, mean, none, got 'max'"),
        ({"dropout": 1.0}, "dropout must be a probability below 1"),
        ({"dropout": "much"}, "dropout must be a probability below 1, got 'much'"),
        ({"position": 16}, "position must be a PositionConfig or None, got 16"),
        ({"lru": 0.9}, "lru must be an LRUConfig, got 0.9"),
        ({"depth": 3}, "ModelConfig has no field depth"),
        ({"lru": {"r": 3}}, "LRUConfig has no field r;"),
        ({"position": {"dim": 3, "T": 9}}, "dim must be even"),
        ({"position": {}}, "PositionConfig needs T"),
        ({"position": {"T": 1}}, "shortest must lie between 0 and 2.0 steps, got 2.5"),
    ],
)
def test_bad_configs_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(BASE.to_dict() | changes)
    with pytest.raises(ValueError, match="ModelConfig needs cells, d_input"):
        ModelConfig.from_dict({"d_output": 1})


@pytest.mark.parametrize("name", LAYERS)
def test_every_cell_gets_the_options_it_takes(name):
    """Of those in the configuration: a cell that takes one and does not get it would train with its default."""
    ring = LRUConfig(r_min=0.25, r_max=0.5, theta_max=0.75)
    position = PositionConfig(dim=6, T=10)
    sizes = {"d_input": 1, "d_output": 1, "d_model": 8, "d_state": 4}
    config = ModelConfig((name,), **sizes, alpha_surr=0.5, beta_bias=2.0, lru=ring, position=position)
    cell = build_cell(name, config)
    parts = [cell, *cell.children()] if name != "hybrid" else [cell, cell.bmru[0], cell.lru[0]]
    offered = {"alpha_surr": 0.5, "beta_bias": 2.0, "r_min": 0.25, "r_max": 0.5, "theta_max": 0.75, "position_size": 6}
    for option, value in offered.items():
        found = [getattr(part, option) for part in parts if hasattr(part, option)]
        assert found == [value] * len(found), option
        assert bool(found) == (option in inspect.signature(LAYERS[name]).parameters), option
    assert cell.input_size == 8 + (6 if cell.takes_position else 0)

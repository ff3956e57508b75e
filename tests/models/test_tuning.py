"""A BMRU that reads positions starts with a timestep of its own for each unit."""

import math

import pytest
import torch
import torch.nn.functional as F

from multistable.models import ModelConfig, PositionConfig, build_model
from multistable.models.build import build_linear, spread

T, H, N = 64, 8, 16

POSITION = PositionConfig(T=T)


def make(cells=("bmru",), position=POSITION, **options):
    torch.manual_seed(0)
    return build_model(ModelConfig(cells, d_input=1, d_output=2, d_model=H, d_state=N, position=position, **options))


def own_steps(cell, suffix=""):
    """The timestep of each unit, read from the weights: the phase of the longest wavelength is unique within 2T."""
    codes = -getattr(cell, f"weight_ih_l0{suffix}")[cell.hidden_size :, -16:]
    phase = torch.atan2(codes[:, 7], codes[:, 15])
    return (phase * 2 * T / (2 * math.pi)).round().long()


def test_threshold_is_its_equation():
    model = make()
    cell, t = model.blocks[0].cell, torch.arange(T)
    x = torch.cat([torch.randn(T, H), model.position(t, torch.float32)], dim=-1)
    _, beta = F.linear(x, cell.weight_ih_l0, cell.bias_ih_l0).chunk(2, dim=-1)
    away = t[:, None, None] - own_steps(cell)[None, :, None]
    expected = POSITION.tuning * (1 - torch.cos(2 * math.pi * away / model.position.wavelengths())).sum(-1)
    torch.testing.assert_close(beta, expected.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("direction", [0, 1])
def test_each_unit_holds_the_input_of_its_own_timestep(direction):
    model = make(bidirectional=True)
    cell, suffix = model.blocks[0].cell, ("", "_reverse")[direction]
    u = torch.randn(5, T, H)
    x = torch.cat([u, model.position(torch.arange(T), torch.float32).expand(5, T, 16)], dim=-1)
    weight, bias = getattr(cell, f"weight_ih_l0{suffix}"), getattr(cell, f"bias_ih_l0{suffix}")
    candidates = F.linear(u, weight[:N, :H], bias[:N])
    expected = torch.stack([candidates[:, step, unit] for unit, step in enumerate(own_steps(cell, suffix))], dim=-1)
    assert torch.equal(cell(x)[1][direction], torch.where(expected >= 0, 1.0, -1.0))


def test_timesteps_are_spread_evenly_and_differ_between_directions():
    cell = make(bidirectional=True).blocks[0].cell
    forward, backward = own_steps(cell), own_steps(cell, "_reverse")
    for steps in (forward, backward):
        assert torch.equal(steps // (T // N), torch.arange(N))
    assert not torch.equal(forward, backward)


def test_own_timesteps_lie_within_the_sequence():
    """Float32 rounds the last of 2^23 - 1 + rand up in one of four draws: with this seed, in the second."""
    torch.manual_seed(0)
    assert {spread(2**23, 5).max().item() for _ in range(2)} == {4}


def test_own_timesteps_do_not_depend_on_the_default_dtype():
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            torch.manual_seed(0)
            found.append(spread(256, 784))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(*found)


@pytest.mark.parametrize("cells", [("bmru", "bmru"), ("hybrid",), ("bmru", "lru", "gru")])
def test_nothing_else_changes(cells):
    plain, tuned = (make(cells, PositionConfig(T=T, tuning=tuning)).state_dict() for tuning in (0.0, 8.0))
    changed = {name for name in plain if not torch.equal(plain[name], tuned[name])}
    parts = [".cell.", ".cell.bmru.0."]
    blocks = [(i, parts[cell == "hybrid"]) for i, cell in enumerate(cells) if cell in ("bmru", "hybrid")]
    assert changed == {f"blocks.{i}{part}{name}_ih_l0" for i, part in blocks for name in ("weight", "bias")}


def test_tuning_needs_the_timesteps():
    with pytest.raises(ValueError, match="PositionConfig needs T, the timesteps that BMRU units get"):
        PositionConfig(longest=2.0 * T)
    assert PositionConfig(longest=2.0 * T, tuning=0).longest_wavelength == PositionConfig(T=T).longest_wavelength


@pytest.mark.parametrize(("tuning", "learns"), [(8.0, True), (0.0, False)])
def test_learns_the_product_of_two_far_inputs(tuning, learns):
    """Whether the signs at steps 7 and 40 of 64 are the same: learned in 300 steps, and without tuning not."""
    torch.manual_seed(0)
    position = PositionConfig(T=T, tuning=tuning)
    model = build_model(ModelConfig(("bmru",), d_input=1, d_output=2, d_model=32, d_state=T, position=position))
    optimizer = torch.optim.Adam(model.parameters(), 6e-3)
    for _ in range(300):
        x = torch.randn(64, T, 1)
        target = (x[:, 7, 0] * x[:, 40, 0] > 0).long()
        loss = F.cross_entropy(model(x)[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (loss.item() < 0.1) == learns, loss.item()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"tuning": -1}, "tuning must not be negative, got -1"),
        ({"scale": 0.0}, r"scale must be positive, got 0\.0"),
        ({"T": 0, "longest": 17.0}, "T must be a positive integer, got 0"),
    ],
)
def test_positions_that_no_unit_could_be_tuned_to_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        PositionConfig(**{"T": T} | numbers)


@pytest.mark.parametrize(("initial", "variance"), [("unit", 1), ("torch", 1 / 3)])
def test_variance_behind_linear_maps(initial, variance):
    torch.manual_seed(0)
    config = ModelConfig(("bmru",), 1, 1, d_model=256, d_state=256, bidirectional=True, initial=initial)
    block = build_model(config).blocks[0]
    y = build_linear(256, 512, initial)(torch.randn(4096, 256))
    assert y.var().item() == pytest.approx(variance, rel=0.02)
    assert block.out_proj(torch.randn(4096, 512)).var().item() == pytest.approx(variance, rel=0.02)


def test_an_unknown_initialisation_is_refused():
    with pytest.raises(ValueError, match="initial must be one of unit, torch, got 'zero'"):
        ModelConfig(("bmru",), 1, 1, initial="zero")

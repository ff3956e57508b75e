"""Position encoding: counted steps, their sinusoids, and both in an exported program."""

import math

import pytest
import torch

from multistable.models import PositionConfig
from multistable.models.position import PositionEncoding, count_steps
from small_models import T, assert_close, make_model, random_input


def test_steps_are_counted_from_the_start_and_from_resets():
    assert count_steps(torch.tensor([0]), 3, None).tolist() == [[0, 1, 2]]
    assert count_steps(torch.tensor([0, 7]), 3, None).tolist() == [[0, 1, 2], [7, 8, 9]]
    reset = torch.tensor([[False, True, False], [False, False, False]])
    assert count_steps(torch.tensor([5, 7]), 3, reset).tolist() == [[5, 0, 1], [7, 8, 9]]


def test_a_reset_at_the_first_step_restarts_a_carried_count():
    reset = torch.tensor([[True, False, False]])
    assert count_steps(torch.tensor([5]), 3, reset).tolist() == [[0, 1, 2]]


def test_encoding_matches_its_equation_after_a_billion_steps():
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


@pytest.mark.parametrize("dim", [2, 6])
def test_float32_encoding_is_the_float64_one_rounded_once(dim):
    encoding, counts = PositionEncoding(dim, 2.5, 40.0, 4.0), torch.tensor([[0, 1], [7, 10**6 + 1]])
    assert encoding(counts, torch.float32).shape == (2, 2, dim)
    assert torch.equal(encoding(counts, torch.float32), encoding(counts, torch.float64).float())


def test_held_encoding_stays_at_its_last_step():
    held, free = (PositionEncoding(16, 2.5, 100, 4.0, last) for last in (49, None))
    counts = torch.tensor([[0, 48, 49], [50, 51, 10**6]])
    assert torch.equal(held(counts, torch.float64), free(counts.clamp(max=49), torch.float64))
    assert not torch.equal(held(counts, torch.float64), free(counts, torch.float64))


@pytest.mark.parametrize(("held", "equal"), [(True, True), (False, False)])
def test_held_positions_leave_a_bmru_as_it_is_under_constant_input(held, equal):
    """Stationarity: a step that repeats the last one writes the values that are there."""
    position = PositionConfig(dim=8, T=T, tuning=0.0, held=held)
    model = make_model(cells=("bmru", "bmru"), pooling="last", position=position)
    x = random_input()
    output, state = model(x)
    later, after = model(x[:, -1:].expand(-1, 300, -1), state)
    same = [torch.equal(a, b) for a, b in zip(state.cells, after.cells, strict=True)]
    assert (all(same) and torch.allclose(output, later, rtol=0, atol=1e-12)) == equal


def test_positions_in_an_exported_model_follow_its_length():
    model = make_model(cells=("bmru", "hybrid"))
    sizes = {0: torch.export.Dim("B", min=2, max=64), 1: torch.export.Dim("T", min=2, max=512)}
    program = torch.export.export(model, (random_input(),), dynamic_shapes=(sizes,))
    for shape in ((3, 11), (5, 33)):
        x = torch.randn(*shape, 2, dtype=torch.float64)
        assert_close(program.module()(x)[0], model(x)[0])

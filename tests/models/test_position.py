"""Position encoding: counted steps, their sinusoids, and both in an exported program."""

import math

import pytest
import torch

from multistable.models.position import PositionEncoding, count_steps
from small_models import assert_close, make_model, random_input


def test_steps_are_counted_from_the_start_and_from_resets():
    device = torch.device("cpu")
    assert count_steps(None, 3, None, device).tolist() == [[0, 1, 2]]
    assert count_steps(torch.tensor([0, 7]), 3, None, device).tolist() == [[0, 1, 2], [7, 8, 9]]
    reset = torch.tensor([[False, True, False], [False, False, False]])
    assert count_steps(torch.tensor([5, 7]), 3, reset, device).tolist() == [[5, 0, 1], [7, 8, 9]]


def test_a_reset_at_the_first_step_restarts_a_carried_count():
    reset = torch.tensor([[True, False, False]])
    assert count_steps(torch.tensor([5]), 3, reset, torch.device("cpu")).tolist() == [[0, 1, 2]]


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


def test_positions_in_an_exported_model_follow_its_length():
    model = make_model(cells=("bmru", "hybrid"))
    sizes = {0: torch.export.Dim("B", min=2, max=64), 1: torch.export.Dim("T", min=2, max=512)}
    program = torch.export.export(model, (random_input(),), dynamic_shapes=(sizes,))
    for shape in ((3, 11), (5, 33)):
        x = torch.randn(*shape, 2, dtype=torch.float64)
        assert_close(program.module()(x)[0], model(x)[0])

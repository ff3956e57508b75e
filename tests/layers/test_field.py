"""Layers made from fields, with every kind of clock and with branches: steps, chunks, padding, layouts, gradients."""

import math

import pytest
import torch

from multistable import MRU, ClockedRNN, HysteresisMRU
from multistable.dynamics import brc, linear, nbrc, simplified_brc

D, N = 3, 4


CELLS = {
    "clocked": lambda **options: ClockedRNN(simplified_brc(0.5), D, N, 2, n_clock=3, **options),
    "clocked_vector": lambda **options: ClockedRNN(brc(), D, N, 2, n_clock=[1, 2, 3, 7], **options),
    "clocked_coupled": lambda **options: ClockedRNN(nbrc(), D, N, 2, n_clock=2, **options),
    "clocked_linear": lambda **options: ClockedRNN(linear(), D, N, 2, n_clock=[1, 2, 3, 7], **options),
    "clocked_limit": lambda **options: ClockedRNN(simplified_brc(0.1), D, N, 2, n_clock=math.inf, **options),
    "mru": lambda **options: MRU(brc(), D, N, 2, **options),
    "hysteresis": lambda **options: HysteresisMRU(D, N, 2, **options),
}


@pytest.fixture(params=CELLS)
def make(request):
    def build(**options):
        torch.manual_seed(0)
        cell = CELLS[request.param](dtype=torch.float64, **{"batch_first": True} | options)
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return cell

    return build


def batch(directions: int = 1, T: int = 9):
    torch.manual_seed(1)
    x = 2 * torch.randn(3, T, D, dtype=torch.float64)
    return x, torch.randn(2 * directions, 3, N, dtype=torch.float64)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_steps_and_chunks_equal_the_whole(make):
    cell, (x, h0) = make(), batch()
    output, h_n = cell(x, h0)
    first, h = cell(x[:, :4], h0)
    second, h = cell(x[:, 4:], h)
    assert_close(torch.cat([first, second], dim=1), output)
    assert_close(h, h_n)
    state = h0
    for t in range(x.shape[1]):
        features, state = cell.step(x[:, t], state)
        assert_close(features, output[:, t])
    assert_close(state, h_n)
    assert_close(cell.step(x[0, 0])[0], cell(x[:1, :1])[0][0, 0])


def test_padding_and_resets_equal_separate_sequences(make):
    cell, (x, h0) = make(bidirectional=True), batch(2)
    lengths = torch.tensor([9, 5, 0])
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 4] = True
    output, h_n = cell(x, h0, reset=reset, lengths=lengths)
    alone, last = cell(x[1:2, :5], h0[:, 1:2])
    assert_close(output[1:2, :5], alone)
    assert_close(h_n[:, 1:2], last)
    assert_close(h_n[:, 2], h0[:, 2])
    assert (output[1, 5:] == 0).all()
    cut = cell(x[:1], h0[:, :1], reset=reset[:1])[0]
    assert_close(output[:1], cut)
    forward_only = make()
    separate = forward_only(x[:1, 4:])[0]
    assert_close(forward_only(x[:1], reset=reset[:1])[0][:, 4:], separate)


def test_time_major_and_empty(make):
    x, h0 = batch(2)
    output, h_n = make(bidirectional=True)(x, h0)
    other_output, other_h_n = make(bidirectional=True, batch_first=False)(x.transpose(0, 1), h0)
    assert_close(other_output.transpose(0, 1), output)
    assert_close(other_h_n, h_n)
    none, same = make(bidirectional=True)(x[:, :0], h0)
    assert none.shape == (3, 0, 2 * N)
    assert_close(same, h0)
    cell = make()
    assert [y.shape for y in cell(x[:0])] == [(0, 9, N), (2, 0, N)]
    assert [y.shape for y in cell.step(x[:0, 0])] == [(0, N), (2, 0, N)]


def test_every_parameter_gets_a_gradient(make):
    cell, (x, _) = make(), batch(T=20)
    output, _ = cell(x)
    output.square().sum().backward()
    for name, parameter in cell.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all(), name
        # An update gate does not move equilibria, so in the limit u_c and w_c have no effect.
        if not isinstance(cell, MRU):
            assert parameter.grad.abs().sum() > 0, name


def test_inference_mode_changes_nothing(make):
    cell, (x, h0) = make(), batch()
    expected = cell(x, h0)
    with torch.inference_mode():
        for actual, other in zip(cell(x.clone(), h0.clone()), expected, strict=True):
            assert torch.equal(actual, other)

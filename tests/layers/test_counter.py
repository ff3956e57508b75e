"""Units that count: whole numbers, exact, with a gradient of 1 through every step."""

import pytest
import torch

from multistable import Counter
from multistable.surrogate import derivative


def one_unit(**options):
    """Counts its input if that is at least 0.5 away from 0."""
    rnn = Counter(1, 1, batch_first=True, dtype=torch.float64, **options)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0]]))
        rnn.bias_ih_l0.copy_(torch.tensor([0.0, 0.5]))
    return rnn


def test_counts():
    x = torch.tensor([1.0, 0.2, -0.5, 0.7, 0.5, -0.4]).double().view(1, -1, 1)
    assert one_unit()(x)[0].flatten().tolist() == [1, 1, 0, 1, 2, 2]


@pytest.mark.parametrize("T", [10, 1000])
def test_the_gradient_passes_every_step(T):
    """All later inputs count too; the first gets the same gradient whatever they are. A BMRU's would be erased."""
    x = torch.ones(1, T, 1, dtype=torch.float64)
    x[0, 0] = 0.8
    x.requires_grad_()
    one_unit()(x)[0][0, -1].sum().backward()
    margin, side = torch.tensor(0.3).double(), torch.tensor(0.8).double()
    assert x.grad[0, 0].item() == pytest.approx((derivative(margin) + 2 * derivative(side)).item())


def test_long_counts_are_exact():
    x = torch.ones(1, 1 << 17, 1)
    h = one_unit().float()(x)[0].flatten()
    assert torch.equal(h, torch.arange(1.0, (1 << 17) + 1))


def test_autocast_keeps_whole_numbers():
    rnn = one_unit().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = rnn(torch.ones(1, 1000, 1))[0]
    assert h.dtype == torch.float32
    assert h[0, -1].item() == 1000

"""BRC, nBRC, minGRU, GRU and LSTM against their equations, or torch's own modules."""

import pytest
import torch
from torch import nn

from multistable import BRC, NBRC, MinGRU
from multistable.layers import GRU, LSTM

D, N, T = 3, 4, 30


def inputs() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, T, D, dtype=torch.float64)


@pytest.mark.parametrize("kind", [BRC, NBRC])
def test_bistable_recurrent_cells(kind):
    torch.manual_seed(0)
    rnn = kind(D, N, batch_first=True, dtype=torch.float64)
    for parameter in rnn.parameters():
        nn.init.normal_(parameter)
    (U_c, U_a, U_h), (b_c, b_a, b_h) = rnn.weight_ih_l0.chunk(3), rnn.bias_ih_l0.chunk(3)
    w_c, w_a = (torch.diag(w) if kind is BRC else w for w in rnn.weight_hh_l0.chunk(2))
    x = inputs()
    output, _ = rnn(x)
    h = torch.zeros(2, N, dtype=torch.float64)
    for t in range(T):
        c = torch.sigmoid(x[:, t] @ U_c.T + h @ w_c.T + b_c)
        a = 1 + torch.tanh(x[:, t] @ U_a.T + h @ w_a.T + b_a)
        h = c * h + (1 - c) * torch.tanh(x[:, t] @ U_h.T + a * h + b_h)
        torch.testing.assert_close(output[:, t], h, rtol=1e-12, atol=1e-12)


def test_brc_remembers_where_its_feedback_is_strong():
    """With a = 2 the unit keeps the side of an input long gone; with a = 0 it does not."""
    for feedback, remembered in ((10.0, True), (-10.0, False)):
        rnn = BRC(1, 1, batch_first=True)
        with torch.no_grad():
            rnn.weight_ih_l0.copy_(torch.tensor([[0.0], [0.0], [3.0]]))
            rnn.bias_ih_l0.copy_(torch.tensor([0.0, feedback, 0.0]))
            rnn.weight_hh_l0.zero_()
            x = torch.zeros(2, 500, 1)
            x[0, :5], x[1, :5] = 1.0, -1.0
            low, high = rnn(x)[1].flatten().sort().values.tolist()
        assert (high > 0.9 and low < -0.9) == remembered


def test_mingru():
    torch.manual_seed(0)
    rnn = MinGRU(D, N, batch_first=True, dtype=torch.float64)
    (W_z, W_h), (b_z, b_h) = rnn.weight_ih_l0.chunk(2), rnn.bias_ih_l0.chunk(2)
    x = inputs()
    output, _ = rnn(x)
    h = torch.zeros(2, N, dtype=torch.float64)
    for t in range(T):
        z = torch.sigmoid(x[:, t] @ W_z.T + b_z)
        h = (1 - z) * h + z * (x[:, t] @ W_h.T + b_h)
        torch.testing.assert_close(output[:, t], h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ours", "theirs"), [(GRU, nn.GRU), (LSTM, nn.LSTM)])
def test_torch_modules(ours, theirs):
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "batch_first": True, "dtype": torch.float64}
    rnn, other = ours(D, N, **options), theirs(D, N, **options)
    moved = {}
    for name, value in rnn.state_dict().items():  # rnn_l1_reverse.weight_ih_l0 -> weight_ih_l1_reverse
        place, _, parameter = name.removeprefix("rnn_").partition(".")
        moved[parameter.replace("l0", place)] = value
    other.load_state_dict(moved)
    x = inputs()
    output, h_n = rnn(x)
    expected, states = other(x)
    states = torch.cat(states, dim=-1) if ours is LSTM else states
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(h_n, states, rtol=1e-12, atol=1e-12)

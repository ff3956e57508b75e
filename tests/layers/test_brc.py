"""BRC and nBRC against their equations and their fields."""

import pytest
import torch
from torch import nn

from multistable import BRC, NBRC, ClockedRNN
from multistable.dynamics import brc, nbrc

D, N, T = 3, 4, 30


@pytest.mark.parametrize("kind", [BRC, NBRC])
def test_cells_match_their_equations(kind):
    torch.manual_seed(0)
    rnn = kind(D, N, batch_first=True, dtype=torch.float64)
    for parameter in rnn.parameters():
        nn.init.normal_(parameter)
    (U_c, U_a, U_h), (b_c, b_a, b_h) = rnn.weight_ih_l0.chunk(3), rnn.bias_ih_l0.chunk(3)
    w_c, w_a = (torch.diag(w) if kind is BRC else w for w in rnn.weight_hh_l0.chunk(2))
    x = torch.randn(2, T, D, dtype=torch.float64)
    output, _ = rnn(x)
    h = torch.zeros(2, N, dtype=torch.float64)
    for t in range(T):
        c = torch.sigmoid(x[:, t] @ U_c.T + h @ w_c.T + b_c)
        a = 1 + torch.tanh(x[:, t] @ U_a.T + h @ w_a.T + b_a)
        h = c * h + (1 - c) * torch.tanh(x[:, t] @ U_h.T + a * h + b_h)
        torch.testing.assert_close(output[:, t], h, rtol=1e-12, atol=1e-12)


def test_brc_remembers_where_its_feedback_is_strong():
    """With a = 2 the unit keeps the sign of an early input; with a = 0 it does not."""
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


@pytest.mark.parametrize(("field", "kind"), [(brc(), BRC), (nbrc(), NBRC)], ids=["brc", "nbrc"])
def test_one_tick_of_the_field_matches_the_cell(field, kind):
    torch.manual_seed(0)
    plain = kind(D, N, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(torch.randn_like(parameter))
    clocked = ClockedRNN(field, D, N, batch_first=True, dtype=torch.float64)
    # The cell's order is U_c, U_a, U_h.
    (w_c, w_a), reverse_order = plain.weight_hh_l0.chunk(2), lambda x: torch.cat(x.chunk(3)[::-1])
    state = {"weight_ih_l0": reverse_order(plain.weight_ih_l0), "bias_ih_l0": reverse_order(plain.bias_ih_l0)}
    clocked.load_state_dict(state | {"w_a_l0": w_a, "w_c_l0": w_c})
    x, h0 = 2 * torch.randn(3, T, D, dtype=torch.float64), torch.randn(1, 3, N, dtype=torch.float64)
    torch.testing.assert_close(clocked(x, h0)[0], plain(x, h0)[0], rtol=0, atol=1e-12)

"""GRU and LSTM against torch's own modules."""

import pytest
import torch
from torch import nn

from multistable.layers import GRU, LSTM

D, N, T = 3, 4, 30


@pytest.mark.parametrize(("ours", "theirs"), [(GRU, nn.GRU), (LSTM, nn.LSTM)])
def test_layers_match_torch_modules(ours, theirs):
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "batch_first": True, "dtype": torch.float64}
    rnn, other = ours(D, N, **options), theirs(D, N, **options)
    moved = {}
    for name, value in rnn.state_dict().items():  # rnn_l1_reverse.weight_ih_l0 -> weight_ih_l1_reverse
        place, _, parameter = name.removeprefix("rnn_").partition(".")
        moved[parameter.replace("l0", place)] = value
    other.load_state_dict(moved)
    x = torch.randn(2, T, D, dtype=torch.float64)
    output, h_n = rnn(x)
    expected, states = other(x)
    states = torch.cat(states, dim=-1) if ours is LSTM else states
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(h_n, states, rtol=1e-12, atol=1e-12)

"""Layers in code that was written for ``nn.LSTM``."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from layer_names import NAMES
from multistable import BMRU, LikeLSTM, Stack
from multistable.layers import find_layer


@pytest.mark.parametrize("name", [*NAMES, "stack"])
def test_shapes_and_numbers_of_an_lstm(name):
    torch.manual_seed(0)
    kind, fixed = (Stack, {"cell": "hybrid"}) if name == "stack" else find_layer(name)
    inner = kind(**fixed, input_size=3, hidden_size=6, num_layers=2, bidirectional=True)
    rnn, lstm, x = LikeLSTM(inner), nn.LSTM(3, 6, 2, bidirectional=True), torch.randn(7, 4, 3)
    output, (h_n, c_n) = rnn(x)
    expected, (h_lstm, _) = lstm(x)
    assert output.shape == expected.shape
    assert name in ("lstm", "fsm:3") or h_n.shape == c_n.shape == h_lstm.shape
    assert torch.equal(output, inner(x)[0])
    assert torch.equal(c_n, inner(x)[1])
    assert torch.equal(h_n, c_n)
    zeros = torch.zeros_like(c_n)
    assert torch.equal(rnn(x, (torch.full_like(c_n, torch.nan), zeros))[0], inner(x, zeros)[0])


def test_a_training_loop_of_an_lstm():
    """As in torch's word_language_model: states are detached and handed on."""
    torch.manual_seed(0)
    rnn, head = LikeLSTM(Stack("hybrid", 4, 8, 2)), nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*rnn.parameters(), *head.parameters()], 1e-2)
    hidden = (torch.zeros(rnn.num_layers, 3, rnn.hidden_size), torch.zeros(rnn.num_layers, 3, rnn.hidden_size))
    losses = []
    x = torch.randn(30, 3, 4)
    for _ in range(30):
        hidden = tuple(h.detach() for h in hidden)
        rnn.flatten_parameters()
        output, hidden = rnn(x, hidden)
        loss = (head(output).squeeze(-1) - x[..., 0]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_packed_steps_and_attributes():
    inner = BMRU(3, 6, batch_first=True)
    rnn = LikeLSTM(inner)
    assert (rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.proj_size) == (3, 6, 1, 0)
    assert (rnn.batch_first, rnn.bidirectional, rnn.dropout, rnn.bias) == (True, False, 0.0, True)
    x = torch.randn(2, 5, 3)
    _, (_, c_n) = rnn(pack_padded_sequence(x, torch.tensor([5, 2]), batch_first=True))
    assert torch.equal(c_n, inner(x, lengths=torch.tensor([5, 2]))[1])
    assert torch.equal(rnn(x, lengths=torch.tensor([5, 2]))[1][1], c_n)
    y, state = rnn.step(x[:, 0])
    assert torch.equal(rnn.step(x[:, 1], state)[0], inner.step(x[:, 1], state[1])[0])
    assert y.shape == (2, 6)
    assert torch.equal(rnn.step(x[:, 0], rnn.initial_state((2,), x))[0], y)
    assert list(rnn.state_dict()) == [f"rnn.{key}" for key in inner.state_dict()]
    with pytest.raises(AttributeError, match="nothing"):
        _ = rnn.nothing


def test_attributes_that_users_change_are_those_of_the_layer():
    inner = BMRU(3, 6, num_layers=2)
    rnn, x = LikeLSTM(inner), torch.randn(4, 4, 3)
    expected = rnn(x)[0]
    rnn.batch_first = True
    assert torch.equal(rnn(x.transpose(0, 1))[0].transpose(0, 1), expected)
    rnn.dropout = 0.5
    assert inner.dropout == 0.5


@pytest.mark.parametrize("hx", [torch.zeros(1, 2, 6), (torch.zeros(1, 2, 6),), (None, None)])
def test_anything_but_a_pair_is_named(hx):
    with pytest.raises(TypeError, match=r"hx must be a pair of tensors \(h, c\), got (Tensor|tuple)"):
        LikeLSTM(BMRU(3, 6))(torch.randn(5, 2, 3), hx)


def test_a_layer_whose_states_are_pairs_already_raises():
    for rnn, name in ((nn.LSTM(3, 6), r"nn\.LSTM"), (LikeLSTM(BMRU(3, 6)), "LikeLSTM")):
        with pytest.raises(TypeError, match=f"rnn must be a layer of this library, got {name}, whose states"):
            LikeLSTM(rnn)


def test_a_pair_for_a_layer_itself_names_the_adapter():
    with pytest.raises(TypeError, match=r"hx must be one tensor, got tuple \(for code of nn.LSTM see LikeLSTM\)"):
        BMRU(3, 6)(torch.randn(5, 2, 3), (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)))

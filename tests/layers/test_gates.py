"""Gate statistics on layers whose gates are set by hand."""

import math

import pytest
import torch

from multistable import BMRU, GateStatistics, Hybrid, Stack, gate_statistics


def layer_with_thresholds(*betas, **options):
    """A layer with one input feature, which is the candidate of every unit, and constant thresholds."""
    rnn = BMRU(1, len(betas), thresholds="paper", **options)
    with torch.no_grad():
        for layer in range(rnn.num_layers):
            for reverse in rnn.directions:
                weight, bias, _ = rnn.parameters_of(layer, reverse)
                weight.zero_()
                weight[: len(betas), 0] = 1.0
                bias.copy_(torch.tensor([0.0] * len(betas) + list(betas)))
    return rnn


X = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, -4.0, 2.0]])[..., None]  # [B = 2, T = 4, 1]


def test_gate_statistics_match_a_hand_count():
    [s] = gate_statistics(layer_with_thresholds(0.0, 1.0, -3.0, 9.0, batch_first=True), X)
    assert isinstance(s, GateStatistics)
    assert s.write_rate.tolist() == [1.0, 5 / 8, 2 / 8, 0.0]
    assert s.hold_time.tolist() == pytest.approx([1.0, 8 / 5, 4.0, math.inf])
    assert s.never.tolist() == [False, False, False, True]
    assert s.always.tolist() == [True, False, False, False]
    assert s.dead.tolist() == [True, False, False, True]
    assert str(s) == "layer 0: writes at 46.9% of steps, 1 units never, 1 always"


def test_gate_statistics_of_time_major_input_are_the_same():
    [s] = gate_statistics(layer_with_thresholds(0.0, 1.0, -3.0, 9.0), X.transpose(0, 1))
    assert s.write_rate.tolist() == [1.0, 5 / 8, 2 / 8, 0.0]


def test_gate_statistics_count_valid_steps_only():
    rnn = layer_with_thresholds(0.0, 1.0, 3.0, 9.0, batch_first=True)
    [s] = gate_statistics(rnn, X, lengths=torch.tensor([3, 2]))
    assert s.write_rate.tolist() == pytest.approx([1.0, 2 / 5, 0.0, 0.0])
    assert s.always.tolist() == [True, False, False, False]
    with pytest.raises(ValueError, match="input has no valid timestep"):
        gate_statistics(rnn, X, lengths=torch.tensor([0, 0]))


def test_gate_statistics_of_layers_and_directions():
    rnn = layer_with_thresholds(0.5, 1.5, num_layers=2, bidirectional=True, batch_first=True)
    statistics = gate_statistics(rnn, X)
    assert [(s.layer, s.reverse) for s in statistics] == [(0, False), (0, True), (1, False), (1, True)]
    assert str(statistics[1]).startswith("layer 0 reverse: ")
    # The first unit of the first layer is 0 until its first write at |x| >= 0.5, then +-1. The second layer reads it.
    first = rnn.scan_layer(X, 0, False, None, _steps(rnn))[0][..., 0]
    assert first.tolist() == [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, -1.0, 1.0]]
    assert statistics[2].write_rate.tolist() == [5 / 8, 0.0]


def _steps(rnn):
    from multistable.layers.sequences import Steps

    return Steps.of(X, rnn.batch_first, None, None)


def test_a_reset_changes_the_gates_of_the_second_layer():
    rnn = layer_with_thresholds(0.5, 1.5, num_layers=2, batch_first=True)
    reset = torch.zeros(2, 4, dtype=torch.bool)
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])[..., None]
    kept, cut = (gate_statistics(rnn, x, reset=r)[1].write_rate[0].item() for r in (None, _mark(reset[:1], 2)))
    assert (kept, cut) == (1.0, 0.5)


def _mark(reset, t):
    reset = reset.clone()
    reset[:, t] = True
    return reset


def test_nan_counts_as_a_write():
    x = torch.tensor([[math.nan, 0.0]])[..., None]
    [s] = gate_statistics(layer_with_thresholds(1.0, batch_first=True), x)
    assert s.write_rate.tolist() == [0.5]


def test_gate_statistics_use_no_dropout_and_no_gradients():
    rnn = layer_with_thresholds(0.5, 1.5, num_layers=2, dropout=0.9, batch_first=True)
    first, second = gate_statistics(rnn, X), gate_statistics(rnn, X)
    assert all(torch.equal(a.write_rate, b.write_rate) for a, b in zip(first, second, strict=True))
    assert rnn.training
    assert not first[0].write_rate.requires_grad


def test_a_state_changes_the_gates_of_the_second_layer():
    """The first layer writes nothing; the second reads the state it holds."""
    rnn = layer_with_thresholds(0.5, 1.5, num_layers=2, batch_first=True)
    x, held = torch.zeros(1, 4, 1), torch.ones(2, 1, 2)
    assert gate_statistics(rnn, x)[1].write_rate.tolist() == [0.0, 0.0]
    assert gate_statistics(rnn, x, held)[1].write_rate.tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"hx must have shape \[2, 1, 2\]"):
        gate_statistics(rnn, x, held[:1])
    with pytest.raises(TypeError, match="hx must be one tensor, got list"):
        gate_statistics(rnn, x, [0.0])


def test_the_bmru_of_another_layer_is_found_by_the_error():
    """Of a hybrid its part, of a stack the cell, as the message says."""
    x, stack = torch.randn(2, 10, 3), Stack("bmru", 3, 4, batch_first=True)
    for rnn in (Hybrid(3, 4), stack):
        with pytest.raises(TypeError, match=rf"hybrid.bmru\[0\] or stack.blocks\[0\].cell, got {type(rnn).__name__}"):
            gate_statistics(rnn, x)
    found = []
    stack.blocks[0].cell.register_forward_pre_hook(lambda cell, args: found.extend(gate_statistics(cell, args[0])))
    stack(x)
    assert found[0].write_rate.shape == (4,)
    assert gate_statistics(Hybrid(3, 4, batch_first=True).bmru[0], x)[0].write_rate.shape == (2,)

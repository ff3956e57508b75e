"""GRU and LSTM in one loop: the same outputs, states and gradients as the library's, to rounding."""

import pytest
import torch

from multistable import Stack
from multistable.layers.torch_rnn import GRU, LSTM
from multistable_experiments.rl.agent import build_memory
from multistable_experiments.rl.loops import LoopedGRU, LoopedLSTM

KINDS = [(GRU, LoopedGRU), (LSTM, LoopedLSTM)]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("kind", "looped"), KINDS)
def test_they_equal_the_layers_of_the_library(kind, looped, batch_first):
    torch.manual_seed(0)
    layers = [each(3, 5, 2, batch_first=batch_first, dtype=torch.float64) for each in (kind, looped)]
    layers[1].load_state_dict(layers[0].state_dict())
    B, T = 4, 9
    x = torch.randn(B, T, 3, dtype=torch.float64)
    reset = torch.rand(B, T) < 0.3
    reset[0] = False  # an episode that has begun before and goes on
    reset[1, 0] = True
    assert reset[2:].any()
    state = torch.randn(2, B, layers[0].state_size, dtype=torch.float64)
    if not batch_first:
        x, reset = x.transpose(0, 1), reset.T
    grads, weights = [], torch.randn(x.shape[0], x.shape[1], 5, dtype=torch.float64)
    for layer in layers:
        inputs = [x.clone().requires_grad_(), state.clone().requires_grad_()]
        output, last = layer(inputs[0], inputs[1], reset=reset)
        loss = (output * weights).sum() + last.square().sum()
        grads.append([output, last, *torch.autograd.grad(loss, [*inputs, *layer.parameters()])])
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("kind", "looped"), KINDS)
def test_padding_is_left_to_the_library(kind, looped):
    torch.manual_seed(0)
    layers = [each(3, 5, batch_first=True) for each in (kind, looped)]
    layers[1].load_state_dict(layers[0].state_dict())
    x, lengths = torch.randn(2, 6, 3), torch.tensor([4, 6])
    for expected, found in zip(*(layer(x, lengths=lengths) for layer in layers), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("cell", "looped"), [("gru", LoopedGRU), ("lstm", LoopedLSTM)])
def test_memories_have_the_weights_of_a_stack(cell, looped):
    """Drawn from the same seed, under the same names: a checkpoint fits both."""
    torch.manual_seed(0)
    stack = Stack(cell, 3, 4, 2, batch_first=True)
    torch.manual_seed(0)
    memory = build_memory(cell, 3, 4, 2)
    assert sum(type(module) is looped for module in memory.modules()) == 2
    stacks = [stack.state_dict(), memory.state_dict()]
    assert list(stacks[0]) == list(stacks[1])
    assert all(torch.equal(a, b) for a, b in zip(*(stack.values() for stack in stacks), strict=True))

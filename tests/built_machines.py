"""Machines and models that are them, built by hand."""

from itertools import product

import torch

from multistable.machines import Machine, Transducer

__all__ = ["MOD_THREE", "PARITY", "TWO_BITS", "build", "two_layers"]

PARITY = Machine(((0, 1), (1, 0)), (0, 1))
MOD_THREE = Machine(((0, 1), (1, 2), (2, 0)), (0, 1, 2))
TWO_BITS = Machine(((1,), (2,), (3,), (0,)), (0, 0, 1, 1))


@torch.no_grad()
def build(machine, units=1, margin=1.0):
    """A model that is the machine: the scores of its transitions are ``margin``, all others 0."""
    Q, A = machine.n_states, machine.n_symbols
    model = Transducer(A, machine.n_outputs, units=units, n_states=Q)
    weight, bias, value = model.rnn.parameters_of(0)
    weight.zero_()
    bias.zero_()
    scores = weight.view(units, Q, Q, A)
    for q, a in product(range(Q), range(A)):
        scores[:, q, machine.table[q][a], a] = margin
    value.copy_(torch.eye(Q).expand_as(value))
    model.read_out.weight.zero_()
    model.read_out.bias.zero_()
    for q, output in enumerate(machine.output):
        model.read_out.weight[output, q] = 1.0
    return model


@torch.no_grad()
def two_layers():
    """One symbol: the first layer toggles, the second toggles when the first is back, so its state is bit 1 of the
    number of steps."""
    model = Transducer(1, 2, units=1, n_states=2, num_layers=2)
    toggle, keep = torch.tensor([0.0, 1, 1, 0]), torch.tensor([1.0, 0, 0, 1])
    for parameter in model.parameters():
        parameter.zero_()
    model.rnn.weight_ih_l0.copy_(toggle[:, None])
    model.rnn.weight_ih_l1.copy_(torch.stack([toggle, keep], dim=1))
    model.rnn.value_l0.copy_(torch.eye(2)[None])
    model.rnn.value_l1.copy_(torch.eye(2)[None])
    model.read_out.weight.copy_(torch.eye(2))
    return model

"""The machine that a trained model is: its reachable joint states, their transitions and outputs."""

from typing import Any, cast

import torch

from multistable.machines.certify import step
from multistable.machines.machine import Machine
from multistable.machines.rounding import decide, scores_of
from multistable.machines.transducer import Transducer

__all__ = ["extract"]


@torch.no_grad()
def extract(model: Transducer, max_states: int = 10_000) -> Machine:
    """All units of all layers as one machine, its states numbered in the order of a breadth-first search.

    Transitions and outputs are what the scores decide in float64, without regard to margins. Raises if more than
    ``max_states`` joint states can be reached.
    """
    rnn, weight = model.rnn, model.read_out.weight
    symbols = torch.eye(rnn.input_size, dtype=weight.dtype, device=weight.device)
    states = [(0,) * (rnn.num_layers * rnn.units)]
    number = {states[0]: 0}
    value = rnn.parameters_of(rnn.num_layers - 1)[2]
    outputs = {0: int(decide(*scores_of(value[:, 0].flatten(), model.read_out.weight, model.read_out.bias))[0])}
    table: list[tuple[int, ...]] = []
    for state in states:  # grows while it is read
        before = torch.tensor([state] * len(symbols), dtype=torch.uint8)
        after, output, _ = step(model, before, symbols)
        row: list[int] = []
        for reached, answer in zip(cast(Any, after).tolist(), cast(Any, output).tolist(), strict=True):
            index = number.setdefault(tuple(reached), len(states))
            if index == len(states):
                states.append(tuple(reached))
                outputs[index] = answer
            row.append(index)
        table.append(tuple(row))
        if len(states) > max_states:
            raise ValueError(f"model must have at most max_states = {max_states} reachable states; it has more")
    return Machine(tuple(table), tuple(outputs[q] for q in range(len(states))))

"""Prove a model right unit by unit, where its units have too many joint states to walk through.

A unit does not read the others. So the states it can be in while the target is in state q, ``R_n(q)``, come from a walk
through the pairs of that unit and the target alone, at most ``K Q`` of them. All units together are in one of the
combinations ``R_1(q) x ... x R_N(q)``, perhaps not in all of them. With one layer and a linear read-out,
``logit_c = b_c + sum_n u[n, s_n, c]``, the answer y of q is right in every combination if, for all c other than y,

    b_y - b_c + sum_n min over s in R_n(q) of (u[n, s, y] - u[n, s, c])

exceeds the rounding of the two logits. The sum of the smallest differences takes no walk through combinations. A unit
that the read-out hardly reads may do as it likes, and where rounding could decide between transitions, all of them are
followed.
"""

from typing import Any

import torch
from torch import Tensor

from multistable.machines.machine import Machine
from multistable.machines.rounding import ratios, rounding_of, scores_of
from multistable.machines.transducer import Transducer

__all__ = ["prove_by_units", "reachable"]


@torch.no_grad()
def prove_by_units(model: Transducer, target: Machine) -> tuple[float, int]:
    """The smallest ratio of an answer's margin to the rounding it must exceed, and the number of pairs of a unit's
    state and the target's. The model is right at every length if the ratio is above 1; otherwise nothing is known."""
    reached = reachable(possible(model, target.n_symbols), target)
    return float(answers(model, target, reached).amin()), int(reached.sum())  # NaN if one is NaN


def possible(model: Transducer, n_symbols: int) -> Tensor:
    """True where a symbol can take a unit from state i to state j under some order of summation, ``[A, N, K, K]``."""
    rnn = model.rnn
    weight, bias, _ = rnn.parameters_of(0)
    x = torch.eye(n_symbols, dtype=weight.dtype, device=weight.device)
    K, choices = rnn.n_states, (rnn.n_states,) if rnn.transitions == "any" else ()
    scores, rounding = (torch.unflatten(each, -1, (rnn.units, *choices, -1)) for each in scores_of(x, weight, bias))
    chosen = ~(ratios(scores, rounding) > 1)  # also where a score is NaN
    if rnn.transitions == "any":
        return chosen
    leads = rnn.table(x.device)[..., None] == torch.arange(K, device=x.device)  # [M, K, K]
    return torch.einsum("anm,mij->anij", chosen.float(), leads.float()) > 0


def reachable(possible: Tensor, target: Machine) -> Tensor:
    """Which pairs of a unit's state and the target's some input of at least one symbol reaches, ``[N, K, Q]``."""
    A, N, K, _ = possible.shape
    forward, table = possible.transpose(2, 3).float(), torch.tensor(target.table, device=possible.device)
    reached = torch.zeros(N, K, target.n_states, dtype=torch.bool, device=possible.device)
    visited = reached.clone()
    visited[:, 0, 0] = True
    while True:
        before, counts = visited.float(), torch.zeros_like(visited, dtype=torch.float32)
        for a in range(A):
            counts.index_add_(2, table[:, a], forward[a] @ before)
        reached = counts > 0
        if bool((reached <= visited).all()):
            return reached
        visited = visited | reached


def answers(model: Transducer, target: Machine, reached: Tensor) -> Tensor:
    """For each state of the target the smallest ratio of the answer's margin, bounded as above, to its rounding."""
    N, _, Q = reached.shape
    read_out: Any = model.read_out
    value, weight = model.rnn.parameters_of(0)[2].double(), read_out.weight.double()
    bias = weight.new_zeros(len(weight)) if read_out.bias is None else read_out.bias.double()
    weight = torch.unflatten(weight, 1, (N, -1))
    u = torch.einsum("nkv,cnv->nkc", value, weight)
    size = torch.einsum("nkv,cnv->nkc", value.abs(), weight.abs())
    found = [bias.new_full([1], torch.inf)]
    for q in range(Q):
        y, absent = target.output[q], ~reached[:, :, q, None]
        gap = (u[..., y, None] - u).masked_fill(absent, torch.inf).amin(1).sum(0) + bias[y] - bias
        most = (size[..., y, None] + size).masked_fill(absent, 0.0).amax(1).sum(0) + bias[y].abs() + bias.abs()
        others = torch.arange(len(bias), device=bias.device) != y
        if not bool(absent.all()):
            found.append((gap / rounding_of(most, read_out.weight))[others])
    return torch.cat(found)

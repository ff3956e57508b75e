"""Prove that a trained model is right at every length, or find the shortest input on which it errs.

The model's machines, all units of all layers together, are one machine. Its states and the target's are walked through
side by side from the start, breadth first: each pair that some input reaches is met once, with a shortest input that
leads there. If the model answers rightly in every pair, it does after every input.

Units too many to walk through together are tried one by one first (``bound.py``). Decisions count only where no
rounding can change them (``rounding.py``).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from multistable.layers.fsm import FSM
from multistable.machines.bound import prove_by_units
from multistable.machines.machine import Machine
from multistable.machines.rounding import are_kept, decide, scores_of
from multistable.machines.transducer import Transducer

__all__ = ["Verdict", "certify", "step"]

_BATCH = 1 << 12  # successors computed at a time


@dataclass(frozen=True)
class Verdict:
    """What :func:`certify` found."""

    right: bool | None
    """True: right at every length. False: wrong on ``word``. None: undecided."""
    word: tuple[int, ...] | None
    """A shortest input after which the model errs, or after which its decision may depend on rounding."""
    pairs: int
    """Pairs of a state of the model and one of the target that were met; of a state of one unit and one of the target
    where that was enough."""
    margin: float
    """The smallest ratio of a decision's margin to the rounding that it must exceed; above 1 if right."""
    reason: str


@torch.no_grad()
def certify(model: Transducer, target: Machine, max_pairs: int = 10**7) -> Verdict:
    """Decide if ``model`` gives the outputs of ``target`` after every input of at least one symbol, from the initial
    state, in its own dtype (without autocast), without the noise of training, and with its parameters as they are
    (hooks that change them before a forward are not run).

    Undecided if some decision's margin does not exceed the rounding of the arithmetic, if there are more than
    ``max_pairs`` reachable pairs of states, or if a parameter is NaN, infinite, nearly infinite or subnormal.
    """
    rnn = model.rnn
    if rnn.bidirectional:
        raise ValueError("model must be unidirectional: the reverse direction has read what follows")
    if not rnn.batch_first:
        raise ValueError("model.rnn must be batch_first: Transducer gives it [B, T, A], of which B would be its time")
    if torch.is_autocast_enabled(model.read_out.weight.device.type):
        raise ValueError("certify must be called outside of autocast: what it proves holds in the model's own dtype")
    if (rnn.input_size, model.read_out.out_features) != (target.n_symbols, target.n_outputs):
        sizes = f"{target.n_symbols} symbols and {target.n_outputs} outputs"
        raise ValueError(f"model must have the target's {sizes}, got {rnn.input_size}, {model.read_out.out_features}")
    read_out: list[Any] = [model.read_out.weight, model.read_out.bias]  # as parametrizations compute them
    if not all(are_kept(x) for layer in (*rnn.all_weights, read_out) for x in layer if x is not None):
        return Verdict(None, None, 0, math.nan, "a parameter is NaN, infinite, nearly infinite or subnormal")
    if rnn.num_layers == 1:
        ratio, pairs = prove_by_units(model, target)
        if ratio > 1:
            return Verdict(
                True, None, pairs, ratio, "every reachable pair of a unit and the target gives a right output"
            )
    walk = _Walk(model, target)
    frontier = walk.start()
    while frontier:
        wrong: int | None = None
        weak: int | None = None
        following: list[int] = []
        for pair, parent, symbol, q, right, ratio in walk.successors(frontier):
            if ratio < walk.margin or math.isnan(ratio):
                walk.margin = ratio
            if ratio > 1 and right and pair in walk.number:
                continue
            index = walk.meet(pair, parent, symbol, q)
            if not ratio > 1:
                weak = index if weak is None else weak
            elif not right:
                wrong = index if wrong is None else wrong
            else:
                following.append(index)
            if len(walk.pairs) > max_pairs:
                return walk.verdict(None, None, f"more than {max_pairs} pairs of states are reachable")
        if wrong is not None:
            return walk.verdict(False, wrong, "the output is wrong after this input")
        if weak is not None:
            return walk.verdict(None, weak, "a decision may depend on rounding after this input")
        frontier = following
    return walk.verdict(True, None, "every reachable pair of states gives the right output")


class _Walk:
    """The pairs met so far, and what follows them."""

    def __init__(self, model: Transducer, target: Machine) -> None:
        self.model, self.target = model, target
        self.number: dict[bytes, int] = {}
        self.pairs: list[bytes] = []
        self.parents: list[tuple[int, int]] = []
        self.targets: list[int] = []
        self.margin = float("inf")
        weight = model.read_out.weight
        self.symbols = torch.eye(target.n_symbols, dtype=weight.dtype, device=weight.device)

    def start(self) -> list[int]:
        rnn = self.model.rnn
        return [self.meet(bytes(rnn.num_layers * rnn.units) + _bytes(0), -1, -1, 0)]

    def meet(self, pair: bytes, parent: int, symbol: int, q: int) -> int:
        index = len(self.pairs)
        self.number.setdefault(pair, index)
        self.pairs.append(pair)
        self.parents.append((parent, symbol))
        self.targets.append(q)
        return index

    def successors(self, frontier: list[int]) -> Iterator[tuple[bytes, int, int, int, bool, float]]:
        """For each pair of the frontier and each symbol: the next pair, where it comes from, the target's state,
        whether the output is right, and the smallest ratio of a margin to its rounding."""
        A, units = self.target.n_symbols, self.model.rnn.num_layers * self.model.rnn.units
        size = max(1, _BATCH // A)
        for i in range(0, len(frontier), size):
            part = frontier[i : i + size]
            rows = b"".join(self.pairs[index][:units] for index in part)
            states = torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(len(part), units)
            after, output, ratio = step(self.model, states.repeat_interleave(A, 0), self.symbols.repeat(len(part), 1))
            keys: list[bytes] = [bytes(row) for row in cast(Any, after).tolist()]
            answers: list[tuple[int, float]] = list(
                zip(cast(Any, output).tolist(), cast(Any, ratio).tolist(), strict=True)
            )
            for j, (answer, margin) in enumerate(answers):
                parent, symbol = part[j // A], j % A
                q = self.target.table[self.targets[parent]][symbol]
                yield keys[j] + _bytes(q), parent, symbol, q, answer == self.target.output[q], margin

    def verdict(self, right: bool | None, index: int | None, reason: str) -> Verdict:
        return Verdict(right, None if index is None else self.word(index), len(self.pairs), self.margin, reason)

    def word(self, index: int) -> tuple[int, ...]:
        """The input that led to a pair."""
        symbols: list[int] = []
        while self.parents[index][0] >= 0:
            index, symbol = self.parents[index]
            symbols.append(symbol)
        return tuple(reversed(symbols))


def _bytes(q: int) -> bytes:
    return q.to_bytes(4, "little")


def step(model: Transducer, states: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One symbol ``x [R, A]`` in the joint states ``[R, L * N]``: the states after, the output ``[R]``, the smallest
    ratio of a margin to its rounding ``[R]``."""
    rnn, (R, device) = model.rnn, (len(x), x.device)
    ratio, after = torch.full([R], torch.inf, dtype=torch.float64, device=device), list[Tensor]()
    for layer, state in enumerate(states.to(device).long().view(R, rnn.num_layers, rnn.units).unbind(1)):
        weight, bias, value = rnn.parameters_of(layer)
        scores, rounding = scores_of(x, weight, bias)
        chosen, layer_ratio = decide(*(_columns(rnn, s, state) for s in (scores, rounding)))
        ratio = torch.minimum(ratio, layer_ratio.amin(-1))
        if rnn.transitions != "any":
            chosen = rnn.table(device)[chosen, state]
        state = chosen
        after.append(state.byte().cpu())
        x = value[torch.arange(rnn.units, device=device), state].flatten(1)
    scores, rounding = scores_of(x, model.read_out.weight, model.read_out.bias)
    output, last_ratio = decide(scores, rounding)
    return torch.stack(after, 1).flatten(1), output, torch.minimum(ratio, last_ratio)


def _columns(rnn: FSM, scores: Tensor, state: Tensor) -> Tensor:
    """The scores ``[R, N, M]`` of what can follow each unit's state ``[R, N]``."""
    if rnn.transitions != "any":
        return torch.unflatten(scores, -1, (rnn.units, -1))
    K = rnn.n_states
    columns = torch.unflatten(scores, -1, (rnn.units, K, K))
    return columns.gather(2, state[..., None, None].expand(-1, -1, 1, K)).squeeze(2)

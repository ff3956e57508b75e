"""Agents: a memory, and what is read from it."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from multistable import Stack
from multistable.layers.base import Recurrent
from multistable_experiments.rl.loops import LOOPED

__all__ = ["CELLS", "HELD", "MIXED", "Agent", "Memoryless", "build_memory", "fit_width"]

CELLS = ("bmru", "hybrid", "lru", "mingru", "gru", "lstm", "none")
"""The memories that are compared; ``none`` is an agent without."""
HELD = ("gru-held", "lstm-held", "lru-held")
"""In T-mazes also rivals whose start is made to hold, as that of bistable units is: 4 is added to the bias of the
update or forget gate, and an LRU's moduli lie between 0.999 and 0.999999."""
MIXED = ("mingru", "bmru")
"""The blocks of ``mixed``, which is not among the cells that are compared by default: memory that fades, then memory
that does not."""


class Memoryless(nn.Module):
    """Two layers with the interface of a :class:`~multistable.Stack`; the state has one number, which is not used."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_size, hidden_size),
            nn.LayerNorm(hidden_size),
            nn.Tanh(),
            nn.Linear(hidden_size, hidden_size),
            nn.Tanh(),
        )

    def forward(self, x: Tensor, state: Tensor, *, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.layers(x), state

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers(x), state

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_zeros(1, *shape, 1)


def build_memory(cell: str, input_size: int, hidden_size: int, blocks: int = 1) -> Recurrent | Memoryless:
    if cell == "none":
        return Memoryless(input_size, hidden_size)
    kind, _, held = cell.partition("-")
    ring: dict[str, Any] = {"r_min": 0.999, "r_max": 0.999999} if held and kind == "lru" else {}
    kinds, blocks = (MIXED, len(MIXED)) if kind == "mixed" else (kind, blocks)
    memory = Stack(kinds, input_size, hidden_size, blocks, batch_first=True, **ring)
    for rnn in memory.modules():
        if held and isinstance(rnn, nn.RNNBase):
            start_to_hold(rnn)
    for module in memory.modules():
        if type(module) in LOOPED:  # the same weights, run by another loop
            module.__class__ = LOOPED[type(module)]
    return memory


@torch.no_grad()
def start_to_hold(rnn: nn.RNNBase) -> None:
    """Add 4 to the bias of the second gate: of a GRU's reset, update and new; of an LSTM's input, forget, cell and
    output."""
    bias = cast(Tensor, rnn.bias_ih_l0)
    bias[rnn.hidden_size : 2 * rnn.hidden_size] += 4


class Agent(nn.Module):
    """``features = memory(x)``, the policy's ``outputs`` numbers and the value linear in them.

    With a critic ``apart`` the memory is trained by the policy alone: the critic's error does not reach it.
    """

    def __init__(
        self, cell: str, input_size: int, outputs: int, hidden_size: int, blocks: int = 1, apart: bool = False
    ) -> None:
        super().__init__()
        self.apart = apart
        self.memory = build_memory(cell, input_size, hidden_size, blocks)
        self.actor = nn.Linear(hidden_size, outputs)
        self.critic = nn.Linear(hidden_size, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)  # all actions are about equally likely at first
        nn.init.zeros_(self.actor.bias)

    def forward(self, x: Tensor, state: Tensor, reset: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """``x [B, T, D]``, the state before it, ``reset [B, T]`` -> policy ``[B, T, A]``, values ``[B, T]``, state."""
        features, state = self.memory(x, state, reset=reset)
        value = self.critic(features.detach() if self.apart else features).squeeze(-1)
        return self.actor(features), value, state

    def step(self, x: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One timestep: ``x [B, D]``, ``reset [B]`` -> policy ``[B, A]``, values ``[B]``, state."""
        start = self.memory.initial_state((len(x),), x)
        features, state = self.memory.step(x, torch.where(reset[:, None], start, state))
        return self.actor(features), self.critic(features).squeeze(-1), state


def fit_width(build: Callable[[int], nn.Module], parameters: int) -> int:
    """The even width for which ``build(width)`` comes closest to this number of parameters; it raises for a bad one."""
    sizes: dict[int, int] = {}
    for width in range(2, 514, 2):
        try:
            sizes[width] = sum(parameter.numel() for parameter in build(width).parameters())
        except ValueError:  # such as a hybrid whose parts would not be whole
            continue
        if sizes[width] > parameters:
            break
    return min(sizes, key=lambda width: abs(sizes[width] - parameters))

"""The numbers behind the figures that need no long training: trajectories, held bits, gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multistable import BMRU, ops
from multistable.dynamics import simplified_brc
from multistable_experiments.threads import one_thread

__all__ = ["SEEDS", "HeldBit", "first_gradients", "hold_one_bit", "trajectories"]

SEEDS = 10
LEARNS = 0.05
"""The largest error of a unit that holds its bit; always answering 0 has 1."""


@torch.no_grad()
def trajectories(x: float, beta: float, starts: Tensor, steps: int, c: float = 0.01) -> Tensor:
    """Internal states ``[steps + 1, S]`` of the simplified BRC from each start, input and beta held."""
    field, h, states = simplified_brc(c), starts.double(), [starts.double()]
    args = torch.tensor(x, dtype=torch.float64), torch.tensor(beta, dtype=torch.float64)
    for _ in range(steps):
        h = field(h, *args)
        states.append(h)
    return torch.stack(states)


class HeldBit(NamedTuple):
    """States of trained one-unit models for the inputs +1 and -1, their errors against length, and how many of the
    seeds learned."""

    lengths: list[int]
    states: dict[str, Tensor]
    errors: dict[str, list[float]]
    learned: dict[str, int]


class OneUnitLRU(torch.nn.Module):
    """``h_t = lambda h_{t-1} + gamma x_t`` with complex numbers, and a linear read-out of both parts."""

    def __init__(self) -> None:
        super().__init__()
        self.log_nu = torch.nn.Parameter(torch.tensor([-2.0]))
        self.theta = torch.nn.Parameter(torch.tensor([0.1]))
        self.gamma = torch.nn.Parameter(torch.tensor([0.5]))
        self.out = torch.nn.Linear(2, 1)

    def states(self, x: Tensor, h0: Tensor | None = None) -> Tensor:
        lam = torch.polar(torch.exp(-torch.exp(self.log_nu)), self.theta)
        return ops.linear_scan(lam, torch.complex(self.gamma * x, torch.zeros_like(x)), h0)

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.states(x, h0)
        return self.out(torch.cat([h.real, h.imag], dim=-1)), h[:, -1]


class OneUnitBMRU(torch.nn.Module):
    """One bistable unit, which starts on a branch, and a linear read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = BMRU(1, 1, batch_first=True, start="branch")
        self.out = torch.nn.Linear(1, 1)

    def states(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, h_n = self.rnn(x, h0)
        return self.out(h), h_n


def first_input(T: int) -> Tensor:
    """``[2, T, 1]``: +1 or -1, then zeros."""
    x = torch.zeros(2, T, 1)
    x[0, 0], x[1, 0] = 1.0, -1.0
    return x


@torch.no_grad()
def error_at(model: torch.nn.Module, T: int, chunk: int = 100_000) -> float:
    """Mean squared error of the last output against the first input, streamed in chunks."""
    target, state, y = first_input(1)[:, 0], None, torch.zeros(2, 1)
    for start in range(0, T, chunk):
        steps = min(chunk, T - start)
        y, state = model(first_input(steps) if start == 0 else torch.zeros(2, steps, 1), state)
        y = y[:, -1]
    return float((y - target).square().mean())


def train_to_hold(make: Callable[[], Any], T: int, seed: int) -> tuple[Any, float]:
    """Train a model to output its first input at the last of T steps; return it and its error."""
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers alone
        torch.manual_seed(seed)
        model = make()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(500):
        loss = (model(first_input(T))[0][:, -1] - first_input(1)[:, 0]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model, error_at(model, T)


@one_thread()
def hold_one_bit(lengths: tuple[int, ...] = (10, 50, 100, 1000, 10_000, 100_000, 1_000_000)) -> HeldBit:
    """Train one unit of each kind on 50 steps with ten seeds, and test the first that learned at all lengths.

    One bistable unit learns only if it starts with both a write and a hold in reach: 4 of these seeds do.
    """
    states, errors, learned = {}, {}, {}
    for name, make in (("BMRU", OneUnitBMRU), ("LRU", OneUnitLRU)):
        trained = [train_to_hold(make, 50, seed) for seed in range(SEEDS)]
        models = [model for model, error in trained if error < LEARNS]
        if not models:
            raise RuntimeError(f"{name} learned to hold its first input with none of {SEEDS} seeds")
        learned[name] = len(models)
        with torch.no_grad():
            states[name] = models[0].states(first_input(200))[..., 0]
        errors[name] = [error_at(models[0], length) for length in lengths]
    return HeldBit(list(lengths), states, errors, learned)


def first_gradients(lengths: tuple[int, ...], writes_later: bool) -> tuple[list[float], list[float]]:
    """``dh_T/dcand_1`` and ``dh_T/dbeta_1`` of a BMRU: only the first step writes, or the one in the middle too."""
    by_cand, by_beta = [], []
    for T in lengths:
        cand, beta = torch.zeros(1, T, 1), torch.full((1, T, 1), 0.5)
        cand[:, 0] = 0.8
        if writes_later:
            cand[:, T // 2] = -0.9
        cand.requires_grad_()
        beta.requires_grad_()
        last = ops.bmru_scan(cand, beta, torch.ones(1))[0, -1, 0]
        grad_cand, grad_beta = torch.autograd.grad(last, (cand, beta))
        by_cand.append(float(grad_cand[0, 0, 0]))
        by_beta.append(float(grad_beta[0, 0, 0]))
    return by_cand, by_beta

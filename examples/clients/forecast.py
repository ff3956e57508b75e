"""A forecast: the next value of a noisy series whose period is announced once, at the beginning.

    python examples/clients/forecast.py

A series is a sine of one of four periods, with noise. The first step says which period, by a flag; then the flags are
zero. The score is the mean squared error over the last half of 120 steps, divided by that of always guessing zero.
"""

import math

import torch
from compare import Program, Task, compare
from torch import Tensor

LENGTH, PERIODS = 120, (7.0, 11.0, 17.0, 29.0)


def draw(B: int, random: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    kind = torch.randint(0, len(PERIODS), (B,), generator=random)
    phase = 2 * math.pi * torch.rand(B, 1, generator=random)
    t = torch.arange(LENGTH + 1) / torch.tensor(PERIODS)[kind, None]
    clean = torch.sin(2 * math.pi * t + phase)
    series = clean + 0.5 * torch.randn(B, LENGTH + 1, generator=random)
    x = torch.zeros(B, LENGTH, 1 + len(PERIODS))
    x[..., 0] = series[:, :-1]
    x[torch.arange(B), 0, 1 + kind] = 1
    return x, clean[:, 1:]


def loss(out: Tensor, y: Tensor) -> Tensor:
    return (out.squeeze(-1) - y).square()[:, LENGTH // 2 :].mean()


TASK = Task(draw, 1, loss, lambda out, y: (loss(out, y) / y[:, LENGTH // 2 :].square().mean()).item(), steps=400)
PROGRAM = Program("error", TASK.train)

if __name__ == "__main__":
    compare(PROGRAM)

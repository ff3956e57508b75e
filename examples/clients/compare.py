"""One comparison for all programs of this folder: the same head, optimiser, budget and number of parameters.

Each model is a recurrent network of two layers and a linear map. Its width is the one with which it has nearest to as
many parameters as a GRU of 64 units. The learning rate is the better of two, by the loss on validation data with seed
3; seeds 0 to 2 are then trained with it and tested on other data.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multistable import BMRU, Stack

RATES, SEEDS, BATCH = (2e-3, 6e-3), (0, 1, 2), 32
KINDS: dict[str, Callable[[int, int], nn.Module]] = {
    "nn.GRU": lambda D, N: nn.GRU(D, N, 2, batch_first=True),
    "nn.LSTM": lambda D, N: nn.LSTM(D, N, 2, batch_first=True),
    "BMRU": lambda D, N: BMRU(D, N, 2, batch_first=True),
    'Stack("bmru")': lambda D, N: Stack("bmru", D, N, 2, batch_first=True),
    'Stack("hybrid")': lambda D, N: Stack("hybrid", D, N, 2, batch_first=True),
}


@dataclass(frozen=True)
class Task:
    """``draw(B, random, test)`` gives inputs ``[B, T, D]`` and targets; ``score(outputs, targets)`` is the quality."""

    draw: Callable[[int, torch.Generator, bool], tuple[Tensor, Tensor]]
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], float]
    steps: int


class Net(nn.Module):
    def __init__(self, rnn: Any, outputs: int) -> None:
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(rnn.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(kind: str, task: Task, seed: int, width: int = 64) -> Net:
    """A network of about as many parameters as the GRU of this width."""
    D = task.draw(1, torch.Generator().manual_seed(0), False)[0].shape[-1]
    target = count(Net(KINDS["nn.GRU"](D, width), task.outputs))
    sizes = {N: count(Net(KINDS[kind](D, N), task.outputs)) for N in range(width // 2, 3 * width, 4)}
    torch.manual_seed(seed)
    return Net(KINDS[kind](D, min(sizes, key=lambda N: abs(sizes[N] - target))), task.outputs)


def train(kind: str, task: Task, rate: float, seed: int, width: int = 64) -> tuple[Net, float]:
    """The trained network and the seconds that took."""
    model, random = build(kind, task, seed, width), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, task.steps)
    start = time.perf_counter()
    for _ in range(task.steps):
        x, y = task.draw(BATCH, random, False)
        optimiser.zero_grad()
        task.loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval(), time.perf_counter() - start


@torch.no_grad()
def evaluate(model: Net, task: Task, test: bool) -> tuple[float, float]:
    """Loss and score on 512 sequences of validation or test data."""
    x, y = task.draw(512, torch.Generator().manual_seed(10**6 + test), test)
    out = model(x)
    return task.loss(out, y).item(), task.score(out, y)


def state_bytes(model: Net) -> int:
    """What one sequence has to keep from step to step, in float32."""
    D = model.rnn.input_size
    _, state = model.rnn(torch.zeros(1, 1, D))
    return 4 * sum(part.numel() for part in (state if isinstance(state, tuple) else (state,)))


def compare(task: Task, quality: str, width: int = 64) -> str:
    """A table in Markdown: each line is printed as soon as it is known."""
    lines = [f"| model | parameters | {quality} (seeds) | seconds | state bytes |", "|---|---|---|---|---|"]
    print("\n".join(lines))
    for kind in KINDS:
        losses = {rate: evaluate(train(kind, task, rate, 3, width)[0], task, False)[0] for rate in RATES}
        runs = [train(kind, task, min(losses, key=losses.__getitem__), seed, width) for seed in SEEDS]
        scores = [evaluate(model, task, True)[1] for model, _ in runs]
        mean, each = statistics.mean(scores), ", ".join(f"{score:.3f}" for score in scores)
        model, seconds = runs[0][0], statistics.median(took for _, took in runs)
        lines.append(f"| `{kind}` | {count(model):,} | {mean:.3f} ({each}) | {seconds:.0f} | {state_bytes(model):,} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)

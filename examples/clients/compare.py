"""One comparison for all programs of this folder: the same head, optimiser, budget and number of parameters.

Each model is a recurrent network of two layers and a linear map. Its width is the one with which it has nearest to as
many parameters as a GRU of 32 units. The learning rate is the better of two, by validation with seed 3; seeds 0 to 2
are then trained with it and tested on other data.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multistable import BMRU, Stack
from multistable.layers.torch_rnn import GRU, LSTM  # torch's own, with `reset` and `step`

RATES, SEEDS, BATCH, WIDTH = (2e-3, 6e-3), (0, 1, 2), 32, 32
KINDS: dict[str, Callable[[int, int], Any]] = {
    "nn.GRU": lambda D, N: GRU(D, N, 2, batch_first=True),
    "nn.LSTM": lambda D, N: LSTM(D, N, 2, batch_first=True),
    "BMRU": lambda D, N: BMRU(D, N, 2, batch_first=True),
    'Stack("bmru")': lambda D, N: Stack("bmru", D, N, 2, batch_first=True),
    'Stack("hybrid")': lambda D, N: Stack("hybrid", D, N, 2, batch_first=True),
}


class Net(nn.Module):
    """A recurrent network and a linear map: ``x [B, T, D]`` -> ``[B, T, outputs]``."""

    def __init__(self, rnn: Any, outputs: int) -> None:
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(rnn.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


@dataclass(frozen=True)
class Trained:
    """A trained network, its error on validation data, its score on test data, and the CPU seconds of training."""

    model: Net
    error: float
    score: float
    seconds: float


@dataclass(frozen=True)
class Program:
    """``train(kind, rate, seed, width)`` trains one model; ``quality`` says what its score is."""

    quality: str
    train: Callable[[str, float, int, int], Trained]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(kind: str, D: int, outputs: int, seed: int, width: int) -> Net:
    """A network of about as many parameters as the GRU of this width."""
    target = count(Net(KINDS["nn.GRU"](D, width), outputs))
    widths = range(4 * (width // 8), 3 * width, 4 if "hybrid" in kind else 1)  # a hybrid has two halves of pairs
    sizes = {N: count(Net(KINDS[kind](D, N), outputs)) for N in widths}
    torch.manual_seed(seed)
    return Net(KINDS[kind](D, min(sizes, key=lambda N: abs(sizes[N] - target))), outputs)


@dataclass(frozen=True)
class Task:
    """``draw(B, random, test)`` gives inputs ``[B, T, D]`` and targets; ``score(outputs, targets)`` is the quality."""

    draw: Callable[[int, torch.Generator, bool], tuple[Tensor, Tensor]]
    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], float]
    steps: int

    def train(self, kind: str, rate: float, seed: int, width: int) -> Trained:
        random = torch.Generator().manual_seed(seed)
        model = build(kind, self.draw(1, random, False)[0].shape[-1], self.outputs, seed, width)
        optimiser = torch.optim.Adam(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        start = time.process_time()
        for _ in range(self.steps):
            x, y = self.draw(BATCH, random, False)
            optimiser.zero_grad()
            self.loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        seconds = time.process_time() - start
        return Trained(model.eval(), self.evaluate(model, False)[0], self.evaluate(model, True)[1], seconds)

    @torch.no_grad()
    def evaluate(self, model: Net, test: bool) -> tuple[float, float]:
        """Loss and score on 512 sequences of validation or test data."""
        x, y = self.draw(512, torch.Generator().manual_seed(10**6 + test), test)
        out = model(x)
        return self.loss(out, y).item(), self.score(out, y)


def measure(program: Program, kind: str) -> dict[str, Any]:
    """One row of the table: choose the rate with seed 3, then train and test the other seeds."""
    errors = {rate: program.train(kind, rate, 3, WIDTH).error for rate in RATES}
    rate = min(errors, key=errors.__getitem__)
    runs = [program.train(kind, rate, seed, WIDTH) for seed in SEEDS]
    model = runs[0].model
    return {
        "parameters": count(model),
        "hidden_size": model.rnn.hidden_size,
        "rate": rate,
        "scores": [round(run.score, 4) for run in runs],
        "seconds": round(statistics.median(run.seconds for run in runs), 1),
        "state_bytes": 4 * model.rnn.num_layers * model.rnn.state_size,  # of one sequence, in float32
    }


def table(quality: str, rows: dict[str, dict[str, Any]]) -> str:
    """The rows of one program in Markdown, by the name of the model."""
    lines = [f"| model | width | parameters | {quality} (seeds) | seconds | state bytes |", "|---" * 6 + "|"]
    for kind, row in rows.items():
        scores = f"{statistics.mean(row['scores']):.3g} ({', '.join(f'{score:.3g}' for score in row['scores'])})"
        sizes = f"{row['hidden_size']} | {row['parameters']:,}"
        lines.append(f"| `{kind}` | {sizes} | {scores} | {row['seconds']:.0f} | {row['state_bytes']:,} |")
    return "\n".join(lines)


def compare(program: Program) -> None:
    """Print the table; each line appears as soon as it is known."""
    print(table(program.quality, {}))
    for kind in KINDS:
        print(table(program.quality, {kind: measure(program, kind)}).splitlines()[-1], flush=True)

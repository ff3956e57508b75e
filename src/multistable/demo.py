"""A unit that holds one bit for a million steps, beside a linear unit trained the same way.

The input is +1 or -1 at t = 0 and zero ever after; the target is that bit at the last step. Training sees sequences of
1 to 10 steps, the test goes to 10^6.

Why lengths from 1: a fresh BMRU unit either never writes, or writes the same value at every step. The first is cured by
any length (the write gate has a gradient where it is closed, too), the second only by short sequences: at the last step
of a long one the value to write equals the value held, so the gate's gradient ``G (value - h_prev)`` is zero. Of 50
seeds (400 steps, learning rate 0.1), length 10 alone teaches 24, lengths 2 to 10 teach 33, lengths 1 to 10 all 50. With
learning rate 0.01 the latter are 36: time runs out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from multistable.cells import BMRU
from multistable.ops import linear_scan

__all__ = ["LENGTHS", "HoldBit", "LinearUnit", "Recall", "draw", "recall", "run", "train"]

LENGTHS = tuple(10**k for k in range(1, 7))
TRAIN_LENGTH = 10
CHUNK = 4096  # steps per call when streaming


class LinearUnit(nn.Module):
    """``h_t = a h_{t-1} + w x_t`` with ``a = exp(-exp(log_nu))`` between 0 and 1: a memory that fades.

    Linear layers (LRU, state space models) are made of such units. Called like ``nn.GRU(1, 1, batch_first=True)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_nu = nn.Parameter(torch.tensor([-1.0]))  # a = 0.69
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        a = torch.exp(-torch.exp(self.log_nu))
        h = linear_scan(a, self.weight * x, None if h0 is None else h0[0])
        return h, h[:, -1].unsqueeze(0)


class HoldBit(nn.Module):
    """A recurrent unit and a factor: ``x [B, T, 1]`` -> output and states ``[B, T, 1]``, last state ``[1, B, 1]``.

    The read-out has no bias, so the bits must be states of opposite sign. With one, 22 of 50 seeds write only one of the
    bits and let the other be the state that the unit starts from, zero.
    """

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.readout = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        h, h_last = self.rnn(x, h0)
        return self.readout(h), h, h_last


UNITS = {"BMRU": partial(BMRU, 1, 1, batch_first=True), "linear": LinearUnit}


@dataclass(frozen=True)
class Recall:
    """What a model makes of both bits, +1 and -1, after ``length`` steps."""

    length: int
    error: float
    """The larger distance of the last output from its bit."""
    states: Tensor
    """All states, ``[2, T]``."""
    streamed_equal: bool
    """Whether reading the sequence in chunks, with the state carried over, gives the same bits at every step."""


def both_bits(T: int) -> tuple[Tensor, Tensor]:
    """The two possible inputs ``[2, T, 1]`` and their bits ``[2, 1]``."""
    bits = torch.tensor([[1.0], [-1.0]])
    x = torch.zeros(2, T, 1)
    x[:, 0] = bits
    return x, bits


def train(model: HoldBit, steps: Iterable[int], lr: float = 0.1) -> None:
    """Adam on the squared error of the last output, one length in 1..10 per step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in steps:
        x, bits = both_bits(int(torch.randint(1, TRAIN_LENGTH + 1, ())))
        output, _, _ = model(x)
        loss = (output[:, -1] - bits).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def recall(model: HoldBit, T: int) -> Recall:
    """Test ``model`` at length T: in one call, and streamed in chunks."""
    x, bits = both_bits(T)
    output, h, _ = model(x)
    pieces, state = [], None
    for chunk in x.split(CHUNK, dim=1):
        _, piece, state = model(chunk, state)
        pieces.append(piece)
    error = float((output[:, -1] - bits).abs().max())
    return Recall(T, error, h.squeeze(-1), torch.equal(torch.cat(pieces, dim=1), h))


def run(
    folder: Path, *, seed: int = 0, steps: int = 800, lengths: Iterable[int] = LENGTHS, console: Console
) -> dict[str, list[Recall]]:
    """Train both models, test them, print a table and save a picture in ``folder``."""
    recalls: dict[str, list[Recall]] = {}
    quiet = not console.is_terminal
    for name, build in UNITS.items():
        torch.manual_seed(seed)
        model = HoldBit(build())
        what = f"{name}: training on 1 to {TRAIN_LENGTH} steps"
        train(model, track(range(steps), what, console=console, disable=quiet))
        tests = track(tuple(lengths), f"{name}: testing", console=console, disable=quiet)
        recalls[name] = [recall(model, T) for T in tests]
    console.print(_table(recalls))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hold_bit.png"
    draw(recalls, path)
    console.print(f"Picture of the states over time: {path}")
    return recalls


def _table(recalls: dict[str, list[Recall]]) -> Table:
    table = Table(title="One unit, one bit: shown at the first step, asked for at the last", title_justify="left")
    table.add_column("length", justify="right")
    for name in recalls:
        table.add_column(f"{name} error", justify="right")
        table.add_column(f"{name} state for +1, -1", justify="right")
    table.add_column("BMRU in chunks", justify="right")
    for row in zip(*recalls.values(), strict=True):
        cells = [f"{row[0].length:,}"]
        for test in row:
            up, down = test.states[:, -1].tolist()
            cells += [f"{test.error:.1e}", f"{up:+.4f}, {down:+.4f}"]
        table.add_row(*cells, "same bits" if row[0].streamed_equal else "differs")
    return table


def draw(recalls: dict[str, list[Recall]], path: Path) -> None:
    """The states for both inputs over time, one panel for each model, at the longest length tested."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(recalls), sharey=True)
    for panel, (name, tests) in zip(panels, recalls.items(), strict=True):
        states = tests[-1].states
        T = states.shape[1]
        t = torch.logspace(0, torch.log10(torch.tensor(float(T))), 600).long().clamp(max=T).unique()
        for line, label, colour in zip(states, ("+1", "-1"), ("#0072b2", "#d55e00"), strict=True):
            panel.plot(t, line[t - 1], color=colour, linewidth=2, label=f"input {label} at the first step")
        panel.axvline(TRAIN_LENGTH, color="0.6", linewidth=1, linestyle=":")
        panel.annotate("longest sequence\nin training", (TRAIN_LENGTH, 0), (4, 0), textcoords="offset points",
                       color="0.4", fontsize=8, va="center")  # fmt: skip
        panel.set(xscale="log", xlim=(1, T), xlabel="timestep", title=f"one {name} unit")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("state")
    panels[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)

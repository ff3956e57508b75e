"""The demo: BMRU, LRU and GRU hold a bit and recall a number; the result is one HTML page."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from multistable_experiments.demo import copy_first, hold_bit, page
from multistable_experiments.demo.outcome import Outcome, ProgressBar, error_rows
from multistable_experiments.files import write_atomically
from multistable_experiments.threads import one_thread
from multistable_experiments.training.presets import Preset

__all__ = ["PAGE", "Plan", "run"]

PAGE = "index.html"


@dataclass(frozen=True)
class Plan:
    """How much to compute."""

    bit_steps: int = 500
    bit_lengths: tuple[int, ...] = hold_bit.LENGTHS
    copy: Preset = copy_first.PRESET
    copy_lengths: tuple[int, ...] = copy_first.LENGTHS
    copy_samples: int = 256
    """Sequences per length and noise in the tests."""


def run(folder: Path, *, seed: int = 0, plan: Plan | None = None, console: Console) -> Path:
    """Train and test the models, print two tables, write the page into ``folder`` and return its path.

    The copy-first runs are in ``folder/runs``: after a kill the same call resumes them.
    """
    plan, started = plan or Plan(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        bits = {
            name: hold_bit.learn(name, seed, plan.bit_steps, plan.bit_lengths, bar(console, f"hold a bit, {name}"))
            for name in hold_bit.UNITS
        }
        console.print(table("One unit, one bit: mean squared error", bits))
        copies = {}
        for name in copy_first.CELLS:
            if console.is_terminal:
                console.print(f"copy-first, {name}: training on {plan.copy.task.length} steps", style="dim")
            copies[name] = copy_first.learn(
                name, seed, plan.copy, folder / "runs", plan.copy_lengths, plan.copy_samples,
                bar(console, f"copy-first, {name}"),
            )  # fmt: skip
        console.print(table("Copy-first-input: mean squared error", copies))
        sizes = {"bit_steps": plan.bit_steps, "copy_samples": plan.copy_samples}
        text = page.make(bits, copies, seed=seed, seconds=time.perf_counter() - started, **sizes)
    path = folder / PAGE
    write_atomically(path, text.encode())
    console.print(f"The page with the pictures: {path.resolve()}", soft_wrap=True, highlight=False, markup=False)
    return path


def bar(console: Console, name: str) -> ProgressBar:
    """Progress bars that vanish when the loop ends; none without a terminal."""

    def show(values: Sequence[Any], description: str) -> Iterable[Any]:
        return track(values, f"{name}: {description}", console=console, disable=not console.is_terminal, transient=True)

    return show


def table(title: str, outcomes: Mapping[str, Outcome]) -> Table:
    table = Table("error after", title=title, title_justify="left")
    for name in outcomes:
        table.add_column(name, justify="right")
    for row in error_rows(outcomes):
        table.add_row(*row)
    return table

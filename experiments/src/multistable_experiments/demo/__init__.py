"""The demo: BMRU, LRU and GRU hold a bit and recall a number; the result is one HTML page."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multistable_experiments.demo import copy_first, hold_bit, page
from multistable_experiments.demo.outcome import Outcome, error_rows
from multistable_experiments.files import write_atomically
from multistable_experiments.paper.settings import Preset
from multistable_experiments.threads import one_thread

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
    bits, copies = {}, {}
    with one_thread():
        for name in hold_bit.UNITS:
            compiling = " (the first call compiles its loops: up to a minute, once)" if name == "BMRU" else ""
            console.print(f"hold a bit: {name}{compiling}", style="dim")
            bits[name] = hold_bit.learn(name, seed, plan.bit_steps, plan.bit_lengths)
        console.print(table("One unit, one bit: mean squared error", bits))
        for name in copy_first.CELLS:
            console.print(f"copy-first: {name}", style="dim")
            copies[name] = copy_first.learn(
                name, seed, plan.copy, folder / "runs", plan.copy_lengths, plan.copy_samples
            )
        console.print(table("Copy-first-input: mean squared error", copies))
        sizes = {"bit_steps": plan.bit_steps, "copy_samples": plan.copy_samples}
        text = page.make(bits, copies, seed=seed, seconds=time.perf_counter() - started, **sizes)
    path = folder / PAGE
    write_atomically(path, text.encode())
    console.print(f"The page with the pictures: {path.resolve()}", soft_wrap=True, highlight=False, markup=False)
    return path


def table(title: str, outcomes: Mapping[str, Outcome]) -> Table:
    table = Table("error after", title=title, title_justify="left")
    for name in outcomes:
        table.add_column(name, justify="right")
    for row in error_rows(outcomes):
        table.add_row(*row)
    return table

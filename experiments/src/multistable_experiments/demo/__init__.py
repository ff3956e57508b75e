"""The demo: BMRU, LRU and GRU hold a bit and copy a number; it ends in one HTML page."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from multistable_experiments.demo import copy_first, hold_bit, page
from multistable_experiments.files import write_atomically
from multistable_experiments.paper.settings import Preset
from multistable_experiments.threads import one_thread

__all__ = ["PAGE", "Plan", "run"]

PAGE = "index.html"


@dataclass(frozen=True)
class Plan:
    """How much is computed."""

    bit_steps: int = 500
    bit_lengths: tuple[int, ...] = hold_bit.LENGTHS
    copy: Preset = copy_first.PRESET
    copy_lengths: tuple[int, ...] = copy_first.LENGTHS
    copy_samples: int = 256
    """Sequences per length and noise in the tests."""


def run(folder: Path, *, seed: int = 0, plan: Plan | None = None, console: Console) -> Path:
    """Train and test the cells, print two tables, write the page into ``folder`` and return its path.

    The runs of copy-first are in ``folder/runs``: after a kill the same call goes on with them.
    """
    plan, started = plan or Plan(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        bits = hold_bits(plan, seed, console)
        console.print(bit_table(bits))
        copies = copy_numbers(plan, seed, folder / "runs", console)
        console.print(copy_table(copies))
        sizes = {"seed": seed, "steps": plan.bit_steps, "samples": plan.copy_samples}
        text = page.make(bits, copies, **sizes, seconds=time.perf_counter() - started)
    path = folder / PAGE
    write_atomically(path, text.encode())
    console.print(f"The page with the pictures: {path.resolve()}", soft_wrap=True, highlight=False, markup=False)
    return path


def hold_bits(plan: Plan, seed: int, console: Console) -> dict[str, hold_bit.Outcome]:
    return {
        name: hold_bit.learn(name, seed, plan.bit_steps, plan.bit_lengths, bar(console, f"hold a bit, {name}"))
        for name in hold_bit.UNITS
    }


def copy_numbers(plan: Plan, seed: int, runs: Path, console: Console) -> dict[str, copy_first.Outcome]:
    outcomes = {}
    for name in copy_first.CELLS:
        if console.is_terminal:
            console.print(f"copy-first, {name}: training on {plan.copy.task.length} steps", style="dim")
        run, show = copy_first.make(name, seed, plan.copy), bar(console, f"copy-first, {name}")
        outcomes[name] = copy_first.learn(run, runs, plan.copy_lengths, plan.copy_samples, show, console.is_terminal)
    return outcomes


def bar(console: Console, name: str) -> Callable[[Sequence[Any], str], Iterable[Any]]:
    """A function that wraps a loop in a progress bar, gone at its end; without a terminal there is none."""

    def show(values: Sequence[Any], words: str) -> Iterable[Any]:
        return track(values, f"{name}: {words}", console=console, disable=not console.is_terminal, transient=True)

    return show


def bit_table(bits: dict[str, hold_bit.Outcome]) -> Table:
    table = Table(title="One unit, one bit: mean squared error", title_justify="left")
    for column in ("steps", *bits):
        table.add_column(column, justify="right")
    for tests in zip(*(outcome.recalls for outcome in bits.values()), strict=True):
        table.add_row(f"{tests[0].length:,}", *(page.score(test.error) for test in tests))
    return table


def copy_table(copies: dict[str, copy_first.Outcome]) -> Table:
    table = Table(title="Copy-first-input: mean squared error", title_justify="left")
    for column in ("steps", "noise", *copies):
        table.add_column(column, justify="right")
    for noise in copy_first.NOISES:
        for tests in zip(*(outcome.errors[noise] for outcome in copies.values()), strict=True):
            table.add_row(f"{tests[0][0]:,}", f"{noise:g}", *(page.score(error) for _, error in tests))
    return table

"""Print the machine, which backend computes the scans on it, and why."""

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from multistable.ops import explain
from multistable_experiments.machine import describe

__all__ = ["show"]


def show(console: Console) -> None:
    facts = Table(show_header=False, box=None)
    for name, value in describe().items():
        if value is not None or name not in ("commit", "dirty"):  # an installed package has neither
            facts.add_row(name, "none" if value is None else str(value))
    console.print(facts)

    choices = Table(title="Backend of the scans, for every dtype", title_justify="left")
    for heading in ("device", "backend", "why"):
        choices.add_column(heading, overflow="fold")
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            choices.add_row("cuda", "none", f"torch {torch.__version__} finds no GPU")
        else:
            backend, _, why = str(explain(torch.zeros(1, 1, 1, device=device))).partition(": ")
            choices.add_row(device, backend, escape(why))  # rich would take 'multistable[cpu]' for markup
    console.print(choices)

"""What ``multistable info`` prints: the machine, and which backend would run on it, and why."""

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from multistable.ops import explain
from multistable_experiments.machine import describe

__all__ = ["run"]


def run(console: Console) -> None:
    facts = Table(show_header=False, box=None)
    for name, value in describe().items():
        facts.add_row(name, "none" if value is None else str(value))
    console.print(facts)

    choices = Table(title="Which backend would compute the scans, in every dtype", title_justify="left")
    for heading in ("device", "backend", "why"):
        choices.add_column(heading, overflow="fold")
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            choices.add_row("cuda", "none", f"torch {torch.__version__} sees no GPU here")
        else:
            backend, _, why = str(explain(torch.zeros(1, 1, 1, device=device))).partition(": ")
            choices.add_row(device, backend, escape(why))  # 'multistable[cpu]' is no markup
    console.print(choices)

"""Run a benchmark; report its rows as a table and a JSON file."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from multistable_experiments.files import check_writable, write_atomically
from multistable_experiments.machine import describe

__all__ = ["Row", "run", "table", "write"]


@dataclass(frozen=True)
class Row:
    """One comparison, both sides measured alternately in the same run.

    ``value`` and ``baseline_value`` are in ``unit``. A *cost* is value / baseline_value and should stay below its goal;
    a *gain* is baseline_value / value and should exceed it; a *share* is a gain over a baseline that cannot be beaten.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: float
    baseline: str
    baseline_value: float
    kind: Literal["cost", "gain", "share"] = "cost"
    goal: float | None = None
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        return self.value / self.baseline_value if self.kind == "cost" else self.baseline_value / self.value

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.kind == "cost" else self.ratio >= self.goal

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        unit, value, baseline_value = fields.pop("unit"), fields.pop("value"), fields.pop("baseline_value")
        return fields | {unit: value, f"baseline_{unit}": baseline_value, "ratio": self.ratio, "reached": self.reached}


def run(device: Literal["cpu", "cuda"], out: Path | None, folder: Path, console: Console) -> None:
    """Measure, print a line per row and then the table, and write the file ``out`` (default: named by the device)."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but torch finds no GPU")
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    path = out or folder / f"{name.lower().replace(' ', '-')}.json"
    check_writable("--out", path)  # fail now, not after eight minutes
    rows = []
    for row in import_module(f"multistable_experiments.bench.{device}").rows():
        console.print(f"{row.name} {row.shape}: {row.ratio:.2f}", style="dim", highlight=False)
        rows.append(row)
    console.print(table(rows, f"Speed on {'this CPU' if device == 'cpu' else name}"))
    write(rows, path)
    console.print(f"Results: {path}", soft_wrap=True, markup=False)


def write(rows: Iterable[Row], path: Path) -> None:
    content = {"machine": describe(), "rows": [row.as_dict() for row in rows]}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def table(rows: Iterable[Row], title: str) -> Table:
    table = Table("what", "shape", "dtype", title=title, title_justify="left")
    for heading in ("measured", "baseline", "ratio", "goal"):
        table.add_column(heading, justify="right")
    for row in rows:
        goal = "" if row.goal is None else f"{'≤' if row.kind == 'cost' else '≥'} {row.goal:g}"
        mark = {None: "", True: " [green]reached[/]", False: " [red]missed[/]"}[row.reached]
        table.add_row(
            row.name,
            " x ".join(map(str, row.shape)),
            row.dtype,
            f"{row.value:,.4g} {row.unit}",
            f"{row.baseline} {row.baseline_value:,.4g} {row.unit}",
            f"{row.ratio:.2f}{' x faster' if row.kind == 'gain' else ''}",
            goal + mark,
        )
    return table

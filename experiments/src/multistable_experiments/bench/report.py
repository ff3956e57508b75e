"""What a benchmark hands over: rows, the machine they were measured on, a JSON file and a table."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from multistable_experiments.files import write_atomically
from multistable_experiments.machine import describe

__all__ = ["Row", "run", "table", "write"]


@dataclass(frozen=True)
class Row:
    """One comparison, both sides measured in turns in the same run.

    ``value`` and ``baseline_value`` are in ``unit``. A *cost* is value / baseline_value and should stay below its goal;
    a *gain* is baseline_value / value and should exceed it; a *share* is the same, of a baseline that cannot be beaten.
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


def run(rows: Iterable[Row], device: str, path: Path, console: Console) -> None:
    """Measure, one line of progress per row; then the table and the file."""
    measured = []
    for row in rows:
        console.print(f"{row.name} {row.shape}: {row.ratio:.2f}", style="dim", highlight=False)
        measured.append(row)
    console.print(table(measured, f"Speed on {device}"))
    write(measured, path)
    console.print(f"Results: {path}", soft_wrap=True, markup=False)


def write(rows: Iterable[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": describe(), "rows": [row.as_dict() for row in rows]}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def table(rows: Iterable[Row], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("shape")
    table.add_column("dtype")
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

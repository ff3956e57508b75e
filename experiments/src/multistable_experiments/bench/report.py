"""Run a benchmark; report its rows as a table and a JSON file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from multistable.ops.checks import check_choice
from multistable_experiments.files import DamagedFileError, check_writable, write_atomically
from multistable_experiments.machine import describe

__all__ = ["Row", "run", "table"]


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


def run(
    device: Literal["cpu", "cuda"], out: Path | None, folder: Path, console: Console, parts: Sequence[str] = ()
) -> None:
    """Measure, print a line per row and then the table; write the file ``out`` (default: named by the device).

    It is written after each part, so that nothing is lost if it is interrupted, and says of which commit each part is.
    With ``parts``, only these are measured, and the file keeps the others.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but torch finds no GPU")
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    path = out or folder / f"{name.lower().replace(' ', '-')}.json"
    measures = import_module(f"multistable_experiments.bench.{device}").PARTS
    for part in parts:
        check_choice("--part", part, tuple(measures))
    check_writable("--out", path)  # fail now, not after eight minutes
    read(path, strict=bool(parts))  # raises now if the file cannot keep its other parts
    every: list[Row] = []
    for part in parts or measures:
        rows: list[Row] = []
        for row in measures[part]():
            console.print(f"{row.name} {row.shape}: {row.ratio:.2f}", style="dim", highlight=False)
            rows.append(row)
        content = replace_part(read(path, strict=bool(parts)), part, rows, list(measures))  # others may have written
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
        every += rows
    console.print(table(every, f"Speed on {'this CPU' if device == 'cpu' else name}"))
    console.print(f"Results: {path}", soft_wrap=True, markup=False)


def read(path: Path, strict: bool) -> dict[str, Any]:
    """The content of a file; empty if there is none. Rows of different machines or versions of torch are not mixed:
    such a file, or a damaged one, raises if ``strict`` and counts as empty otherwise."""
    nothing: dict[str, Any] = {"parts": {}, "rows": []}
    if not path.exists():
        return nothing
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = ("gpu", "torch") if content["machine"]["gpu"] else ("processor", "threads", "torch")
        before = {name: content["machine"][name] for name in names}
        content["rows"] = [row for row in content["rows"] if row["part"] in content["parts"]]
    except (KeyError, TypeError, ValueError) as error:
        if not strict:
            return nothing
        raise DamagedFileError(f"{path} is not a file of this benchmark, or damaged: {error!r}") from error
    own = describe()
    for name, value in before.items():
        if value != own[name] and strict:
            raise ValueError(f"{path} is of {name} {value!r}, not {own[name]!r}: give another --out")
        if value != own[name]:
            return nothing
    return content


def replace_part(content: dict[str, Any], part: str, rows: Iterable[Row], order: Sequence[str]) -> dict[str, Any]:
    """Replace the rows of a part in a file's content; sort parts in this order."""
    machine = describe()
    parts = content["parts"] | {part: {name: machine[name] for name in ("commit", "dirty", "date")}}
    others = [row for row in content["rows"] if row["part"] != part and row["part"] in order]
    found = others + [{"part": part, **row.as_dict()} for row in rows]
    return {
        "machine": machine,
        "parts": {name: parts[name] for name in order if name in parts},
        "rows": sorted(found, key=lambda row: order.index(row["part"])),  # a stable sort
    }


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

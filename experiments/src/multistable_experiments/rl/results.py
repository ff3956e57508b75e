"""Results of agents: one JSON file per run, with a checksum, the machine and the commit. Needs no gymnasium."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multistable_experiments.files import read_json, stored_result, write_json

__all__ = ["Walk", "compute", "load", "walks_of"]


@dataclass(frozen=True)
class Walk:
    """What happened in corridors of one length: right and wrong turns, and episodes that strayed before."""

    length: int
    right: int
    wrong: int
    strayed: int

    @property
    def success(self) -> float:
        return self.right / (self.right + self.wrong + self.strayed)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compute(
    runs: Sequence[Any],
    measure: Callable[[Any], dict[str, Any]],
    folder: Path,
    about: dict[str, Any],
    deadline: float | None = None,
) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """Each run, a frozen dataclass with a ``name``, and its result, ``measure(run)`` if there is none yet.

    The result is None for runs that would begin after the deadline. No result is overwritten. ``about`` is this
    machine, described before the first result, which is itself a change of the source tree.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        path, settings = folder / f"{run.name}.json", asdict(run)
        result = stored_result(path, "run", settings)
        if result is None and (deadline is None or time.perf_counter() <= deadline):
            result = {"run": settings, **measure(run), "machine": about}
            write_json(path, result)
        yield run, result


def load(folder: Path) -> list[dict[str, Any]]:
    """All stored results of T-mazes, sorted by name."""
    return [read_json(path) for path in sorted(folder.glob("tmaze-*.json"))]


def walks_of(result: dict[str, Any]) -> list[Walk]:
    return [Walk(**each) for each in result["walks"]]

"""Results of agents: one JSON file per run, with a checksum, the machine and the commit. Needs no gymnasium."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from multistable_experiments.files import read_json, stored_result, write_json

__all__ = ["Run", "Walk", "load", "store", "stored", "walks_of"]


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


class Run(Protocol):
    """A frozen dataclass of everything that decides the numbers of a run; its name is the name of its file."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...


def stored(run: Run, folder: Path) -> dict[str, Any] | None:
    """The result of a run, None if there is none yet; raise if its file holds the result of other settings."""
    return stored_result(folder / f"{run.name}.json", "run", asdict(run))


def store(run: Run, result: dict[str, Any], folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Write the result of a run, with ``about``, the machine, and return it; the stored one if there is one by now."""
    folder.mkdir(parents=True, exist_ok=True)
    if (found := stored(run, folder)) is None:
        write_json(folder / f"{run.name}.json", {"run": asdict(run), **result, "machine": about})
        found = read_json(folder / f"{run.name}.json")
    return found


def load(folder: Path, apart: bool = False) -> list[dict[str, Any]]:
    """All stored results of T-mazes, of agents with a shared critic or with one apart, sorted by name."""
    return [read_json(path) for path in sorted(folder.glob(f"{'apart-' * apart}tmaze-*.json"))]


def walks_of(result: dict[str, Any]) -> list[Walk]:
    return [Walk(**each) for each in result["walks"]]

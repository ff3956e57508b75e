"""The result of a run: one JSON file with what was run, what came out, where, with what and how long it took."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multistable_experiments.files import parse_json, write_atomically
from multistable_experiments.training.checkpoint import CheckpointError, damage_named
from multistable_experiments.training.run import Run

__all__ = ["check_machine", "check_numbers", "folder_of", "note", "read", "write"]

RUN = "run.json"
FILE = "result.json"
FIELDS = {"id", "run", "parameters", "metrics", "history", "seconds", "machine", "options"}


def folder_of(run: Run, out: Path) -> Path:
    """Each run has a folder of its own in ``out``, named by its task and its hash."""
    return out / f"{run.task.name}-{run.id}"


def note(folder: Path, run: Run) -> None:
    """Write ``run.json``. What is there already must be the same: it is not overwritten."""
    path = folder / RUN
    if not path.exists():
        write_atomically(path, (json.dumps(run.to_dict(), indent=1) + "\n").encode())
        return
    with damage_named(path):
        found = parse_json(path)
    if found != run.to_dict():
        raise CheckpointError(f"{path} belongs to another run than {run.id}, or is corrupt; remove it to go on")


def write(folder: Path, run: Run, values: dict[str, Any]) -> dict[str, Any]:
    """Write ``values``, the other fields of a result, with the run itself."""
    result = {"id": run.id, "run": run.to_dict(), **values}
    write_atomically(folder / FILE, (json.dumps(result, indent=1) + "\n").encode())
    return result


def read(folder: Path, run: Run) -> dict[str, Any] | None:
    """The result of a run in its folder, or None as long as the run has not finished."""
    path = folder / FILE
    if not path.exists():
        return None
    with damage_named(path):
        result = parse_json(path)
        if not isinstance(result, dict) or not result.keys() >= FIELDS:
            raise ValueError(f"it must hold {', '.join(sorted(FIELDS))}")
        if (result["id"], result["run"]) != (run.id, run.to_dict()):
            raise ValueError(f"it must hold the run {run.id}")
        check(result, run.task.metric)
    return result


def check(result: dict[str, Any], metric: str) -> None:
    """What is shown and summed up must be there, and be what it is taken for."""
    if "last" not in result["metrics"]:
        raise ValueError("metrics has no last")
    check_numbers("it", result, ["parameters", "seconds"])
    for which, values in result["metrics"].items():
        check_numbers(f"metrics.{which}", values, ["epoch", f"valid_{metric}", "test_loss", f"test_{metric}"])
    losses = [f"{part}_{name}" for part in ("train", "valid") for name in ("loss", metric)]
    for i, epoch in enumerate(result["history"]):
        check_numbers(f"history[{i}]", epoch, ["epoch", *losses, "timesteps_per_second"])
    check_machine(result["machine"])


def check_machine(machine: dict[str, Any]) -> None:
    if missing := {"gpu", "processor", "commit", "dirty"} - machine.keys():
        raise ValueError(f"machine has no {sorted(missing)[0]}")
    words = [machine["gpu"], machine["processor"], machine["commit"], *machine.get("earlier_commits", [])]
    for word in words:
        if not isinstance(word, str | None):
            raise TypeError(f"machine must name its parts and commits in words, got {word!r}")


def check_numbers(where: str, values: dict[str, Any], names: Sequence[str], others: Sequence[str] = ()) -> None:
    """``others`` may be missing."""
    for name in (*names, *(other for other in others if other in values)):
        if name not in values:
            raise ValueError(f"{where} has no {name}")
        if isinstance(values[name], bool) or not isinstance(values[name], int | float):
            raise TypeError(f"{name} in {where} must be a number, got {values[name]!r}")

"""The result of a run: one JSON file with what was run, what came out, where, with what and how long it took."""

import json
from pathlib import Path
from typing import Any

from multistable.files import write_atomically
from multistable.training.checkpoint import damage_named
from multistable.training.config import Run

__all__ = ["folder_of", "read", "write"]

FILE = "result.json"
FIELDS = {"id", "run", "parameters", "metrics", "history", "seconds", "machine", "options"}


def folder_of(run: Run, out: Path) -> Path:
    """Each run has a folder of its own in ``out``, named by its task and its hash."""
    return out / f"{run.task.name}-{run.id}"


def write(folder: Path, run: Run, values: dict[str, Any]) -> dict[str, Any]:
    """Write ``values``, the other fields of a result, with the run itself."""
    result = {"id": run.id, "run": run.to_dict(), **values}
    write_atomically(folder / FILE, (json.dumps(result, indent=1) + "\n").encode())
    return result


def read(folder: Path) -> dict[str, Any] | None:
    """The result in a run's folder, or None as long as the run has not finished."""
    path = folder / FILE
    if not path.is_file():
        return None
    with damage_named(path):
        result = json.loads(path.read_text())
        if not isinstance(result, dict) or not result.keys() >= FIELDS:
            raise ValueError(f"it must hold {', '.join(sorted(FIELDS))}")
    return result

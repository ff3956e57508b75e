"""The result of a run: one JSON file with what was run, what came out, where, with what and how long it took."""

import json
from pathlib import Path
from typing import Any

from multistable.files import write_atomically
from multistable.training.config import Run

__all__ = ["folder_of", "read", "write"]

FILE = "result.json"


def folder_of(run: Run, out: Path) -> Path:
    """Each run has a folder of its own in ``out``, named by its task and its hash."""
    return out / f"{run.task.name}-{run.id}"


def write(folder: Path, run: Run, values: dict[str, Any]) -> dict[str, Any]:
    """Write ``values`` with the run itself."""
    result = {"id": run.id, "run": run.to_dict(), **values}
    write_atomically(folder / FILE, (json.dumps(result, indent=1) + "\n").encode())
    return result


def read(folder: Path) -> dict[str, Any] | None:
    """The result in a run's folder, or None as long as the run has not finished."""
    path = folder / FILE
    return json.loads(path.read_text()) if path.is_file() else None

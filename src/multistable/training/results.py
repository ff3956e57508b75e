"""The result of a run: one JSON file with what was run, what came out, where, with what and how long it took."""

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from multistable import __version__
from multistable.files import write_atomically
from multistable.training.config import Run

__all__ = ["folder_of", "git_commit", "machine", "read", "versions", "write"]

FILE = "result.json"


def folder_of(run: Run, out: Path) -> Path:
    """Each run has a folder of its own in ``out``, named by its task and its hash."""
    return out / f"{run.task.name}-{run.id}"


def write(folder: Path, run: Run, values: dict[str, Any]) -> dict[str, Any]:
    """Add to ``values`` what describes the run and the machine, and write the file."""
    result = {"id": run.id, "run": run.to_dict(), **values, "versions": versions(), "git": git_commit()}
    write_atomically(folder / FILE, (json.dumps(result, indent=1) + "\n").encode())
    return result


def read(folder: Path) -> dict[str, Any] | None:
    """The result in a run's folder, or None as long as the run has not finished."""
    path = folder / FILE
    return json.loads(path.read_text()) if path.is_file() else None


def machine(device: torch.device, processes: int) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": device.type,
        "gpu": gpu,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "multistable": __version__}
    for package in ("torch", "numpy", "numba", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the source tree that runs, with ``+changes`` if files differ from it; None outside a repository."""
    try:
        commit, status = (
            subprocess.run(
                ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "--", "."))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if status else commit

"""What measurements depend on: processor, cores, versions, commit, date."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import multistable

__all__ = ["describe", "source_commit"]


def describe() -> dict[str, Any]:
    """This machine and the software on it; None for what is absent."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "multistable": multistable.__version__,
        **{name: _version(name) for name in ("torch", "numba", "triton")},
        **_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> dict[str, Any]:
    """The commit of the source tree and whether it has changes; None outside a repository of its own.

    A tree that was copied to a machine without its history, or with an older one, is told its commit by
    ``MULTISTABLE_COMMIT``.
    """
    told = os.environ.get("MULTISTABLE_COMMIT")
    status = None if told else _git("status", "--porcelain", "--", ".")
    return {"commit": source_commit(), "dirty": None if status is None else bool(status)}


def source_commit() -> str | None:
    """The commit of the source tree, or the one it was told."""
    return os.environ.get("MULTISTABLE_COMMIT") or _git("rev-parse", "HEAD")


def _git(*args: str) -> str | None:
    """What git says in the source tree; None for an installed package, even inside somebody else's repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()

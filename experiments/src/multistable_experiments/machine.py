"""Describe what measurements depend on: processor, cores, versions, commit, date."""

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
    """This machine and its software; None where something is absent."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "multistable": multistable.__version__,
        **{name: _version(name) for name in ("torch", "numba", "triton")},
        "commit": source_commit(),
        "dirty": _has_changes(),
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


def source_commit() -> str | None:
    """The commit of the source tree; None for an installed package.

    ``MULTISTABLE_COMMIT`` overrides it, for a tree that was copied to another machine without its history.
    """
    return os.environ.get("MULTISTABLE_COMMIT") or _git("rev-parse", "HEAD")


def _has_changes() -> bool | None:
    """True if the source tree differs from its commit; None if unknown."""
    status = None if os.environ.get("MULTISTABLE_COMMIT") else _git("status", "--porcelain", "--", ".")
    return None if status is None else bool(status)


def _git(*args: str) -> str | None:
    """The output of git in the source tree; None for an installed package, even inside another repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        # Without locks: a run that is killed meanwhile would leave one, and the user's next commit would fail.
        command = ["git", "--no-optional-locks", "-C", str(root), *args]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()

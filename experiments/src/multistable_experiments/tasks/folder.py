"""Where data sets lie: the folder named by MULTISTABLE_DATA, or the user's cache folder."""

import os
import sys
from pathlib import Path

__all__ = ["data_folder"]


def data_folder() -> Path:
    """``$MULTISTABLE_DATA`` if set, else the folder ``multistable`` in the platform's folder for caches."""
    if chosen := os.environ.get("MULTISTABLE_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "multistable"

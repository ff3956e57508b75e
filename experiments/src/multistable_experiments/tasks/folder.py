"""Where data sets are: the folder named by MULTISTABLE_DATA, or the user's cache folder."""

import os
import sys
from pathlib import Path

__all__ = ["data_folder"]


def data_folder() -> Path:
    """``$MULTISTABLE_DATA`` if set, else the folder ``multistable`` in the platform's cache folder."""
    if chosen := os.environ.get("MULTISTABLE_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "multistable"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "multistable"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multistable"

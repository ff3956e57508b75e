"""Options that several commands share. Nothing here imports torch, so that ``--help`` is fast."""

from pathlib import Path
from typing import Literal

__all__ = ["DEVICE_HELP", "Recipe", "Scale", "default_folder", "refuse"]

Scale = Literal["smoke", "small", "full"]
Recipe = Literal["paper", "best", "tuned"]
DEVICE_HELP = "auto (a GPU if there is one), cpu, cuda, cuda:1."


def default_folder(name: str) -> Path:
    """``experiments/NAME`` if that folder exists, as in a clone of the repository; otherwise ``NAME``."""
    in_clone = Path("experiments", name)
    return in_clone if in_clone.is_dir() else Path(name)


def refuse(reason: str, **options: object) -> None:
    """Raise if an option is given that has no effect: ``--gpus has no effect without --on``.

    ``options`` are True, or a value that is, where they differ from their defaults.
    """
    if given := [f"--{name}" for name, value in options.items() if value]:
        raise ValueError(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {reason}")

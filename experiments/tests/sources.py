"""Run child processes on this source tree, whatever is installed."""

import os
from pathlib import Path

import multistable
import multistable_experiments

__all__ = ["EXPERIMENTS", "ROOT", "environment"]

EXPERIMENTS = Path(__file__).parents[1]
ROOT = EXPERIMENTS.parent


def environment(**variables: str) -> dict[str, str]:
    """The environment of this process, with both packages on the path."""
    folders = [str(Path(package.__file__).parents[1]) for package in (multistable, multistable_experiments)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)} | variables

"""Runs that are interrupted between two rollouts, and resumed with the same numbers.

A checkpoint has the learner (weights, optimiser, environments, states, random numbers), the notes of its run, and the
commits at which its parts were computed. It is a pickle, because environments are objects of other packages: load only
your own.
"""

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multistable_experiments.files import DamagedFileError, write_atomically
from multistable_experiments.machine import source_commit
from multistable_experiments.rl.ppo import Learner

__all__ = ["Checkpoint", "OutOfTimeError"]

EVERY = 120.0  # seconds; one takes a tenth of a second


class OutOfTimeError(Exception):
    """The deadline has passed; a checkpoint has been written."""


class Checkpoint:
    """The file of one run, None for a run that is not to be resumed, and its deadline by ``time.time()``."""

    def __init__(self, path: Path | None = None, deadline: float | None = None) -> None:
        self.path, self.deadline, self.last = path, deadline, time.time()
        self.commits = [source_commit()]
        """At which the parts of this run were computed; the last is that of this process."""

    def load(self, learner: Learner, notes: dict[str, Any]) -> None:
        """Restore both, if there is a file; ``notes["run"]`` has the settings, which must be those of the file."""
        if self.path is None or not self.path.exists():
            return
        packed = self.path.read_bytes()
        try:
            content = pickle.loads(packed)
            run = content["notes"]["run"]
        except Exception as error:  # damaged bytes may mean anything to pickle
            raise DamagedFileError(f"{self.path} is truncated or corrupt; without it the run begins anew") from error
        if run != notes["run"]:
            raise ValueError(f"{self.path} is a checkpoint of other settings; without it the run begins anew")
        learner.load_state(content["learner"])
        notes.update(content["notes"])
        now = self.commits[-1]
        self.commits = [commit for commit in content.get("commits", []) if commit != now] + [now]
        torch.set_rng_state(content["torch"])
        np.random.set_state(content["numpy"])  # some tasks of POPGym draw from it

    def keep(self, learner: Learner, notes: dict[str, Any]) -> None:
        """Write the file if it is due; raise :class:`OutOfTimeError` if the deadline has passed."""
        over = self.deadline is not None and time.time() > self.deadline
        if self.path is not None and (over or time.time() > self.last + EVERY):
            content = {"learner": learner.state_dict(), "notes": notes, "commits": self.commits}
            content |= {"torch": torch.get_rng_state(), "numpy": np.random.get_state()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, pickle.dumps(content))
            self.last = time.time()
        if over:
            raise OutOfTimeError

    def remove(self) -> None:
        """Remove the file, once the result is stored."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

"""How far the reading of a long test is, in a file: stopped or killed, it goes on from there to the same bits."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from multistable.models import ModelState
from multistable_experiments.paper.experiments import TestAt
from multistable_experiments.training import Options, OutOfTimeError, checkpoint

__all__ = ["Bookmark", "Place"]


class Place(NamedTuple):
    """Between two pieces of a stream."""

    done: int
    """Pieces that have been read."""
    first: ModelState
    """Behind the first timestep."""
    last: ModelState
    """Behind the last piece."""


@dataclass
class Bookmark:
    """Written as the checkpoints of a training are: every ``options.checkpoint_seconds``, and at the deadline."""

    path: Path
    test: TestAt
    weights: str
    """A checksum of those of the model. What another test or model left is not looked at."""
    options: Options
    seconds: float = 0.0
    """Spent on the test by earlier processes."""
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.saved_at = self.started
        self.of = {"test": asdict(self.test), "weights": self.weights}

    def find(self, device: torch.device | str) -> Place | None:
        """Where to go on, if the test was begun."""
        if not self.path.exists():
            return None
        tensors, info = checkpoint.load(self.path, "remove it to begin its test anew")
        if info["of"] != self.of:
            return None
        self.seconds = info["seconds"]
        cells = range(len(tensors) // 2 - 1)
        first, last = (
            ModelState(tensors[f"{name}.position"], tuple(tensors[f"{name}.{i}"] for i in cells)).to(device)
            for name in ("first", "last")
        )
        return Place(info["done"], first, last)

    def look(self, place: Place) -> None:
        """Write the place if it is time. Raises ``OutOfTimeError`` at the deadline."""
        now, end = time.perf_counter(), self.options.deadline
        over = end is not None and now >= end
        if not over and now - self.saved_at < self.options.checkpoint_seconds:
            return
        tensors = {}
        for name, state in (("first", place.first), ("last", place.last)):
            tensors[f"{name}.position"] = state.position.clone()  # the two may be one, which safetensors refuses
            tensors |= {f"{name}.{i}": h.clone() for i, h in enumerate(state.cells)}
        info = {"of": self.of, "done": place.done, "seconds": self.seconds + now - self.started}
        checkpoint.save(self.path, tensors, info)
        self.saved_at = time.perf_counter()
        if over:
            raise OutOfTimeError(f"no time left to test at {self.test.length} timesteps, behind piece {place.done}")

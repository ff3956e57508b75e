"""The task: one pixel per timestep, and at the end the answer whether one snake joins the two markers."""

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from multistable.ops.checks import check_sizes
from multistable_experiments.tasks.base import Classification, Pooling, Samples, Split
from multistable_experiments.tasks.folder import data_folder
from multistable_experiments.tasks.pathfinder import splits
from multistable_experiments.tasks.pathfinder.settings import settings

__all__ = ["PAPER_MEAN", "PAPER_STD", "Pathfinder", "compact_file", "moments", "release_folder"]

PAPER_MEAN, PAPER_STD = 10.94, 38.51
"""The paper's constants. They fit no documented setting of the hard level: docs/pathfinder.md."""

_RULES = {"paper": splits.paper_split, "lra": splits.lra_split, "s4": splits.s4_split}
_CHUNK = 4096


@dataclass(frozen=True)
class Pathfinder(Classification):
    """The paper's section "Pathfinder", to be read in both directions with 16-dimensional positions.

    ``x [B, 1024, 1]``: the pixels of a 32x32 image in reading order as ``(p - mean) / std``, p in 0 to 255, with mean
    and standard deviation of this training set (the paper does the same with its own). Target: 1 if one snake joins the
    markers. The prediction is the mean of the outputs of all timesteps. Pixels stay bytes on the device.

    The images are independent of each other, so the sets are the same for every seed of a run.
    """

    name = "pathfinder"
    d_input = 1
    d_output = 2
    pooling: ClassVar[Pooling] = "mean"

    level: Literal["easy", "intermediate", "hard"] = "hard"
    size: Literal[32, 64, 128] = 32
    source: Literal["generated", "release"] = "generated"
    """The compact file that ``multistable data pathfinder`` writes, or the folder of the Long Range Arena's release."""
    images: int = 200_000
    """How many images are used, from the first on, for all sets together; fewer for a quick look. The easy level of the
    release has 199,999 (one of its files is empty)."""
    rule: Literal["paper", "lra", "s4"] = "paper"
    """How the sets are chosen: ``splits.py``."""

    def __post_init__(self) -> None:
        settings(self.level, size=self.size)
        check_sizes(10, images=self.images)
        for name, choices in (("source", ("generated", "release")), ("rule", tuple(_RULES))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

    @property
    def length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.size * self.size

    def samples(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Samples:
        pixels, labels = _load(self)
        rows = self._rows(split)
        return Samples(pixels[rows].to(device), labels[rows].long().to(device))

    def inputs(self, stored: Tensor) -> Tensor:
        mean, std = self.statistics()
        return ((stored.to(torch.float32) - mean) / std).unsqueeze(-1)

    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation of the pixels of the training set."""
        return _statistics(self)

    def report(self) -> str:
        """Sizes of the sets, and the training set's mean and standard deviation beside those of the paper."""
        sizes = " / ".join(f"{len(self._rows(split)):,}" for split in ("train", "valid", "test"))
        mean, std = self.statistics()
        return (
            f"train / valid / test: {sizes} images; pixels of the training set: mean {mean:.2f}, standard deviation "
            f"{std:.2f} (the paper: {PAPER_MEAN}, {PAPER_STD})"
        )

    def _rows(self, split: Split) -> Tensor:
        train, valid, test = _RULES[self.rule](self.images)
        return {"train": train, "valid": valid, "test": test}[split]


def compact_file(level: str, size: int = 32) -> Path:
    """Where the generated images of a level are looked for."""
    return data_folder() / "pathfinder" / f"{level}{size}.npz"


def release_folder(size: int = 32) -> Path:
    """Where the release, unpacked in the data folder, has the images of a size."""
    return data_folder() / "lra_release" / "lra_release" / f"pathfinder{size}"


@lru_cache(maxsize=1)
def _load(task: Pathfinder) -> tuple[Tensor, Tensor]:
    """Pixels ``[images, T]`` and labels ``[images]``, uint8; kept, because every set is a part of them."""
    if task.source == "release":
        from multistable_experiments.tasks.pathfinder import lra

        path = release_folder(task.size)
        images, labels = lra.read(path, task.level)
    else:
        from multistable_experiments.tasks.pathfinder.compact import read_strokes
        from multistable_experiments.tasks.pathfinder.strokes import first, render

        path = compact_file(task.level, task.size)
        if not path.exists():
            command = f"multistable data pathfinder --level {task.level} --size {task.size}"
            raise FileNotFoundError(f"{path} does not exist: write it with `{command}`")
        origin, glyphs, strokes = read_strokes(path)
        if origin.settings != settings(task.level, size=task.size):
            raise ValueError(f"{path} holds {origin}, expected {task.level} images with the settings of LRA")
        images, labels = render(glyphs, first(strokes, task.images)), strokes.label
    if len(images) < task.images:
        raise ValueError(
            f"{path} holds {len(images)} images of the level {task.level}, expected {task.images} (images)"
        )
    pixels = torch.from_numpy(images[: task.images]).flatten(1)
    return pixels, torch.from_numpy(labels[: task.images])


@lru_cache(maxsize=8)
def _statistics(task: Pathfinder) -> tuple[float, float]:
    return moments(_load(task)[0][task._rows("train")])


def moments(pixels: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of bytes, from their histogram: exact, and in little memory."""
    histogram = torch.zeros(256, dtype=torch.float64)
    for part in pixels.split(_CHUNK):
        histogram += torch.bincount(part.flatten(), minlength=256)
    share = histogram / histogram.sum()
    levels = torch.arange(256, dtype=torch.float64)
    mean = float(share @ levels)
    return mean, math.sqrt(float(share @ (levels - mean).square()))

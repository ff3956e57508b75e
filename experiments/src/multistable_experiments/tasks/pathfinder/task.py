"""The Pathfinder task: one pixel per timestep; at the end, say whether one snake joins the two markers."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from multistable.ops.checks import check_sizes
from multistable_experiments.files import DamagedFileError
from multistable_experiments.tasks.base import Classification, Pooling, Samples, Split
from multistable_experiments.tasks.pathfinder.settings import SIZE, settings

__all__ = ["PAPER_MEAN", "PAPER_STD", "Pathfinder", "moments", "split_rows"]

PAPER_MEAN, PAPER_STD = 10.94, 38.51
"""The paper's constants. They fit no documented setting of the hard level: docs/pathfinder.md."""


@dataclass(frozen=True)
class Pathfinder(Classification):
    """The paper's section "Pathfinder", for models that read in both directions with 16-dimensional positions.

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
    size: Literal[32] = SIZE
    source: Literal["generated", "release"] = "generated"
    """The file that ``multistable data pathfinder`` writes, or the folder of the Long Range Arena's release."""
    images: int = 200_000
    """Number of images used, from the first one, all sets together. The easy level of the release has 199,999 (one of
    its files is empty)."""
    rule: Literal["paper", "lra", "s4"] = "paper"
    """How the sets are chosen: :func:`split_rows`."""
    more_images: int = 0
    """Images after these that train, too; validation and test set stay what they are."""
    augmented: bool = False
    """Whether each training image is rotated and mirrored at random, in one of eight ways, whenever it is used."""

    def __post_init__(self) -> None:
        settings(self.level)
        check_sizes(10, images=self.images)
        check_sizes(0, more_images=self.more_images)
        choices = {"size": (SIZE,), "source": ("generated", "release"), "rule": ("paper", "lra", "s4")}
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {', '.join(map(str, values))}, got {getattr(self, name)!r}")

    @property
    def length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return SIZE * SIZE

    def samples(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Samples:
        pixels, labels = _load(self)
        rows = split_rows(self.images, self.rule)[("train", "valid", "test").index(split)]
        if split == "train" and self.more_images:
            rows = torch.cat([rows, torch.arange(self.images, self.images + self.more_images)])
        return Samples(pixels[rows].to(device), labels[rows].long().to(device))

    def augment(self, stored: Tensor) -> Tensor:
        if not self.augmented:
            return stored
        ways = torch.randint(8, (len(stored), 1), device=stored.device)
        return stored.gather(1, symmetries(stored.device)[ways[:, 0]])

    def inputs(self, stored: Tensor) -> Tensor:
        mean, std = self.statistics()
        return ((stored.to(torch.float32) - mean) / std).unsqueeze(-1)

    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation of the pixels of the training set."""
        return _statistics(self)

    def report(self) -> str:
        """Sizes of the sets, and the training set's mean and standard deviation beside those of the paper."""
        sizes = " / ".join(f"{len(rows):,}" for rows in split_rows(self.images, self.rule))
        mean, std = self.statistics()
        return (
            f"train / valid / test: {sizes} images; pixels of the training set: mean {mean:.2f}, standard deviation "
            f"{std:.2f} (the paper: {PAPER_MEAN}, {PAPER_STD})"
        )


def symmetries(device: torch.device | str = "cpu") -> Tensor:
    """``[8, T]``: in which order to read the pixels of a rotated or mirrored image."""
    image = torch.arange(SIZE * SIZE, device=device).view(SIZE, SIZE)
    turned = [image.rot90(k) for k in range(4)]
    return torch.stack([way.flatten() for x in turned for way in (x, x.flip(1))])


def split_rows(n: int, rule: str = "paper") -> tuple[Tensor, ...]:
    """Which of n images train, validate and test.

    - ``paper``: the last tenth tests (the paper does not describe its test set); of the rest 90 % train, 10 % validate
    - ``lra``: the first 80 % train, the next 10 % validate, the last 10 % test
    - ``s4`` (also S5, LRU): ``torch.utils.data.random_split`` with seed 42; 10 % validate, 10 % test, the rest train

    >>> [len(rows) for rows in split_rows(200_000)]
    [162000, 18000, 20000]
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(42)) if rule == "s4" else torch.arange(n)
    tenth = n // 10
    ends = {
        "paper": (round((n - tenth) * 0.9), n - tenth),
        "lra": (round(n * 0.8), round(n * 0.9)),
        "s4": (n - 2 * tenth, n - tenth),
    }
    return order.tensor_split(ends[rule])


@lru_cache(maxsize=1)
def _load(task: Pathfinder) -> tuple[Tensor, Tensor]:
    """Pixels ``[images, T]`` and labels ``[images]``, uint8; cached, because every set is a part of them."""
    count = task.images + task.more_images
    if task.source == "release":
        from multistable_experiments.tasks.pathfinder import release

        path, remedy = release.release_folder(), ""
        images, labels = release.read(path, task.level)
    else:
        from multistable_experiments.tasks.pathfinder import generated

        path = generated.generated_file(task.level)
        enough = f" --count {count}" if count > Pathfinder.images else ""
        remedy = f": write it with `multistable data pathfinder --level {task.level}{enough}`"
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist{remedy}")
        level, _, labels, images = generated.read(path)
        if level != task.level:
            raise DamagedFileError(f"{path} must hold {task.level} images, got {level} ones")
    if len(images) < count:
        raise DamagedFileError(f"{path} holds {len(images)} images of the level {task.level}, expected {count}{remedy}")
    return torch.from_numpy(images[:count]).flatten(1), torch.from_numpy(labels[:count])


@lru_cache(maxsize=8)
def _statistics(task: Pathfinder) -> tuple[float, float]:
    return moments(_load(task)[0][split_rows(task.images, task.rule)[0]])


def moments(pixels: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of bytes, from their histogram: exact, and in little memory."""
    histogram = torch.zeros(256, dtype=torch.float64)
    for part in pixels.split(4096):
        histogram += torch.bincount(part.flatten(), minlength=256)
    share = histogram / histogram.sum()
    values = torch.arange(256, dtype=torch.float64)
    mean = float(share @ values)
    return mean, math.sqrt(float(share @ (values - mean).square()))

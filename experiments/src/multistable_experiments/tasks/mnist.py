"""Sequential MNIST: one pixel per timestep, permuted or in reading order, with black pixels at the end."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.ops.checks import check_sizes
from multistable_experiments.tasks import idx
from multistable_experiments.tasks.base import Classification, Samples, Split, split_sizes
from multistable_experiments.tasks.folder import data_folder
from multistable_experiments.tasks.seeds import generator

__all__ = ["MNIST", "PERMUTATION_SEED", "load", "permutation"]

PIXELS = 28 * 28

PERMUTATION_SEED = 0
"""The paper does not give its permutation: ours is ``permutation()``, the same in all runs whatever their seed."""

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

FILES = {
    ("train", "images"): idx.IDXFile(
        "train-images-idx3-ubyte",
        sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        sha256_gz="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    ("train", "labels"): idx.IDXFile(
        "train-labels-idx1-ubyte",
        sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        sha256_gz="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    ("test", "images"): idx.IDXFile(
        "t10k-images-idx3-ubyte",
        sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        sha256_gz="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    ("test", "labels"): idx.IDXFile(
        "t10k-labels-idx1-ubyte",
        sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        sha256_gz="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}


@dataclass(frozen=True)
class MNIST(Classification):
    """The paper's section "Permuted sequential MNIST".

    ``x [B, T, 1]``: the 784 pixels as ``p / 255 - 0.5``, then ``black_pixels`` pixels of value -0.5 (p = 0). Target:
    the digit. The 60,000 training images are shuffled by the run's seed and split 90 % / 10 %; the pixels stay bytes on
    the device and are normalised batch by batch.
    """

    name = "mnist"
    d_input = 1
    d_output = 10

    black_pixels: int = 0
    permuted: bool = True
    train_samples: int = 60_000
    """Images for training and validation together; fewer than 60,000 for a quick look."""
    test_samples: int = 10_000

    def __post_init__(self) -> None:
        check_sizes(0, black_pixels=self.black_pixels)
        check_sizes(1, test_samples=self.test_samples)
        check_sizes(2, train_samples=self.train_samples)

    @property
    def length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return PIXELS + self.black_pixels

    def samples(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Samples:
        images, labels = load("test" if split == "test" else "train")
        if split == "test":
            rows = torch.arange(min(self.test_samples, len(images)))
        else:
            shuffled = torch.randperm(len(images), generator=generator(seed, self.name, "split"))[: self.train_samples]
            train, _ = split_sizes(len(shuffled))
            rows = shuffled[:train] if split == "train" else shuffled[train:]
        pixels = images[rows]
        if self.permuted:
            pixels = pixels[:, permutation()]
        return Samples(pixels.to(device), labels[rows].long().to(device))

    def inputs(self, stored: Tensor) -> Tensor:
        pixels = F.pad(stored, (0, self.black_pixels))  # [B, T], bytes: a quarter of the traffic of floats
        return (pixels.to(torch.float32) / 255 - 0.5).unsqueeze(-1)


def load(part: str) -> tuple[Tensor, Tensor]:
    """Images ``[S, 784]`` and labels ``[S]``, uint8, of ``"train"`` or ``"test"``; downloaded if they are not there."""
    return _load(FILES[part, "images"], FILES[part, "labels"], data_folder() / "mnist")


@lru_cache(maxsize=2)
def _load(images: idx.IDXFile, labels: idx.IDXFile, folder: Path) -> tuple[Tensor, Tensor]:
    """Cached, because every set of every run is a part of them, and unpacking and checking takes half a second."""
    for file in (images, labels):
        if idx.find(file, folder) is None:
            idx.download(file, folder, MIRRORS)
    return idx.read(images, folder).flatten(1), idx.read(labels, folder)


def permutation() -> Tensor:
    """The order ``[784]`` in which pixels are read: position t shows pixel ``permutation()[t]``."""
    return torch.randperm(PIXELS, generator=generator(PERMUTATION_SEED, "mnist permutation"))

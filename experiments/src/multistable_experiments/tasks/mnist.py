"""Sequential MNIST: one pixel per timestep, permuted or in reading order, with a tail of other pixels at the end."""

import gzip
import hashlib
import http.client
import io
import urllib.request
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.ops.checks import check_sizes
from multistable_experiments.files import write_atomically
from multistable_experiments.tasks.base import Classification, Samples, Split, split_sizes
from multistable_experiments.tasks.folder import data_folder
from multistable_experiments.tasks.seeds import generator

__all__ = ["MNIST", "PERMUTATION_SEED", "DataError", "Tail", "TailPixels", "load", "permutation"]

PIXELS = 28 * 28

PERMUTATION_SEED = 0
"""The paper does not give its permutation: ours is ``permutation()``, the same in all runs whatever their seed."""

Tail = Literal["black", "random", "images"]
"""What follows an image: black pixels, uniformly random ones, or the pixels of other images in the same order."""
RANDOM_PIXELS = 1 << 22
"""The random tails of all images are stretches of one sequence of so many pixels, each image's from a place of its own:
a tail of a million steps needs no memory of its own, and is the same on every device."""

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
TIMEOUT_SECONDS = 30
LARGEST = 50_000_000
"""The most bytes to download or to unpack; the largest file has 47,040,016 bytes."""

FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Names of the files and the sha256 of their unpacked content."""


class DataError(ValueError):
    """A data file is missing, damaged, or cannot be downloaded."""


@dataclass(frozen=True)
class MNIST(Classification):
    """The paper's section "Permuted sequential MNIST".

    ``x [B, T, 1]``: the 784 pixels as ``p / 255 - 0.5``, then the tail, in the paper ``black_pixels`` pixels of value
    -0.5 (p = 0). Target: the digit. The 60,000 training images are shuffled by the run's seed and split 90 % / 10 %;
    the pixels stay bytes on the device and are normalised batch by batch.
    """

    name = "mnist"
    d_input = 1
    d_output = 10

    black_pixels: int = 0
    permuted: bool = True
    train_samples: int = 60_000
    """Images for training and validation together; fewer than 60,000 for a quick look."""
    test_samples: int = 10_000
    tail: Tail = "black"
    """What the ``black_pixels`` pixels after the image are."""

    def __post_init__(self) -> None:
        if self.tail not in get_args(Tail):
            raise ValueError(f"tail must be one of {', '.join(get_args(Tail))}, got {self.tail!r}")
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
        if self.tail != "black" and self.black_pixels:
            tail = TailPixels(self.tail, pixels, generator(seed, self.name, "tail", split))
            pixels = torch.cat([pixels, tail(0, self.black_pixels)], dim=1)
        return Samples(pixels.to(device), labels[rows].long().to(device))

    def augment(self, stored: Tensor) -> Tensor:
        """Give each image the tail of another one of the batch, so that no tail tells its label."""
        return torch.cat([stored[:, :PIXELS], stored[:, PIXELS:].roll(1, dims=0)], dim=1)

    def inputs(self, stored: Tensor) -> Tensor:
        black = self.black_pixels if self.tail == "black" else 0  # other tails are stored
        return normalise(F.pad(stored, (0, black)))  # padded as bytes: a quarter of the traffic of floats


def normalise(pixels: Tensor) -> Tensor:
    """Bytes ``[B, T]`` to inputs ``[B, T, 1]``: ``p / 255 - 0.5``."""
    return (pixels.to(torch.float32) / 255 - 0.5).unsqueeze(-1)


class TailPixels:
    """The tails of a set of images ``[S, 784]``: ``tail(start, stop)`` are their pixels from ``start`` to ``stop``,
    bytes ``[S, stop - start]``, however long the tail is.

    Tails of ``"images"`` are the following images of the set, the first after the last.
    """

    def __init__(self, kind: Tail, images: Tensor, random: torch.Generator) -> None:
        S = len(images)
        if kind == "images":
            self.pixels, first = images.flatten(), PIXELS * (torch.arange(S) + 1)
        elif kind == "random":
            self.pixels = torch.randint(256, (RANDOM_PIXELS,), dtype=torch.uint8, generator=random)
            first = torch.randint(RANDOM_PIXELS, (S,), generator=random)
        else:
            self.pixels, first = torch.zeros(1, dtype=torch.uint8), torch.zeros(S, dtype=torch.int64)
        self.pixels = self.pixels.to(images.device)
        self.first = first.to(images.device)

    def __call__(self, start: int, stop: int, rows: slice = slice(None)) -> Tensor:
        """Tails of the images ``rows`` only."""
        steps = torch.arange(start, stop, device=self.first.device)
        return self.pixels[(self.first[rows, None] + steps) % len(self.pixels)]


def permutation() -> Tensor:
    """The order ``[784]`` in which pixels are read: position t shows pixel ``permutation()[t]``."""
    return torch.randperm(PIXELS, generator=generator(PERMUTATION_SEED, "mnist permutation"))


def load(part: str) -> tuple[Tensor, Tensor]:
    """Images ``[S, 784]`` and labels ``[S]``, uint8, of ``"train"`` or ``"test"``; downloaded if they are missing."""
    return _load({"train": "train", "test": "t10k"}[part], data_folder() / "mnist")


@lru_cache(maxsize=2)
def _load(prefix: str, folder: Path) -> tuple[Tensor, Tensor]:
    """Cached, because every set of every run is a part of them, and unpacking and checking takes half a second."""
    contents = (_read(f"{prefix}-{kind}-ubyte", folder) for kind in ("images-idx3", "labels-idx1"))
    images, labels = (torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents)
    return images[16:].view(-1, PIXELS), labels[8:]  # after the headers: 4 bytes for the type, 4 for each size


def _read(name: str, folder: Path) -> bytes:
    """The content of ``folder/name`` or ``folder/name.gz``; downloaded if neither exists."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            try:
                return _unpack(name, path.read_bytes(), packed=path.suffix == ".gz")
            except DataError as error:
                raise DataError(f"{path} is damaged: {error}; remove it to download it again") from error
    return _download(name, folder)


def _unpack(name: str, content: bytes, packed: bool = True) -> bytes:
    """Raise unless the unpacked content has the checksum of this file."""
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(LARGEST) if packed else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"not a whole gzip file ({error})") from error
    if (found := hashlib.sha256(content).hexdigest()) != FILES[name]:
        raise DataError(f"its sha256 is {found}, expected {FILES[name]}")
    return content


def _download(name: str, folder: Path) -> bytes:
    """Download ``name.gz`` from the first mirror that has it; a failed attempt leaves nothing behind."""
    failures = []
    for mirror in MIRRORS:
        url = f"{mirror}{name}.gz"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                packed = response.read(LARGEST)
            content = _unpack(name, packed)
        except (OSError, http.client.HTTPException, DataError) as error:
            failures.append(f"{url}: {error}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{name}.gz", packed)
        return content
    raise DataError(
        f"{name}.gz could not be downloaded; put it into {folder}, or set MULTISTABLE_DATA to the folder that holds "
        f"mnist/{name}.gz. Tried:\n  " + "\n  ".join(failures)
    )

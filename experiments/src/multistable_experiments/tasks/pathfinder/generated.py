"""The file of generated images: one compressed ``.npz`` per level. 200,000 hard images take 59 MB and 1 s to read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multistable_experiments.files import DamagedFileError, whole_file
from multistable_experiments.tasks.folder import data_folder
from multistable_experiments.tasks.pathfinder.settings import SIZE, settings

__all__ = ["Generated", "generate", "generated_file", "read"]

BATCH = 1000  # images that share a stream of random numbers
LARGEST = 1 << 31
"""The most bytes of an unpacked file: two million images."""


class Generated(NamedTuple):
    """Images of a level and the seed they were drawn with."""

    level: str
    seed: int
    labels: NDArray[np.uint8]
    """``[n]``: 1 if one snake joins the markers."""
    images: NDArray[np.uint8]
    """``[n, 32, 32]``."""

    def __str__(self) -> str:
        return f"{len(self.labels)} {self.level} images of seed {self.seed}"


def generated_file(level: str) -> Path:
    """Where the generated images of a level are looked for."""
    return data_folder() / "pathfinder" / f"{level}32.npz"


def generate(path: Path, level: str, seed: int = 0, count: int = 200_000, jobs: int = 1) -> Iterator[int]:
    """Draw images with ``jobs`` threads and write them to ``path``; yield the size of each finished batch.

    The images depend on level and seed alone. A file that already holds them is left as it is.
    """
    s = settings(level)
    for name, value, least in (("count", count, 1), ("jobs", jobs, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if path.exists():
        found = read(path)
        if (found.level, found.seed, len(found.labels)) != (level, seed, count):
            raise ValueError(f"{path} holds {found}, expected {count} {level} images of seed {seed}: remove it first")
        yield count
        return
    from multistable_experiments.tasks.pathfinder.generator import draw, prepare  # compiles: only to draw images

    prepare(s)  # once, before several threads need it
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [min(BATCH, count - start) for start in range(0, count, BATCH)]
    batches = []
    pool = ThreadPoolExecutor(jobs)
    try:
        for batch in pool.map(lambda i: draw(s, seed, i, sizes[i]), range(len(sizes))):
            batches.append(batch)
            yield len(batch[1])
    finally:
        pool.shutdown(cancel_futures=True)
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    with whole_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, level=np.array(level), seed=np.array(seed), labels=labels, images=images)


def read(path: Path) -> Generated:
    """Read what :func:`generate` wrote; the zip format has checksums."""
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                if (size := sum(member.file_size for member in arrays.zip.infolist())) > LARGEST:
                    raise ValueError(f"it would unpack to {size:,} bytes, the most is {LARGEST:,}")
                found = Generated(str(arrays["level"]), int(arrays["seed"]), arrays["labels"], arrays["images"])
            check(found)
            return found
        except Exception as error:  # numpy and zipfile raise many kinds for the ways in which a file can be broken
            raise DamagedFileError(
                f"{path} is damaged or not a Pathfinder file: {error}; remove it and run `multistable data pathfinder`"
            ) from error


def check(found: Generated) -> None:
    """Raise unless arrays of a file have the types, shapes and values of generated images."""
    level, _, labels, images = found
    settings(level)
    if labels.dtype != np.uint8 or labels.ndim != 1 or (labels > 1).any():
        raise ValueError(f"labels must be bytes 0 or 1, one per image, got {labels.dtype} {list(labels.shape)}")
    if images.dtype != np.uint8 or images.shape != (len(labels), SIZE, SIZE):
        expected = [len(labels), SIZE, SIZE]
        raise ValueError(f"images must be bytes {expected}, got {images.dtype} {list(images.shape)}")

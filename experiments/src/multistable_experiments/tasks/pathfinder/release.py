"""Read the Long Range Arena's release of Pathfinder: PNG images and text metadata, in batches.

::

    pathfinder32/curv_contour_length_14/imgs/<batch>/sample_<i>.png     8-bit grey
    pathfinder32/curv_contour_length_14/metadata/<batch>.npy            text: one line per image, 11 columns

Of the columns a reader needs 0 (folder), 1 (file) and 3 (label). Despite their names metadata are not numpy files.
A release may come from anybody: only regular files below its folder are read, and only as PNG of 32x32 pixels.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from multistable_experiments.files import DamagedFileError
from multistable_experiments.tasks.folder import data_folder
from multistable_experiments.tasks.pathfinder.settings import SIZE, settings

__all__ = ["read", "release_folder"]

EMPTY = "curv_baseline/imgs/0/sample_172.png"
"""An empty file of the release, left out."""


def release_folder() -> Path:
    """Where the release, unpacked in the data folder, has its 32x32 images."""
    return data_folder() / "lra_release" / "lra_release" / "pathfinder32"


def read(folder: Path, level: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images ``[n, 32, 32]`` and labels ``[n]`` of a level in the order of batches and lines, as in S4's loader."""
    root = folder / settings(level).folder
    paths = [path for path in (root / "metadata").glob("*.npy") if path.is_file() and path.stem.isdecimal()]
    paths.sort(key=lambda path: int(path.stem))
    if not paths:
        raise FileNotFoundError(f"{root / 'metadata'} holds no metadata: unpack the release into the data folder")
    entries = [entry for path in paths for entry in _read_metadata(root, path)]
    images = np.empty((len(entries), SIZE, SIZE), np.uint8)
    for image, (path, _) in zip(images, entries, strict=True):
        image[:] = _read_image(path)
    return images, np.array([label for _, label in entries], np.uint8)


def _read_metadata(root: Path, path: Path) -> list[tuple[Path, int]]:
    """Paths and labels of the images of a batch."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        entries = [(Path(r[0], r[1]), ("0", "1").index(r[3])) for r in rows]
    except (ValueError, IndexError) as error:
        raise DamagedFileError(
            f"{path} must be text with folder, file, number and label (0 or 1) in each line"
        ) from error
    for name, _ in entries:
        if name.is_absolute() or ".." in name.parts:
            raise DamagedFileError(f"{path} must name files below its folder, got {name}")
    return [(root / name, label) for name, label in entries if f"{root.name}/{name.as_posix()}" != EMPTY]


def _read_image(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise ValueError("it is not a file")
        with Image.open(path, formats=["PNG"]) as image:  # other formats start other programs
            if image.size != (SIZE, SIZE):  # before decoding: a file of a few kB may hold gigabytes of pixels
                raise ValueError(f"it must have {SIZE}x{SIZE} pixels, got {image.size}")
            image.verify()  # checksums, which decoding ignores; the image has to be opened again
        with Image.open(path, formats=["PNG"]) as image:
            return np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DamagedFileError(f"{path} cannot be read as an image: {error}") from error

"""The folder format of the Long Range Arena release: PNG images and text metadata, in batches.

::

    pathfinder32/curv_contour_length_14/imgs/<batch>/sample_<i>.png     8-bit grey
    pathfinder32/curv_contour_length_14/metadata/<batch>.npy            text: one line per image, 11 columns

Columns: folder, file, number, label, continuity, contour length, distractor length, paddle length, paddle thickness,
margin, number of paddle contrasts. A reader needs columns 0, 1 and 3. Despite their names metadata are not numpy files.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multistable_experiments.files import whole_file, whole_folder
from multistable_experiments.tasks.pathfinder.settings import FOLDERS, Settings

__all__ = ["BLACKLIST", "has_batch", "read", "write_batch"]

BLACKLIST = {"curv_baseline/imgs/0/sample_172.png"}
"""An empty file of the release."""
_COLUMNS = 11


def write_batch(
    folder: Path,
    s: Settings,
    batch: int,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    margins: NDArray[np.uint8],
) -> None:
    """Write one batch of a level below ``folder`` (usually pathfinder32); metadata last: they say that it is whole."""
    root = folder / FOLDERS[s.level]
    (root / "metadata").mkdir(parents=True, exist_ok=True)
    with whole_folder(root / "imgs" / str(batch)) as part:
        for i, image in enumerate(images):
            Image.fromarray(image).save(part / f"sample_{i}.png")
    with whole_file(_metadata(root, batch)) as part:
        lines = (_line(s, batch, i, int(y), int(m)) for i, (y, m) in enumerate(zip(labels, margins, strict=True)))
        part.write_text("".join(lines), encoding="utf-8")


def has_batch(folder: Path, s: Settings, batch: int) -> bool:
    """Whether a batch has been written."""
    return _metadata(folder / FOLDERS[s.level], batch).exists()


def read(folder: Path, level: str = "hard") -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images ``[n, S, S]`` and labels ``[n]`` of a level in the order of batches and lines, as S4's loader has them."""
    if level not in FOLDERS:
        raise ValueError(f"level must be one of {', '.join(FOLDERS)}, got {level!r}")
    root = folder / FOLDERS[level]
    if not (root / "metadata").is_dir():
        raise FileNotFoundError(f"{root / 'metadata'} does not exist: give the folder that holds {FOLDERS[level]}")
    images, labels = [], []
    for batch in range(_count_batches(root)):
        paths, found = _read_metadata(root, batch)
        images.append(_read_images(paths))
        labels.append(found)
    shapes = {batch.shape[1:] for batch in images}
    if len(shapes) > 1:
        raise ValueError(f"{root} holds images of different sizes: {', '.join(map(str, sorted(shapes)))}")
    return np.concatenate(images), np.concatenate(labels)


def _metadata(root: Path, batch: int) -> Path:
    return root / "metadata" / f"{batch}.npy"


def _line(s: Settings, batch: int, i: int, label: int, margin: int) -> str:
    made = (s.continuity, s.contour_length, s.distractor_length, s.paddle_length, s.paddle_thickness, margin, 1)
    return " ".join(map(str, (f"imgs/{batch}", f"sample_{i}.png", i, label, *made))) + "\n"


def _count_batches(root: Path) -> int:
    """Batches are numbered from 0 without gaps, each with a folder of images; otherwise say what is missing."""
    numbers = {int(path.stem) for path in (root / "metadata").glob("*.npy") if path.stem.isdigit()}
    folders = {int(path.name) for path in (root / "imgs").glob("*") if path.name.isdigit()}
    if not numbers and not folders:
        raise FileNotFoundError(f"{root / 'metadata'} holds no metadata, expected 0.npy and so on")
    count = max(numbers | folders) + 1
    for batch in range(count):
        if batch not in numbers:
            raise FileNotFoundError(f"{_metadata(root, batch)} is missing: a batch of {count} is not there")
        if batch not in folders:
            raise FileNotFoundError(f"{root / 'imgs' / str(batch)} is missing: a batch of {count} is not there")
    return count


def _read_metadata(root: Path, batch: int) -> tuple[list[Path], NDArray[np.uint8]]:
    """Paths and labels of the images of a batch, less those of the blacklist."""
    path = _metadata(root, batch)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}") from error
    paths, labels = [], []
    for number, line in enumerate(lines, start=1):
        columns = line.split()
        if len(columns) != _COLUMNS or columns[3] not in ("0", "1"):
            raise ValueError(
                f"{path}, line {number}: {line[:80]!r}, expected 11 columns with a label 0 or 1 in the fourth"
            )
        if f"{root.name}/{columns[0]}/{columns[1]}" not in BLACKLIST:
            paths.append(root / columns[0] / columns[1])
            labels.append(int(columns[3]))
    if not paths:
        raise ValueError(f"{path} is empty, expected a line for each image")
    there = sum(1 for _ in (root / "imgs" / str(batch)).glob("*.png"))
    if there > len(lines):  # cut off at the end of a line
        raise ValueError(f"{path} names {len(lines)} images, expected the {there} of imgs/{batch}")
    return paths, np.array(labels, np.uint8)


def _read_images(paths: list[Path]) -> NDArray[np.uint8]:
    images = [_read_image(path) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape != images[0].shape:
            raise ValueError(f"{path} has the size {image.shape}, expected {images[0].shape} as in {paths[0]}")
    return np.stack(images)


def _read_image(path: Path) -> NDArray[np.uint8]:
    """Of itself pillow does not look at the checksums of pixels; to let it takes 40 us, 8 s for 200,000 images."""
    try:
        with Image.open(path) as image:
            image.verify()
        with Image.open(path) as image:
            return np.asarray(image.convert("L"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is missing, though the metadata name it") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error

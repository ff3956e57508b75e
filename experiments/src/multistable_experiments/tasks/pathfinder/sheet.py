"""A sheet of sample images with their labels."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from multistable_experiments.files import whole_file

__all__ = ["sheet", "write_sheet"]

_SCALE, _GAP, _CAPTION = 4, 6, 14  # pixels of the sheet
_NAMES = ("0 apart", "1 joined")
_GREY, _TEXT = 60, 255


def sheet(images: NDArray[np.uint8], labels: NDArray[np.uint8], columns: int = 8) -> Image.Image:
    """Images ``[n, S, S]`` in rows, each enlarged, with its label above it."""
    n, S, _ = images.shape
    cell = S * _SCALE
    rows = -(-n // columns)
    width, height = columns * (cell + _GAP) + _GAP, rows * (cell + _CAPTION + _GAP) + _GAP
    page = Image.new("L", (width, height), _GREY)
    pen = ImageDraw.Draw(page)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        left = _GAP + (i % columns) * (cell + _GAP)
        top = _GAP + (i // columns) * (cell + _CAPTION + _GAP)
        pen.text((left, top), _NAMES[label], fill=_TEXT)
        page.paste(Image.fromarray(image).resize((cell, cell), Image.Resampling.NEAREST), (left, top + _CAPTION))
    return page


def write_sheet(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8], columns: int = 8) -> None:
    """Write the sheet as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        sheet(images, labels, columns).save(part, format="PNG")

"""Inspect matplotlib figures and the files they were saved to."""

from pathlib import Path

import matplotlib.image
import pytest
from matplotlib.figure import Figure

__all__ = ["assert_drawn", "texts"]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def assert_drawn(path: Path, figure: Figure) -> None:
    """Assert that the PNG has the figure's size at 160 dpi, and something drawn in each panel."""
    pixels = matplotlib.image.imread(path)[..., :3]  # [H, W, 3]
    H, W, _ = pixels.shape
    assert pytest.approx(tuple(160 * figure.get_size_inches()), abs=1) == (W, H)
    figure.draw_without_rendering()
    for axis in figure.axes:
        box = axis.get_position()
        panel = pixels[int((1 - box.y1) * H) : int((1 - box.y0) * H), int(box.x0 * W) : int(box.x1 * W)]
        assert (panel[5:-5, 5:-5] < 0.95).any(), f"nothing is drawn in the panel {axis.get_title(loc='left')}"

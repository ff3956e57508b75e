"""The parameters of the 32x32 images of the Long Range Arena (LRA)."""

import math
from dataclasses import dataclass

__all__ = ["LEVELS", "SIZE", "Settings", "settings"]

SIZE = 32
"""Side of an image."""


@dataclass(frozen=True)
class Settings:
    """How images of a level are drawn. Lengths are in pixels; ``paddle`` is the original's word for a dash."""

    level: str
    folder: str
    """Name of the level's folder in the LRA release."""
    contour_length: int
    """Paddles of each of the two long snakes."""
    distractor_length: int
    """Paddles of a short snake."""
    distractors: int = 10
    """Short snakes to try. Those that find no room are left out."""
    padding: int = 1
    antialias: int = 2
    paddle_length: int = 2
    paddle_thickness: float = 0.5
    margin: int = 1
    """Gap around a paddle."""
    seed_distance: int = 7
    """Distance between the first tips of the two long snakes."""
    marker_radius: float = 1.5
    continuity: float = 1.0
    """How straight snakes run: a turn by delta has the weight cos(continuity * delta)^2."""
    snake_contrast: float = 2.0
    paddle_contrast: float = 0.75
    """Long snakes are drawn with ``snake_contrast * paddle_contrast``, short ones with ``snake_contrast``."""
    paddle_tries: int = 3
    snake_tries: int = 5

    @property
    def reach(self) -> int:
        """Half the side of a paddle's patch."""
        return self.paddle_length + math.ceil(self.paddle_thickness) + self.margin

    @property
    def max_strokes(self) -> int:
        """The largest number of strokes of an image: paddles and two markers."""
        return 2 * self.contour_length + self.distractors * self.distractor_length + 2


# All levels try the same number of distractors: the original computes it once, for the easy level (20 // 2 = 10),
# before it loops over the others.
LEVELS = {
    "easy": Settings("easy", "curv_baseline", 6, 2),
    "intermediate": Settings("intermediate", "curv_contour_length_9", 9, 3),
    "hard": Settings("hard", "curv_contour_length_14", 14, 4),
}


def settings(level: str) -> Settings:
    """The parameters of LRA for a level: easy, intermediate or hard.

    >>> settings("hard").contour_length
    14
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    return LEVELS[level]

"""The parameters of Pathfinder images: the levels and sizes of the Long Range Arena (LRA)."""

from dataclasses import dataclass, replace

__all__ = ["FOLDERS", "LEVELS", "SIZES", "Settings", "check_seed", "settings"]

FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
"""Name of a level's folder in the LRA release."""


@dataclass(frozen=True)
class Settings:
    """How one kind of image is drawn. Lengths are in pixels; ``paddle`` is the word of the original for one dash."""

    level: str
    contour_length: int
    """Paddles of each of the two long snakes."""
    distractor_length: float
    """Paddles of a short snake, rounded down; the metadata of LRA print it as it stands (4.666666666666667)."""
    size: int = 32
    distractors: int = 10
    """Short snakes asked for. Those that find no room are left out."""
    padding: int = 1
    antialias: int = 2
    paddle_length: int = 2
    paddle_thickness: float = 0.5
    margins: tuple[int, ...] = (1,)
    """Gap around a paddle; one of these is drawn for each image."""
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

    def reach(self, margin: int) -> int:
        """Half the side of a paddle's patch."""
        return self.paddle_length + -int(-self.paddle_thickness // 1) + margin

    @property
    def strokes(self) -> int:
        """The most strokes an image can have: paddles and two markers."""
        return 2 * self.contour_length + self.distractors * int(self.distractor_length) + 2


# All levels ask for the same number of distractors, because the original computes it once, for the easy level
# (20 // 2 = 10), before it loops over the others. The lengths are written as the metadata of the release print them.
LEVELS = {
    "easy": Settings("easy", 6, 2),
    "intermediate": Settings("intermediate", 9, 9 / 3),
    "hard": Settings("hard", 14, 14 / 3),
}

# Distractors are 22 / 2 and 35 / 2, rounded up. What LRA does not name has the original's default.
SIZES = {
    32: {},
    64: {
        "distractors": 11,
        "paddle_length": 5,
        "paddle_thickness": 1,
        "seed_distance": 12,
        "marker_radius": 2.5,
        "continuity": 1.8,
        "snake_contrast": 0.8,
        "paddle_contrast": 1.0,
    },
    128: {
        "distractors": 18,
        "paddle_length": 5,
        "paddle_thickness": 1.5,
        "margins": (2, 3),
        "seed_distance": 20,
        "marker_radius": 3,
        "continuity": 1.8,
        "snake_contrast": 0.9,
        "paddle_contrast": 1.0,
    },
}


def check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")


def settings(level: str = "hard", *, size: int = 32, distractors: int | None = None) -> Settings:
    """The parameters of LRA for a level (easy, intermediate, hard) and an image size (32, 64, 128).

    >>> settings("hard").contour_length, settings("easy", size=64).paddle_length
    (14, 5)
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(map(str, SIZES))}, got {size}")
    chosen = replace(LEVELS[level], size=size, **SIZES[size])
    if distractors is None:
        return chosen
    if distractors < 0:
        raise ValueError(f"distractors must be at least 0, got {distractors}")
    return replace(chosen, distractors=distractors)

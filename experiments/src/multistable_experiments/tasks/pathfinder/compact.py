"""The compact file: strokes, glyphs and how they were made, in one ``.npz``. 200,000 hard images take 13 MB.

Reading needs numpy only: the glyphs travel with the strokes.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multistable_experiments.files import whole_file
from multistable_experiments.tasks.pathfinder.settings import Settings
from multistable_experiments.tasks.pathfinder.strokes import Glyphs, Strokes, render

__all__ = ["FORMAT", "Origin", "read", "read_strokes", "write"]

FORMAT = 1
WAY_OUT = "if it was one, remove it to have it drawn anew by `multistable data pathfinder`"


@dataclass(frozen=True)
class Origin:
    """Which images: the same origin gives the same images."""

    settings: Settings
    seed: int
    count: int
    batch: int = 1000
    """Images of a batch, each with its own stream of random numbers."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Origin":
        values: dict[str, Any] = json.loads(text)
        if values.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        made = values.pop("settings")
        return cls(Settings(**{**made, "margins": tuple(made["margins"])}), **values)

    def __str__(self) -> str:
        s = self.settings
        return f"{self.count} {s.level} images of {s.size}x{s.size}, {s.distractors} distractors, seed {self.seed}"


def write(path: Path, origin: Origin, glyphs: Glyphs, strokes: Strokes) -> None:
    """Write the file; it appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f.name: getattr(strokes, f.name) for f in fields(Strokes)}
    with whole_file(path) as part, part.open("wb") as file:
        np.savez_compressed(
            file, origin=np.array(origin.to_json()), levels=glyphs.levels, patches=glyphs.patches, **arrays
        )


def read_strokes(path: Path) -> tuple[Origin, Glyphs, Strokes]:
    """The content of a compact file."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: write it with `multistable data pathfinder --out {path}`")
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                origin = Origin.from_json(str(arrays["origin"]))
                glyphs = Glyphs(origin.settings.size, arrays["levels"], arrays["patches"])
                strokes = Strokes(**{f.name: arrays[f.name] for f in fields(Strokes)})
        except Exception as error:  # numpy and zipfile raise their own kinds for each way in which a file can be broken
            raise ValueError(f"{path} is damaged or no Pathfinder file: {error}; {WAY_OUT}") from error
    if not len(strokes) == len(strokes.label) == origin.count or int(strokes.count.sum()) != len(strokes.glyph):
        raise ValueError(f"{path} is damaged: it holds {len(strokes)} images, expected {origin.count}; {WAY_OUT}")
    return origin, glyphs, strokes


def read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images ``[n, S, S]`` and labels ``[n]`` of a compact file."""
    _, glyphs, strokes = read_strokes(path)
    return render(glyphs, strokes), strokes.label

"""Images per second of one core: drawing strokes, turning them into pixels, writing both formats.

    python benchmarks/pathfinder_speed.py

This is processor time, not time on the clock, so that other work on the machine does not count.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch  # noqa: F401  (imported here, so that its loading does not count)

from multistable_experiments.tasks.pathfinder import lra
from multistable_experiments.tasks.pathfinder.compact import Origin, write
from multistable_experiments.tasks.pathfinder.generator import draw, glyphs
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.strokes import render


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    count = parser.parse_args().count
    print("level         size     draw   render  compact      PNG   images per second")
    for size in (32, 64, 128):
        for level in ("easy", "intermediate", "hard"):
            s, n = settings(level, size=size), count if size == 32 else count // 10
            draw(s, 0, 0, 1)
            with tempfile.TemporaryDirectory() as folder:
                ticks = [time.process_time()]
                strokes = draw(s, 0, 0, n)
                ticks.append(time.process_time())
                images = render(glyphs(s), strokes)
                ticks.append(time.process_time())
                write(Path(folder) / "a.npz", Origin(s, 0, n), glyphs(s), strokes)
                ticks.append(time.process_time())
                lra.write_batch(Path(folder), s, 0, images, strokes.label, strokes.margin)
                ticks.append(time.process_time())
            speeds = [f"{n / (b - a):8.0f}" for a, b in pairwise(ticks)]
            print(f"{level:12} {size:5} {' '.join(speeds)}", flush=True)


if __name__ == "__main__":
    main()

"""Images per second of one core: draw strokes, paint them, write and read the file.

    python benchmarks/pathfinder_speed.py

Processor time, not wall time, so that other work on the machine does not count.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from multistable_experiments.tasks.pathfinder.generator import draw, draw_strokes, render
from multistable_experiments.tasks.pathfinder.settings import LEVELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    count = parser.parse_args().count
    print("level             draw    paint    write     read   images per second")
    for level, s in LEVELS.items():
        draw(s, 0, 0, 1)  # compiles
        with tempfile.TemporaryDirectory() as folder:
            ticks = [time.process_time()]
            strokes = [image for _, image in draw_strokes(s, 0, 0, count)]
            ticks.append(time.process_time())
            images = render(s, strokes)
            ticks.append(time.process_time())
            np.savez_compressed(Path(folder) / "a.npz", images=images)
            ticks.append(time.process_time())
            np.load(Path(folder) / "a.npz")["images"]
            ticks.append(time.process_time())
        speeds = [f"{count / (b - a):8.0f}" for a, b in pairwise(ticks)]
        print(f"{level:12} {' '.join(speeds)}", flush=True)


if __name__ == "__main__":
    main()

"""Draw the figures of trained models, docs/figures/*.svg, from the results.

python tools/pictures.py            draw the figures that are out of date
python tools/pictures.py --check    exit with 1 if there are any
"""

import hashlib
import sys
from pathlib import Path

import matplotlib

from multistable_experiments.page import pictures
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import EXPERIMENTS
from multistable_experiments.paper.figures import FIGURES, style, trained

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
FOLDER = ROOT / "docs" / "figures"


def digest(name: str) -> str:
    """A digest of the results that a figure shows and of the files that draw it, but not of matplotlib's version."""
    tasks = {experiment.run.task.name for experiment in EXPERIMENTS[name]("full", 0)}
    results = [path for task in sorted(tasks) for path in sorted((RESULTS / task).glob("*.json"))]
    sources = [Path(module.__file__) for module in (trained, style, pictures)]
    texts = [path.read_bytes() for path in (*sources, *results)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def is_current(name: str) -> bool:
    path = FOLDER / f"{name}.svg"
    return path.exists() and f"drawn from {digest(name)}" in path.read_text()


def draw(name: str) -> None:
    figure = FIGURES[name].draw(store.load(RESULTS), "full")
    metadata = {"Date": None, "Description": f"drawn from {digest(name)}"}
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(FOLDER / f"{name}.svg", metadata=metadata)


def main() -> None:
    old = [name for name in EXPERIMENTS if not is_current(name)]
    if "--check" in sys.argv:
        raise SystemExit(f"out of date: {', '.join(old)}; run python tools/pictures.py" if old else 0)
    for name in old:
        draw(name)


if __name__ == "__main__":
    main()

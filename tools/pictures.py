"""Draw the figures of trained models that README.md shows, docs/figures/*.svg, from the results.

python tools/pictures.py            draw those that were not drawn from the results as they are now
python tools/pictures.py --check    say whether there are any
"""

import hashlib
import sys
from pathlib import Path

import matplotlib

from multistable_experiments.page import pictures
from multistable_experiments.paper import drawing, experiments, result_figures, store

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
FOLDER = ROOT / "docs" / "figures"


def digest(name: str) -> str:
    """A digest of the results that a figure shows and of the files that draw it, but not of matplotlib's version."""
    tasks = {experiment.run.task.name for experiment in experiments.FIGURES[name]("paper", 0)}
    shown = [
        path for task in sorted(tasks) for path in sorted((ROOT / "experiments" / "results" / task).glob("*.json"))
    ]
    drawn_by = [Path(module.__file__) for module in (result_figures, drawing, pictures)]
    texts = [path.read_bytes() for path in (*drawn_by, *shown)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def is_current(name: str) -> bool:
    path = FOLDER / f"{name}.svg"
    return path.exists() and f"drawn from {digest(name)}" in path.read_text()


def draw(name: str) -> None:
    picture = result_figures.FIGURES[name](store.load(RESULTS), "paper")
    described = {"Date": None, "Description": f"drawn from {digest(name)}"}
    with matplotlib.rc_context({"svg.hashsalt": name}):
        picture.savefig(FOLDER / f"{name}.svg", metadata=described)


def main() -> None:
    old = [name for name in result_figures.FIGURES if not is_current(name)]
    if "--check" in sys.argv:
        raise SystemExit(f"drawn from other results: {', '.join(old)}; run python tools/pictures.py" if old else 0)
    for name in old:
        draw(name)


if __name__ == "__main__":
    main()

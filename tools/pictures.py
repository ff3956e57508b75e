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
from multistable_experiments.paper.experiments import EXPERIMENTS, Experiment
from multistable_experiments.paper.figures import FIGURES, style, trained
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.rl import figures as rl_figures

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
FOLDER = ROOT / "docs" / "figures"
T_MAZE = FOLDER / "t-maze.svg"


def drawn() -> list[tuple[str, Recipe]]:
    """The figures and recipes of which there are results."""
    records = store.load(RESULTS)
    figures = [(name, recipe) for name in EXPERIMENTS for recipe in FIGURES[name].recipes]
    return [
        (name, recipe)
        for name, recipe in figures
        if len(store.missing(records, planned(name, recipe))) < len(planned(name, recipe))
    ]


def planned(name: str, recipe: Recipe) -> list[Experiment]:
    return EXPERIMENTS[name]("full", 0, recipe)


def digest(name: str, recipe: Recipe) -> str:
    """A digest of the results that a figure shows and of the files that draw it, but not of matplotlib's version."""
    tasks = {experiment.run.task.name for experiment in planned(name, recipe)}
    results = [path for task in sorted(tasks) for path in sorted((RESULTS / recipe / task).glob("*.json"))]
    sources = [Path(module.__file__) for module in (trained, style, pictures)]
    texts = [path.read_bytes() for path in (*sources, *results)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def path_of(name: str, recipe: Recipe) -> Path:
    return FOLDER / f"{name}-{recipe}.svg"


def is_current(name: str, recipe: Recipe) -> bool:
    path = path_of(name, recipe)
    return path.exists() and f"drawn from {digest(name, recipe)}" in path.read_text()


def draw(name: str, recipe: Recipe) -> None:
    figure = FIGURES[name].draw(store.load(RESULTS), "full", recipe)
    metadata = {"Date": None, "Description": f"drawn from {digest(name, recipe)}"}
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(path_of(name, recipe), metadata=metadata)


def t_maze_digest() -> str:
    sources = [Path(module.__file__) for module in (rl_figures, style, pictures)]
    texts = [path.read_bytes() for path in (*sources, *sorted((RESULTS / "rl").glob("tmaze-*.json")))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def t_maze_is_current() -> bool:
    return T_MAZE.exists() and f"drawn from {t_maze_digest()}" in T_MAZE.read_text()


def draw_t_maze() -> None:
    with matplotlib.rc_context({"svg.hashsalt": "t-maze"}):
        figure = rl_figures.draw_t_maze(RESULTS / "rl")
        figure.savefig(T_MAZE, metadata={"Date": None, "Description": f"drawn from {t_maze_digest()}"})


def main() -> None:
    old = [(name, recipe) for name, recipe in drawn() if not is_current(name, recipe)]
    if "--check" in sys.argv:
        names = ", ".join([path_of(*each).name for each in old] + [T_MAZE.name] * (not t_maze_is_current()))
        raise SystemExit(f"out of date: {names}; run python tools/pictures.py" if names else 0)
    for each in old:
        draw(*each)
    if not t_maze_is_current():
        draw_t_maze()


if __name__ == "__main__":
    main()

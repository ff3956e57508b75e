"""Draw the figures of trained models, docs/figures/*.svg, from the results.

python tools/pictures.py            draw the figures that are out of date
python tools/pictures.py --check    exit with 1 if there are any
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import matplotlib
from matplotlib.figure import Figure

from multistable_experiments.page import pictures
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import EXPERIMENTS, Experiment
from multistable_experiments.paper.figures import FIGURES, style, trained
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.rl import figures as rl_figures
from multistable_experiments.state_machines import contest_figure
from multistable_experiments.state_machines import figure as machine_figure
from multistable_experiments.state_machines.figure import SHOWN

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
FOLDER = ROOT / "docs" / "figures"


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


@dataclass(frozen=True)
class Other:
    """A figure that is none of the paper's."""

    name: str
    module: ModuleType
    results: str
    """Which files it shows, in the folder of results."""
    draw: Callable[[], Figure]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.svg"

    def digest(self) -> str:
        sources = [Path(each.__file__ or "") for each in (self.module, style, pictures)]
        texts = [path.read_bytes() for path in (*sources, *sorted(RESULTS.glob(self.results)))]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]

    def is_current(self) -> bool:
        return self.path.exists() and f"drawn from {self.digest()}" in self.path.read_text()

    def save(self) -> None:
        with matplotlib.rc_context({"svg.hashsalt": self.name}):
            self.draw().savefig(self.path, metadata={"Date": None, "Description": f"drawn from {self.digest()}"})


OTHERS = (
    Other("t-maze", rl_figures, "rl/*tmaze-*.json", lambda: rl_figures.draw_t_maze(RESULTS / "rl")),
    Other(
        "machine", machine_figure, f"machines/{SHOWN}.json", lambda: machine_figure.draw_machine(RESULTS / "machines")
    ),
    Other(
        "failing-length",
        contest_figure,
        "machines/rival-*.json",
        lambda: contest_figure.draw_failing_length(RESULTS / "machines"),
    ),
)


def main() -> None:
    old = [(name, recipe) for name, recipe in drawn() if not is_current(name, recipe)]
    others = [other for other in OTHERS if not other.is_current()]
    if "--check" in sys.argv:
        names = ", ".join([path_of(*each).name for each in old] + [other.path.name for other in others])
        raise SystemExit(f"out of date: {names}; run python tools/pictures.py" if names else 0)
    for each in old:
        draw(*each)
    for other in others:
        other.save()


if __name__ == "__main__":
    main()

"""``reproduce`` at the smallest scale, and figures of a few runs."""

from dataclasses import replace

import pytest

from multistable_experiments.paper import experiments
from multistable_experiments.paper.experiments import Experiment
from multistable_experiments.paper.reproduce import reproduce
from multistable_experiments.tasks import mnist
from multistable_experiments.training.run import Schedule
from small_data import forget_pathfinder
from training_runs import QUIET, copy_first_run


@pytest.fixture
def reproduce_smoke(tmp_path, monkeypatch):
    """``reproduce`` at scale smoke with an empty data folder, no downloads, and its own runs and results."""
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mnist, "MIRRORS", ((tmp_path / "nowhere").as_uri() + "/",))
    forget_pathfinder()
    lines: list[str] = []

    def call(figures=None, place="here", **words):
        lines.clear()
        words = {"scale": "smoke", "recipes": ("tuned",), "options": QUIET, "say": lines.append} | words
        return reproduce(figures, out=tmp_path / place / "runs", results=tmp_path / place / "results", **words)

    call.lines, call.path = lines, tmp_path
    return call


@pytest.fixture
def few_images(monkeypatch):
    """Plan only every fourth experiment on images: 6 of 24 on Pathfinder, 4 of 15 on MNIST."""
    for figure in ("permuted-mnist", "pathfinder"):
        all_of = experiments.EXPERIMENTS[figure]
        monkeypatch.setitem(
            experiments.EXPERIMENTS, figure, lambda scale, seed, recipe, all_of=all_of: all_of(scale, seed, recipe)[::4]
        )


@pytest.fixture
def two_runs(monkeypatch):
    """A figure with two runs; the loss of the first becomes NaN."""
    good = copy_first_run(("bmru",))
    bad = replace(copy_first_run(("lru", "bmru")), schedule=Schedule(1e30, 1e30, 1e30, 0))

    def figure(scale, seed, recipe):
        return [Experiment("bad", replace(bad, seed=seed)), Experiment("good", replace(good, seed=seed))]

    monkeypatch.setitem(experiments.EXPERIMENTS, "two", figure)

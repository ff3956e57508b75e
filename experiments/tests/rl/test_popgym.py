"""POPGym's tasks through its package."""

import pytest

pytestmark = pytest.mark.extra
pytest.importorskip("popgym", reason="popgym is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl.popgym import SEARCHED, PopgymRun, best_rate, measure, plan, search  # noqa: E402
from multistable_experiments.rl.rates import RATES  # noqa: E402
from multistable_experiments.rl.results import store  # noqa: E402


@pytest.mark.parametrize("task", ["RepeatFirst", "Battleship", "PositionOnlyPendulum"])
def test_a_short_run(task):
    """One kind of actions each: discrete, several, continuous."""
    result = measure(PopgymRun(task, "hybrid", steps=8_192, width=16, envs=32, batches=4))
    assert 1 <= len(result["returns"]) <= 2  # an episode of the pendulum has 200 steps, a rollout 128
    assert -1.5 <= result["score"] <= 1


def test_the_best_rate_has_the_largest_mean_score(tmp_path):
    scores = {1e-3: (0.5, 0.2), 3e-4: (0.9, -0.4), 3e-3: (0.3, 0.5)}  # means 0.35, 0.25, 0.4
    runs = search("gru", 4_000)
    assert {(run.task, run.rate) for run in runs} == {(task, rate) for task in SEARCHED for rate in RATES}
    assert {(run.steps, run.seed) for run in runs} == {(1_000, 100)}
    for run in runs:
        assert best_rate("gru", 4_000, tmp_path) is None
        store(run, {"score": scores[run.rate][SEARCHED.index(run.task)]}, tmp_path, {})
    assert best_rate("gru", 4_000, tmp_path) == 3e-3
    planned = plan(["gru", "lru"], ["Battleship"], 2, 4_000, tmp_path)
    assert [run.cell for run in planned] == ["gru"] * 6 + ["lru"] * 6 + ["gru"] * 2
    assert [(run.seed, run.steps, run.rate) for run in planned[12:]] == [(0, 4_000, 3e-3), (1, 4_000, 3e-3)]
    assert len({run.name for run in planned}) == len(planned)
    given = plan(["gru", "bmru"], ["Battleship"], 1, 4_000, tmp_path, rate=0.01)
    assert [(run.cell, run.rate, run.seed) for run in given] == [("gru", 0.01, 0), ("bmru", 0.01, 0)]


def test_unknown_tasks_are_refused(tmp_path):
    with pytest.raises(ValueError, match="tasks must be out of"):
        plan(("bmru",), ("Chess",), 1, 10, tmp_path)

"""POPGym's tasks through its package."""

import pytest

pytestmark = pytest.mark.extra
pytest.importorskip("popgym", reason="popgym is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl.popgym import TASKS, PopgymRun, make_envs, measure, plan  # noqa: E402


@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs(task):
    envs = make_envs(task, 2)
    assert envs.reset(seed=0)[0].shape == (2, *envs.single_observation_space.shape)
    envs.step(envs.action_space.sample())


@pytest.mark.parametrize("task", ["RepeatFirst", "Battleship", "PositionOnlyPendulum"])
def test_a_short_run(task):
    """One kind of actions each: discrete, several, continuous."""
    result = measure(PopgymRun(task, "hybrid", steps=8_192, width=16))
    assert 1 <= len(result["returns"]) <= 2  # an episode of the pendulum has 200 steps, a rollout 128
    assert -1.5 <= result["score"] <= 1


def test_unknown_tasks_are_refused():
    with pytest.raises(ValueError, match="tasks must be out of"):
        plan(("bmru",), ("Chess",), 1, 10)

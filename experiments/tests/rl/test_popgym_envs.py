"""POPGym's environments as vectors: the same as its wrappers and gymnasium's give."""

import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest

pytestmark = pytest.mark.extra
pytest.importorskip("popgym", reason="popgym is not installed: pip install './experiments[rl]'")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from popgym.wrappers import Antialias, PreviousAction  # noqa: E402

from multistable_experiments.rl.popgym import TASKS  # noqa: E402
from multistable_experiments.rl.popgym_envs import PopgymEnvs, make_env  # noqa: E402


def wrapped(task):
    env = gymnasium.wrappers.FlattenObservation(Antialias(PreviousAction(make_env(task))))
    return gymnasium.wrappers.ClipAction(env) if isinstance(env.action_space, gymnasium.spaces.Box) else env


@pytest.mark.parametrize("task", TASKS)
def test_they_equal_the_wrappers(task):
    own, other = (
        PopgymEnvs(task, 3),
        SyncVectorEnv([partial(wrapped, task)] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
    )
    own.action_space.seed(0)
    actions = [own.action_space.sample() for _ in range(250)]
    np.random.seed(0)
    first, steps = own.reset(seed=5)[0], [own.step(action) for action in actions]
    np.random.seed(0)
    assert np.array_equal(other.reset(seed=5)[0].astype(np.float32), first)
    ends = 0
    for action, (x, reward, terminated, truncated, info) in zip(actions, steps, strict=True):
        expected = other.step(action)
        assert np.array_equal(expected[0].astype(np.float32), x)
        assert np.array_equal(expected[1], reward)
        assert np.array_equal(expected[2], terminated)
        assert np.array_equal(expected[3], truncated)
        ended = terminated | truncated
        ends += ended.sum()
        if ended.any():
            assert np.array_equal(
                np.stack(list(expected[4]["final_obs"][ended])).astype(np.float32), info["final_obs"][ended]
            )
    assert ends > 0


@pytest.mark.parametrize("task", ["RepeatPrevious", "NoisyPositionOnlyPendulum", "MineSweeper"])
def test_they_go_on_after_pickling(task):
    envs = PopgymEnvs(task, 2)
    envs.reset(seed=0)
    copy = pickle.loads(pickle.dumps(envs))
    for _ in range(230):
        action = envs.action_space.sample()
        for a, b in zip(envs.step(action)[:4], copy.step(action)[:4], strict=True):
            assert np.array_equal(a, b)

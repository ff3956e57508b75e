"""The T-maze: observations, rewards, ends and new episodes."""

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

import numpy as np  # noqa: E402

from multistable_experiments.rl.tmaze import BACK, DOWN, FORWARD, UP, TMaze, TMazes  # noqa: E402


def test_one_episode():
    """Bakker's observations and rewards, up to the turn."""
    maze = TMaze(length=3)
    clue, _ = maze.reset(seed=0)
    goal = UP if clue.tolist() == [0, 1, 1] else DOWN
    assert clue.tolist() in ([0, 1, 1], [1, 1, 0])
    assert maze.step(BACK)[:3] == (pytest.approx(clue), -0.1, False)  # a wall
    assert maze.step(UP)[:3] == (pytest.approx(clue), -0.1, False)
    for _ in range(2):
        seen, reward, ended, *_ = maze.step(FORWARD)
        assert (seen.tolist(), reward, ended) == ([1, 0, 1], 0, False)
    assert maze.step(BACK)[1] == 0
    maze.step(FORWARD)
    seen, reward, ended, *_ = maze.step(FORWARD)
    assert (seen.tolist(), reward, ended) == ([0, 1, 0], 0, False)
    assert maze.step(FORWARD)[1:3] == (-0.1, False)
    _, reward, ended, truncated, info = maze.step(goal)
    assert (reward, ended, truncated, info["right"]) == (4, True, False, True)


@pytest.mark.parametrize("turn", [UP, DOWN])
def test_wrong_turns_end_the_episode(turn):
    maze = TMaze(length=1)
    ends = set()
    for seed in range(8):
        clue, _ = maze.reset(seed=seed)
        maze.step(FORWARD)
        _, reward, ended, _, info = maze.step(turn)
        assert ended
        right = (clue[0] == 0) == (turn == UP)
        assert (reward, info["right"]) == ((4, True) if right else (-0.1, False))
        ends.add(right)
    assert ends == {True, False}


def test_gymnasium_accepts_it():
    from gymnasium.utils.env_checker import check_env

    check_env(TMaze(length=4, noise=True), skip_render_check=True)


def test_noise_is_new_at_every_step_and_only_in_the_corridor():
    mazes = TMazes(100, longest=50, shortest=50, noise=True)
    first, _ = mazes.reset(seed=0)
    assert set(first.flatten()) == {0, 1}
    a, b = (mazes.step(np.full(100, FORWARD))[0] for _ in range(2))
    for seen in (a, b):
        assert (seen[:, 1] == 0).all()
        assert seen.min() >= 0
        assert seen.max() <= 1
        assert 0.4 < seen[:, [0, 2]].mean() < 0.6
    assert (a[:, 0] != b[:, 0]).all()
    assert (a[:, 0] != a[:, 2]).all()


def test_the_next_episode_begins_in_the_same_step():
    """The observation after a turn is a clue, and its last observation is handed over."""
    mazes = TMazes(64, longest=1, limit=3)
    mazes.reset(seed=0)
    mazes.step(np.full(64, FORWARD))
    seen, _, terminated, truncated, info = mazes.step(np.where(np.arange(64) < 32, UP, FORWARD))
    assert terminated.tolist() == [True] * 32 + [False] * 32
    assert not truncated.any()
    assert (seen[:32, 1] == 1).all()
    assert (seen[:32, 0] != seen[:32, 2]).all()
    assert (info["final_obs"][:32] == [0, 1, 0]).all()
    assert (seen[32:] == [0, 1, 0]).all()
    seen, _, terminated, truncated, info = mazes.step(np.full(64, BACK))
    assert not terminated.any()
    assert truncated.tolist() == [False] * 32 + [True] * 32
    assert (info["final_obs"][32:, 1] == 1).all()


def test_lengths_are_drawn_for_every_episode():
    mazes = TMazes(500, longest=5, shortest=2)
    mazes.reset(seed=1)
    assert set(mazes.length) == {2, 3, 4, 5}
    with pytest.raises(ValueError, match="shortest"):
        TMazes(1, longest=2, shortest=3)

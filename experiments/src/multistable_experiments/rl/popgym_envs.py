"""POPGym's environments side by side, with all that an agent sees of them in one vector.

An observation is joined by the last action and a mark of the first step, as in POPGym's own experiments: what its
wrappers ``PreviousAction`` and ``Antialias`` and gymnasium's ``FlattenObservation`` give, in about half the time,
and without the functions in them that cannot be pickled: a run is resumed with its environments as they were.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

__all__ = ["PopgymEnvs", "make_env"]

FIRST = spaces.Discrete(2)


def make_env(task: str) -> gymnasium.Env:
    """The easy level of a task, as POPGym has it."""
    from popgym import envs

    kinds: dict[Any, Any] = envs.ALL_EASY
    [kind] = [kind for kind in kinds if kind.__name__ == f"{task}Easy"]
    return kind()


class PopgymEnvs(VectorEnv):
    """B environments; the next episode starts in the same step in which the last one ended.

    ``info["final_obs"] [B, D]`` then has the last observations, zeros where no episode ended.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, task: str, num_envs: int) -> None:
        self.num_envs, self.envs = num_envs, [make_env(task) for _ in range(num_envs)]
        seen, self.single_action_space = self.envs[0].observation_space, self.envs[0].action_space
        parts = seen.spaces if isinstance(seen, spaces.Tuple) else (seen,)
        self.parts: tuple[spaces.Space, ...] = (*parts, self.single_action_space, FIRST)
        size = sum(spaces.flatdim(part) for part in self.parts)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (size,), dtype=np.float32)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        actions = self.single_action_space
        self.no_action = np.zeros(actions.shape or (), dtype=actions.dtype)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        seen = [env.reset(seed=own)[0] for env, own in zip(self.envs, seeds, strict=True)]
        start = np.stack([self.no_action] * self.num_envs)
        return self.flat(seen, start, np.ones(self.num_envs, dtype=np.int64)), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        space, B = self.single_action_space, self.num_envs
        actions = np.clip(actions, space.low, space.high) if isinstance(space, spaces.Box) else np.asarray(actions)
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        seen = [step[0] for step in steps]
        reward = np.array([step[1] for step in steps], dtype=np.float64)
        terminated, truncated = (np.array([step[i] for step in steps], dtype=bool) for i in (2, 3))
        first, info = np.zeros(B, dtype=np.int64), {}
        x = self.flat(seen, actions, first)
        ended = (terminated | truncated).nonzero()[0]
        if len(ended):
            info["final_obs"] = np.zeros_like(x)
            info["final_obs"][ended] = x[ended]
            begun = [self.envs[i].reset()[0] for i in ended]
            x[ended] = self.flat(begun, np.stack([self.no_action] * len(ended)), np.ones(len(ended), dtype=np.int64))
        return x, reward, terminated, truncated, info

    def flat(self, seen: Sequence[Any], actions: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Observations, last actions and marks of the first step as ``[B, D]``."""
        columns = list(zip(*seen, strict=True)) if len(self.parts) > 3 else [seen]
        x = np.zeros((len(seen), self.single_observation_space.shape[0]), dtype=np.float32)  # pyright: ignore
        begin = 0
        for part, values in zip(self.parts, [*columns, actions, first], strict=True):
            end = begin + spaces.flatdim(part)
            fill(part, np.asarray(values), x[:, begin:end])
            begin = end
        return x


def fill(space: spaces.Space, values: np.ndarray, x: np.ndarray) -> None:
    """Write ``values [B, ...]`` into the zeros ``x [B, flatdim(space)]``: a one for a choice, numbers as they are."""
    if isinstance(space, spaces.Box):
        x[:] = values.reshape(len(x), -1)
        return
    rows = np.arange(len(x))
    if isinstance(space, spaces.Discrete):
        x[rows, values.reshape(-1) - space.start] = 1
    elif isinstance(space, spaces.MultiDiscrete):
        starts = np.cumsum(space.nvec) - space.nvec
        x[rows[:, None], values.reshape(len(x), -1) + starts] = 1
    else:
        raise ValueError(f"no vector for {space}")

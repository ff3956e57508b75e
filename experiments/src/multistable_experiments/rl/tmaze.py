"""The T-maze (Bakker 2001) for gymnasium: a clue seen once says where to turn at the end of a corridor.

Observations are three numbers: ``0 1 1`` or ``1 1 0`` at the start (the clue: up or down), ``1 0 1`` in the corridor
and ``0 1 0`` at the junction. With noise the corridor shows ``a 0 b``, a and b uniform in [0, 1] and new at every step.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

__all__ = ["ACTIONS", "FORWARD", "TMaze", "TMazes", "clues", "corridor", "junction"]

ACTIONS = UP, FORWARD, DOWN, BACK = range(4)
RIGHT, WRONG = 4.0, -0.1  # Bakker's rewards; WRONG also for standing still
SPACE = gymnasium.spaces.Box(0, 1, (3,), dtype=np.float32)


def clues(goal: np.ndarray) -> np.ndarray:
    """The first observations of episodes whose correct turns are ``goal [B]``, UP or DOWN: ``[B, 3]``."""
    return np.stack([goal == DOWN, np.ones_like(goal), goal == UP], axis=-1).astype(np.float32)


def corridor(shape: tuple[int, ...], random: np.random.Generator | None = None) -> np.ndarray:
    """Observations ``[*shape, 3]`` in the corridor, with noise if ``random`` is given."""
    if random is None:
        return np.broadcast_to(np.array([1, 0, 1], dtype=np.float32), (*shape, 3))
    seen = random.random((*shape, 3), dtype=np.float32)
    seen[..., 1] = 0
    return seen


def junction(B: int) -> np.ndarray:
    """Observations ``[B, 3]`` at the end of the corridor."""
    return np.tile(np.array([0, 1, 0], dtype=np.float32), (B, 1))


class TMazes(VectorEnv):
    """B mazes side by side. Each episode has its own corridor, of ``shortest`` to ``longest`` steps to the junction.

    A mouse that meets a wall stands still. An episode ends with a turn at the junction, or is truncated after
    ``limit`` steps. The next one starts in the same step, and ``info["final_obs"] [B, 3]`` has the last observations.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int, longest: int, shortest: int = 1, noise: bool = False, limit: int = 200) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"lengths must be 1 <= shortest <= longest, got {shortest} and {longest}")
        self.num_envs, self.longest, self.shortest, self.noise, self.limit = num_envs, longest, shortest, noise, limit
        self.single_observation_space, self.single_action_space = SPACE, gymnasium.spaces.Discrete(len(ACTIONS))
        self.observation_space = gymnasium.vector.utils.batch_space(SPACE, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.goal, self.length, self.position, self.time = np.zeros((4, num_envs), dtype=np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        self._begin(np.ones(self.num_envs, dtype=bool))
        return self.observe(), {}

    def _begin(self, chosen: np.ndarray) -> None:
        count = int(chosen.sum())
        self.goal[chosen] = np.where(self.np_random.random(count) < 0.5, UP, DOWN)
        self.length[chosen] = self.np_random.integers(self.shortest, self.longest + 1, count)
        self.position[chosen] = self.time[chosen] = 0

    def observe(self) -> np.ndarray:
        seen = corridor((self.num_envs,), self.np_random if self.noise else None)
        seen = np.where((self.position == self.length)[:, None], junction(self.num_envs), seen)
        return np.where((self.position == 0)[:, None], clues(self.goal), seen)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        actions = np.asarray(actions)
        turns, at_end = (actions == UP) | (actions == DOWN), self.position == self.length
        move = np.where(turns, 0, np.where(actions == FORWARD, 1, -1))
        position = np.clip(self.position + move, 0, self.length)
        terminated = turns & at_end
        still = position == self.position
        reward = np.where(terminated & (actions == self.goal), RIGHT, np.where(still, WRONG, 0.0))
        self.position, self.time = position, self.time + 1
        truncated = ~terminated & (self.time >= self.limit)
        ended = terminated | truncated
        info: dict[str, Any] = {"right": terminated & (actions == self.goal)}
        if ended.any():
            info["final_obs"] = self.observe()
            self._begin(ended)
        return self.observe(), reward, terminated, truncated, info


class TMaze(gymnasium.Env):
    """One maze, :class:`TMazes` with ``B = 1``, for code that makes its own batches; it is not truncated."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, length: int = 10, noise: bool = False, shortest: int | None = None) -> None:
        self.mazes = TMazes(1, length, shortest or length, noise, limit=np.iinfo(np.int64).max)
        self.observation_space, self.action_space = SPACE, self.mazes.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.mazes.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, _, info = self.mazes.step(np.array([action]))
        seen = info["final_obs"] if terminated[0] else seen
        return seen[0], float(reward[0]), bool(terminated[0]), False, {"right": bool(info["right"][0])}

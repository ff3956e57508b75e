"""A small environment for tests of memory: the first observation shows a clue, and the last action must repeat it."""

from typing import Any

import gymnasium
import numpy as np

__all__ = ["Clue"]


class Clue(gymnasium.Env):
    """Observations ``[clue, last]``: the clue, -1 or 1, at the first step and 0 later; ``last`` is 1 at the last step.

    At the last step, action 1 is right for the clue 1 and action 0 for -1: reward 1, else -1. Other actions do nothing.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.clue, self.t = int(self.np_random.integers(2)), 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        ends = self.t == self.length
        reward = (1.0 if int(action) == self.clue else -1.0) if ends else 0.0
        return self.observe(), reward, ends, False, {}

    def observe(self) -> np.ndarray:
        return np.array([2 * self.clue - 1 if self.t == 0 else 0, self.t == self.length - 1], dtype=np.float32)

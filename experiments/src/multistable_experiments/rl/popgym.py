"""POPGym (Morad et al. 2023): how much agents score in its 14 tasks without mazes, at the easy level.

Observations are joined by the last action and a mark of the first step, as in POPGym's own experiments. The score of
a run is the largest mean return of a rollout's episodes, its MMER; returns are between -1 and 1 in all tasks.
"""

import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from multistable_experiments.rl.agent import Agent, fit_width
from multistable_experiments.rl.ppo import Learner, Settings, policy_outputs
from multistable_experiments.threads import one_thread

__all__ = ["TASKS", "PopgymRun", "make_envs", "measure", "plan"]

TASKS = (
    "RepeatFirst", "RepeatPrevious", "Autoencode", "CountRecall", "Battleship", "Concentration", "HigherLower",
    "MineSweeper", "MultiarmedBandit", "PositionOnlyCartPole", "VelocityOnlyCartPole", "NoisyPositionOnlyCartPole",
    "PositionOnlyPendulum", "NoisyPositionOnlyPendulum",
)  # fmt: skip


@dataclass(frozen=True)
class PopgymRun:
    """Everything that decides the numbers of one run."""

    task: str
    cell: str
    seed: int = 0
    steps: int = 2_000_000
    """Of all environments together; POPGym's paper has 15 million."""
    blocks: int = 2
    width: int = 64
    """Of the agent with a BMRU; the others get as many parameters."""
    rate: float = 1e-3

    @property
    def name(self) -> str:
        return f"popgym-{self.task}-{self.cell}-{self.steps}-seed{self.seed}"


def plan(cells: tuple[str, ...], tasks: tuple[str, ...], seeds: int, steps: int) -> list[PopgymRun]:
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"tasks must be out of {', '.join(TASKS)}, got {unknown[0]!r}")
    return [PopgymRun(task, cell, seed, steps) for seed in range(seeds) for task in tasks for cell in cells]


def make_env(task: str) -> gymnasium.Env:
    from popgym import envs
    from popgym.wrappers import Antialias, PreviousAction

    kinds: dict[Any, Any] = envs.ALL_EASY
    [kind] = [kind for kind in kinds if kind.__name__ == f"{task}Easy"]
    env = gymnasium.wrappers.FlattenObservation(Antialias(PreviousAction(kind())))
    return gymnasium.wrappers.ClipAction(env) if isinstance(env.action_space, gymnasium.spaces.Box) else env


def make_envs(task: str, count: int) -> SyncVectorEnv:
    """Environments that start the next episode in the same step in which the last one ended."""
    return SyncVectorEnv([lambda: make_env(task)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def build(run: PopgymRun, cell: str, width: int) -> Agent:
    env = make_env(run.task)
    shape = env.observation_space.shape
    assert shape is not None
    return Agent(cell, int(np.prod(shape)), policy_outputs(env.action_space), width, run.blocks)


@cache
def width_of(run: PopgymRun) -> int:
    target = sum(p.numel() for p in build(run, "bmru", run.width).parameters())
    return run.width if run.cell == "bmru" else fit_width(lambda H: build(run, run.cell, H), target)


def measure(run: PopgymRun) -> dict[str, Any]:
    """Train, and report the mean return of the episodes of each rollout."""
    start, settings = time.perf_counter(), replace(Settings(), rate=run.rate, gamma=0.99)
    settings = replace(settings, rollouts=-(-run.steps // (settings.envs * settings.steps)))
    with one_thread():
        torch.manual_seed(run.seed)
        agent = build(run, run.cell, width_of(run))
        curve = list(Learner(agent, make_envs(run.task, settings.envs), settings, run.seed).train())
    returns = [each["return"] for each in curve if each["episodes"] > 0]
    return {
        "settings": asdict(settings),
        "width": width_of(run),
        "parameters": sum(parameter.numel() for parameter in agent.parameters()),
        "score": max(returns),
        "returns": [round(value, 4) for value in returns],
        "seconds": round(time.perf_counter() - start, 1),
    }

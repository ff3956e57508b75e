"""POPGym (Morad et al. 2023): how much agents score in its 14 tasks without mazes, at the easy level.

The score of a run is the largest mean return of a rollout's episodes, its MMER. Returns are between -1 and 1 in all
tasks. The learning rate of each cell is searched first, in two of the tasks and with a seed of its own.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multistable_experiments.rl.agent import Agent, fit_width
from multistable_experiments.rl.checkpoint import Checkpoint
from multistable_experiments.rl.popgym_envs import PopgymEnvs
from multistable_experiments.rl.ppo import Learner, Settings, policy_outputs
from multistable_experiments.rl.rates import RATES, SEARCH_SEED, popgym_rates
from multistable_experiments.rl.results import stored
from multistable_experiments.threads import one_thread

__all__ = ["SEARCHED", "TASKS", "PopgymRun", "best_rate", "check_tasks", "measure", "plan", "search"]

TASKS = (
    "RepeatFirst", "RepeatPrevious", "Autoencode", "CountRecall", "Battleship", "Concentration", "HigherLower",
    "MineSweeper", "MultiarmedBandit", "PositionOnlyCartPole", "VelocityOnlyCartPole", "NoisyPositionOnlyCartPole",
    "PositionOnlyPendulum", "NoisyPositionOnlyPendulum",
)  # fmt: skip
SEARCHED = ("RepeatPrevious", "PositionOnlyCartPole")


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
    rate: float = RATES[0]
    envs: int = 128
    batches: int = 8

    @property
    def name(self) -> str:
        return f"popgym-{self.task}-{self.cell}-{self.steps}-rate{self.rate:g}-seed{self.seed}"

    @property
    def settings(self) -> Settings:
        rollout = self.envs * Settings.steps
        return Settings(self.envs, rollouts=-(-self.steps // rollout), batches=self.batches, rate=self.rate, gamma=0.99)


def search(cell: str, steps: int) -> list[PopgymRun]:
    """Runs of a quarter of the steps that decide the learning rate of a cell."""
    return [PopgymRun(task, cell, SEARCH_SEED, steps // 4, rate=rate) for task in SEARCHED for rate in RATES]


def best_rate(cell: str, steps: int, folder: Path) -> float | None:
    """The learning rate of a cell; None while runs of its search are missing."""
    results = [stored(run, folder) for run in search(cell, steps)]
    found = [result for result in results if result is not None]
    return popgym_rates(found)[cell] if len(found) == len(results) else None


def check_tasks(tasks: Sequence[str]) -> None:
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"tasks must be out of {', '.join(TASKS)}, got {unknown[0]!r}")


def plan(
    cells: Sequence[str], tasks: Sequence[str], seeds: int, steps: int, folder: Path, rate: float | None = None
) -> list[PopgymRun]:
    """The search, then the runs of all cells whose rate is known by now, all of a seed before the next seed.

    Given a rate, only the runs of all cells at that rate.
    """
    check_tasks(tasks)
    rates = {cell: rate or best_rate(cell, steps, folder) for cell in cells}
    return [
        *(run for cell in cells if rate is None for run in search(cell, steps)),
        *(
            PopgymRun(task, cell, seed, steps, rate=chosen)
            for seed in range(seeds)
            for task in tasks
            for cell, chosen in rates.items()
            if chosen is not None
        ),
    ]


@cache
def spaces_of(task: str) -> tuple[int, int]:
    """How many numbers an agent sees in a task, and how many its policy needs."""
    envs = PopgymEnvs(task, 1)
    assert envs.single_observation_space.shape is not None
    return envs.single_observation_space.shape[0], policy_outputs(envs.single_action_space)


@cache
def width_of(task: str, cell: str, blocks: int, width: int) -> int:
    """The width that gives an agent as many parameters as one with a BMRU."""
    sizes = spaces_of(task)
    target = sum(p.numel() for p in Agent("bmru", *sizes, width, blocks).parameters())
    return width if cell == "bmru" else fit_width(lambda H: Agent(cell, *sizes, H, blocks), target)


def measure(run: PopgymRun, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    """Train, and report the mean return of the episodes of each rollout."""
    checkpoint = checkpoint or Checkpoint()
    width = width_of(run.task, run.cell, run.blocks, run.width)
    notes = {"run": asdict(run), "returns": [], "seconds": 0.0}
    with one_thread():
        torch.manual_seed(run.seed)
        np.random.seed(run.seed)  # some tasks of POPGym draw from it
        agent = Agent(run.cell, *spaces_of(run.task), width, run.blocks)
        learner = Learner(agent, PopgymEnvs(run.task, run.envs), run.settings, run.seed)
        checkpoint.load(learner, notes)
        start = time.perf_counter() - notes["seconds"]

        def keep() -> None:
            notes["seconds"] = time.perf_counter() - start
            checkpoint.keep(learner, notes)

        for each in learner.train(keep):
            notes["returns"] += [each["return"]] * (each["episodes"] > 0)
    if not notes["returns"]:
        raise ValueError(f"no episode of {run.task} ended within {run.steps} steps: give more steps")
    return {
        "settings": asdict(run.settings),
        "width": width,
        "parameters": sum(parameter.numel() for parameter in agent.parameters()),
        "score": max(notes["returns"]),
        "returns": [round(value, 4) for value in notes["returns"]],
        "seconds": round(time.perf_counter() - start, 1),
    }

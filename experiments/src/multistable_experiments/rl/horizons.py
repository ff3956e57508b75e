"""Which memory lasts: the same agent with each cell, trained in short T-mazes and tested in long ones."""

import copy
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from multistable_experiments.rl.agent import CELLS, Agent, fit_width
from multistable_experiments.rl.corridors import LENGTHS, walk
from multistable_experiments.rl.ppo import Learner, Settings
from multistable_experiments.rl.tmaze import ACTIONS, TMazes
from multistable_experiments.threads import one_thread

__all__ = ["TMazeRun", "measure", "plan", "train"]

RATES = (1e-3, 3e-4, 3e-3)


@dataclass(frozen=True)
class TMazeRun:
    """Everything that decides the numbers of one run."""

    cell: str
    noise: bool
    seed: int = 0
    rate: float = RATES[0]
    longest: int = 30
    """Corridors in training have 1 to this many steps, uniformly."""
    width: int = 32
    """Of the agent with a BMRU; the others get as many parameters."""
    rollouts: int = Settings.rollouts
    window: int = 5
    """How many rollouts in a row decide which weights are the best."""
    lengths: tuple[int, ...] = LENGTHS
    episodes: int = 1_000

    @property
    def name(self) -> str:
        rate = [] if self.rate == RATES[0] else [f"rate{self.rate:g}"]
        return "-".join(["tmaze", self.cell, *["noise"] * self.noise, *rate, f"seed{self.seed}"])


def plan(cells: tuple[str, ...] = CELLS, seeds: int = 3) -> list[TMazeRun]:
    """All cells of a seed before the next seed; then one seed at the other learning rates, tested near by only."""
    runs = [TMazeRun(cell, noise, seed) for seed in range(seeds) for noise in (False, True) for cell in cells]
    near = LENGTHS[:1]
    search = [TMazeRun(c, n, 0, rate, lengths=near) for rate in RATES[1:] for n in (False, True) for c in cells]
    return [*runs, *(run for run in search if run.cell != "none")]


@cache
def width_of(cell: str, bmru_width: int) -> int:
    """The width at which an agent has as many parameters as one with a BMRU."""
    target = sum(p.numel() for p in Agent("bmru", 3, len(ACTIONS), bmru_width).parameters())
    return bmru_width if cell == "bmru" else fit_width(lambda H: Agent(cell, 3, len(ACTIONS), H), target)


def train(run: TMazeRun) -> tuple[Agent, list[float]]:
    """The agent with its best weights, and the share of right turns in each rollout of the training.

    The best weights are those behind the ``window`` rollouts that had the most right turns, the last of several. An
    agent can lose in one update what it had learned: with a latch, one threshold too low is enough.
    """
    torch.manual_seed(run.seed)
    settings = replace(Settings(), rate=run.rate, rollouts=run.rollouts)
    agent = Agent(run.cell, 3, len(ACTIONS), width_of(run.cell, run.width))
    learner = Learner(agent, TMazes(settings.envs, run.longest, noise=run.noise), settings, run.seed)
    right: list[float] = []
    most, best = -1.0, copy.deepcopy(agent.state_dict())
    for episodes in learner.train():
        right.append(episodes["right"])
        recent = sum(right[-run.window :]) / run.window
        if recent >= most:
            most, best = recent, copy.deepcopy(agent.state_dict())
    agent.load_state_dict(best)
    return agent.eval(), right


def measure(run: TMazeRun) -> dict[str, Any]:
    """Train and test."""
    start = time.perf_counter()
    with one_thread():
        agent, right = train(run)
        trained = time.perf_counter() - start
        walks = walk(agent, run.noise, run.lengths, run.episodes, seed=run.seed)
    return {
        "settings": asdict(replace(Settings(), rate=run.rate, rollouts=run.rollouts)),
        "width": width_of(run.cell, run.width),
        "parameters": sum(parameter.numel() for parameter in agent.parameters()),
        "training": [round(share, 4) for share in right],
        "walks": [each.as_dict() for each in walks],
        "seconds": {"training": round(trained, 1), "all": round(time.perf_counter() - start, 1)},
    }

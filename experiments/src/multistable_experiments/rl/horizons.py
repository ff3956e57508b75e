"""Which memory lasts: the same agent with each cell, trained in short T-mazes and tested in long ones."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from multistable_experiments.rl.agent import Agent, fit_width
from multistable_experiments.rl.checkpoint import Checkpoint
from multistable_experiments.rl.corridors import LENGTHS, walk
from multistable_experiments.rl.ppo import Learner, Settings
from multistable_experiments.rl.rates import RATES, SEARCH_SEED, maze_rates
from multistable_experiments.rl.results import stored
from multistable_experiments.rl.tmaze import ACTIONS, TMazes
from multistable_experiments.threads import one_thread

__all__ = ["ApartRun", "TMazeRun", "best_rate", "measure", "plan", "search", "train"]


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
    def settings(self) -> Settings:
        return Settings(rollouts=self.rollouts, rate=self.rate)

    @property
    def name(self) -> str:
        rate = [] if self.rate == RATES[0] else [f"rate{self.rate:g}"]
        return "-".join(["tmaze", self.cell, *["noise"] * self.noise, *rate, f"seed{self.seed}"])


@dataclass(frozen=True)
class ApartRun(TMazeRun):
    """The same with a critic apart: its error does not train the memory."""

    critic: str = "apart"

    @property
    def name(self) -> str:
        return f"apart-{super().name}"


def search(cell: str, kind: type[TMazeRun] = TMazeRun) -> list[TMazeRun]:
    """Runs that decide the learning rate of a cell, tested near by only; none for the agent without memory."""
    near = LENGTHS[:1]
    mazes = [] if cell == "none" else (False, True)
    return [kind(cell, noise, SEARCH_SEED, rate, lengths=near) for noise in mazes for rate in RATES]


def best_rate(cell: str, folder: Path, kind: type[TMazeRun] = TMazeRun) -> float | None:
    """The learning rate of a cell; None while runs of its search are missing."""
    results = [stored(run, folder) for run in search(cell, kind)]
    found = [result for result in results if result is not None]
    return maze_rates(found).get(cell, RATES[0]) if len(found) == len(results) else None


def plan(
    cells: Sequence[str], seeds: int, folder: Path, rate: float | None = None, kind: type[TMazeRun] = TMazeRun
) -> list[TMazeRun]:
    """The search, then the runs of all cells whose rate is known by now, all of a seed before the next seed.

    Given a rate, only the runs of all cells at that rate. Each ``kind`` of run has a search of its own.
    """
    rates = {cell: rate or best_rate(cell, folder, kind) for cell in cells}
    return [
        *(run for cell in cells if rate is None for run in search(cell, kind)),
        *(
            kind(cell, noise, seed, chosen)
            for seed in range(seeds)
            for noise in (False, True)
            for cell, chosen in rates.items()
            if chosen is not None
        ),
    ]


@cache
def width_of(cell: str, bmru_width: int) -> int:
    """The width that gives an agent as many parameters as one with a BMRU."""
    target = sum(p.numel() for p in Agent("bmru", 3, len(ACTIONS), bmru_width).parameters())
    return bmru_width if cell == "bmru" else fit_width(lambda H: Agent(cell, 3, len(ACTIONS), H), target)


def train(run: TMazeRun, checkpoint: Checkpoint | None = None) -> tuple[Agent, dict[str, Any], Callable[[], None]]:
    """The agent with its best weights; the notes: correct turns in each rollout, seconds; what keeps them.

    The best weights are those behind the ``window`` rollouts that had the most correct turns, the last of several. An
    agent can lose in one update what it had learned: with a latch, one threshold too low is enough.
    """
    checkpoint = checkpoint or Checkpoint()
    width = width_of(run.cell, run.width)  # before the seed: it may build agents, which draws random numbers
    torch.manual_seed(run.seed)
    agent = Agent(run.cell, 3, len(ACTIONS), width, apart=isinstance(run, ApartRun))
    learner = Learner(agent, TMazes(run.settings.envs, run.longest, noise=run.noise), run.settings, run.seed)
    notes = {"run": asdict(run), "right": [], "most": -1.0, "best": copy.deepcopy(agent.state_dict())}
    notes |= {"seconds": 0.0, "walk": {}}
    checkpoint.load(learner, notes)
    start = time.perf_counter() - notes["seconds"]

    def keep() -> None:
        notes["seconds"] = time.perf_counter() - start
        checkpoint.keep(learner, notes)

    for episodes in learner.train(keep):
        notes["right"].append(episodes["right"])
        recent = sum(notes["right"][-run.window :]) / run.window
        if recent >= notes["most"]:
            notes["most"], notes["best"] = recent, copy.deepcopy(agent.state_dict())
        notes["trained"] = time.perf_counter() - start
    agent.load_state_dict(notes["best"])
    return agent.eval(), notes, keep


def measure(run: TMazeRun, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    """Train and test."""
    with one_thread():
        agent, notes, keep = train(run, checkpoint)
        walks = walk(agent, run.noise, run.lengths, run.episodes, seed=run.seed, notes=notes["walk"], between=keep)
    return {
        "settings": asdict(run.settings),
        "width": width_of(run.cell, run.width),
        "parameters": sum(parameter.numel() for parameter in agent.parameters()),
        "training": [round(share, 4) for share in notes["right"]],
        "walks": [each.as_dict() for each in walks],
        "seconds": {"training": round(notes["trained"], 1), "all": round(notes["seconds"], 1)},
    }

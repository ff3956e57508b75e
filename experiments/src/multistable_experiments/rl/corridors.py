"""Test an agent in T-mazes far longer than those it was trained in, in parallel over time.

An agent that always walks forward sees the clue, then the corridor, then the junction: its observations are known
before it acts. So a whole corridor is one sequence for the memory, and it is checked afterwards that the greedy action
was *forward* at every step of it. An episode in which it was not counts as failed (*strayed*).

The beginning of a long corridor is a shorter one: for every length L, the agent is shown the junction once with the
state behind step L - 1, and then walks on.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multistable_experiments.rl.agent import Agent
from multistable_experiments.rl.results import Walk
from multistable_experiments.rl.tmaze import DOWN, FORWARD, UP, clues, corridor, junction

__all__ = ["LENGTHS", "walk"]

LENGTHS = (30, 100, 1_000, 10_000, 100_000, 1_000_000)
CHUNK = 1 << 15  # timesteps of all episodes together that are computed at once: [1000, 32, 32] is 4 MB


@torch.no_grad()
def walk(
    agent: Agent,
    noise: bool,
    lengths: tuple[int, ...] = LENGTHS,
    episodes: int = 1_000,
    far: int = 100,
    seed: int = 0,
    notes: dict[str, Any] | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[Walk]:
    """Greedy episodes at each length; beyond 100,000 steps only ``far`` of them.

    Where the agent guesses, 20 walk on, and none beyond 100,000 steps. It guesses if fewer than 60 % were right at the
    length before: what is forgotten does not come back. Without noise there are two different episodes, one for each
    clue, and these two are tested.

    ``between`` is called after every chunk of steps; ``notes`` then has everything the next chunk depends on.
    """
    now = {} if notes is None else notes
    if not now:
        now.update(begin(agent, noise, episodes, seed))
    for length in lengths[len(now["found"]) :]:
        guesses = bool(now["found"]) and now["found"][-1].success < 0.6
        if guesses and length > 100_000:
            break
        keep = 20 if guesses else far if length > 100_000 else len(now["goal"])
        now["goal"], now["forward"] = now["goal"][:keep], now["forward"][:keep]
        now["state"] = now["state"][:, :keep].contiguous()
        while now["at"] < length:
            T = min(length - now["at"], max(1, CHUNK // len(now["goal"])))
            now["state"], went = advance(agent, corridor((len(now["goal"]), T), now["random"]), now["state"])
            now["forward"], now["at"] = now["forward"] & went, now["at"] + T
            between()
        now["found"].append(turn(agent, now, length))
    return now["found"]


def begin(agent: Agent, noise: bool, episodes: int, seed: int) -> dict[str, Any]:
    """The state of all episodes after the first step, which shows the clue."""
    goal = np.where(np.arange(episodes if noise else 2) % 2 == 0, UP, DOWN)
    start = agent.memory.initial_state((len(goal),), torch.zeros(len(goal), 3))
    state, forward = advance(agent, clues(goal)[:, None], start)
    random = np.random.default_rng([seed, 1]) if noise else None
    return {"goal": goal, "state": state, "forward": forward, "random": random, "at": 1, "found": []}


def turn(agent: Agent, now: dict[str, Any], length: int) -> Walk:
    """Show the junction to agents that are there; their states stay as they are."""
    goal, forward = torch.from_numpy(now["goal"]), now["forward"]
    seen = torch.from_numpy(junction(len(goal)))[:, None]
    right = agent(seen, now["state"])[0][:, 0].argmax(dim=-1) == goal
    return Walk(length, int((forward & right).sum()), int((forward & ~right).sum()), int((~forward).sum()))


def advance(agent: Agent, x: np.ndarray, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state after ``x [B, T, 3]``, and where all actions were forward, ``[B]``."""
    outputs, _, state = agent(torch.from_numpy(np.ascontiguousarray(x)), state)
    return state, (outputs.argmax(dim=-1) == FORWARD).all(dim=1)

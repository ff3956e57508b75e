"""Test an agent in T-mazes far longer than those it was trained in, in parallel over time.

An agent that always walks forward sees the clue, then the corridor, then the junction: its observations are known
before it acts. So a whole corridor is one sequence for the memory, and it is checked afterwards that the greedy action
was *forward* at every step of it. An episode in which it was not counts as failed (*strayed*).

The beginning of a long corridor is a shorter one: for every length L, the agent is shown the junction once with the
state behind step L - 1, and then walks on.
"""

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
    agent: Agent, noise: bool, lengths: tuple[int, ...] = LENGTHS, episodes: int = 1_000, far: int = 100, seed: int = 0
) -> list[Walk]:
    """Greedy episodes at each length; beyond 100,000 steps only ``far`` of them.

    Where the agent guesses, 20 walk on, and none beyond 100,000 steps. It guesses if fewer than 60 % were right at the
    length before: what is forgotten does not come back. Without noise there are two different episodes, one for each
    clue, and these two are tested.
    """
    random = np.random.default_rng([seed, 1]) if noise else None
    goal = np.where(np.arange(episodes if noise else 2) % 2 == 0, UP, DOWN)
    state, found, at = agent.memory.initial_state((len(goal),), torch.zeros(len(goal), 3)), [], 1
    state, forward = advance(agent, clues(goal)[:, None], state)
    for length in lengths:
        guesses = bool(found) and found[-1].success < 0.6
        if guesses and length > 100_000:
            break
        keep = 20 if guesses else far if length > 100_000 else len(goal)
        goal, forward, state = goal[:keep], forward[:keep], state[:, :keep].contiguous()
        while at < length:
            T = min(length - at, max(1, CHUNK // len(goal)))
            state, went = advance(agent, corridor((len(goal), T), random), state)
            forward, at = forward & went, at + T
        turn = agent(torch.from_numpy(junction(len(goal)))[:, None], state)[0][:, 0].argmax(dim=-1)
        right = turn == torch.from_numpy(goal)
        found.append(Walk(length, int((forward & right).sum()), int((forward & ~right).sum()), int((~forward).sum())))
    return found


def advance(agent: Agent, x: np.ndarray, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state behind ``x [B, T, 3]``, and whether all actions were forward, ``[B]``."""
    outputs, _, state = agent(torch.from_numpy(np.ascontiguousarray(x)), state)
    return state, (outputs.argmax(dim=-1) == FORWARD).all(dim=1)

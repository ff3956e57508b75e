"""Proximal policy optimisation with memory: rollouts carry the state on, updates recompute them in parallel.

``examples/ppo_memory.py`` explains the same algorithm step by step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from multistable_experiments.rl.agent import Agent

__all__ = ["Learner", "Settings", "objective", "policy_of", "policy_outputs"]


@dataclass(frozen=True)
class Settings:
    """Settings of the algorithm, the same for all cells; tasks change a few."""

    envs: int = 32
    steps: int = 128
    """Of a rollout; one sequence for each environment, with the gradient through all of it."""
    rollouts: int = 80
    epochs: int = 4
    batches: int = 4
    rate: float = 1e-3
    """Learning rate of Adam; it falls linearly to 0."""
    gamma: float = 0.98
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    max_norm: float = 0.5


def policy_outputs(space: spaces.Space) -> int:
    """How many numbers a policy over this space of actions needs."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.Box):
        return 2 * int(np.prod(space.shape))
    raise ValueError(f"no policy for actions in {space}")


class _Several(Distribution):
    """Independent categorical choices; an action is ``[..., K]``."""

    def __init__(self, parts: list[Categorical]) -> None:
        super().__init__(validate_args=False)
        self.parts = parts

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        return torch.stack([part.sample() for part in self.parts], dim=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        logs = [part.log_prob(v) for part, v in zip(self.parts, value.unbind(-1), strict=True)]
        return torch.stack(logs).sum(dim=0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(dim=0)


def policy_of(outputs: Tensor, space: spaces.Space) -> Distribution:
    """Actions from the actor's outputs ``[..., policy_outputs(space)]``."""
    if isinstance(space, spaces.Discrete):
        return Categorical(logits=outputs, validate_args=False)  # a check would wait for the GPU
    if isinstance(space, spaces.MultiDiscrete):
        parts = outputs.split(space.nvec.tolist(), dim=-1)
        return _Several([Categorical(logits=part, validate_args=False) for part in parts])
    mean, spread = outputs.chunk(2, dim=-1)
    return Independent(Normal(mean, F.softplus(spread + 0.5) + 1e-3, validate_args=False), 1)


class Rollout(NamedTuple):
    """All ``[B, T, ...]`` but ``state``, the memory before the first step."""

    x: Tensor
    reset: Tensor
    state: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor

    def of(self, chosen: Tensor) -> "Rollout":
        """The sequences of some environments."""
        return Rollout(*(x[:, chosen] if x is self.state else x[chosen] for x in self))


PLAYED = ("envs", "x", "reset", "state", "totals", "rollouts")  # attributes of a learner that change as it plays


class Learner:
    """An agent, its environments, and where they stand between two rollouts."""

    def __init__(self, agent: Agent, envs: VectorEnv, settings: Settings, seed: int) -> None:
        self.agent, self.envs, self.settings = agent, envs, settings
        self.optimiser = torch.optim.Adam(agent.parameters(), settings.rate)
        self.objective = partial(objective, space=envs.single_action_space, settings=settings)
        self.random = torch.Generator().manual_seed(seed)
        x, _ = envs.reset(seed=seed)
        self.x = torch.as_tensor(x, dtype=torch.float32)
        self.reset = torch.ones(len(x), dtype=torch.bool)
        self.state = agent.memory.initial_state((len(x),), self.x)
        self.totals = np.zeros(len(x))  # rewards of the episodes that are being played
        self.rollouts = 0  # behind us

    def train(self, between: Callable[[], None] = lambda: None) -> Iterator[dict[str, float]]:
        """The rollouts that are left. After each, while the agent still has the weights that played it, yield its
        episodes; ``between`` is called after the update."""
        while self.rollouts < self.settings.rollouts:
            for group in self.optimiser.param_groups:
                group["lr"] = self.settings.rate * (1 - self.rollouts / self.settings.rollouts)
            rollout, episodes = self.collect()
            yield episodes
            self.update(rollout)
            self.rollouts += 1
            between()

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollout depends on, but torch's and numpy's global random numbers."""
        return {
            "agent": self.agent.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": self.random.get_state(),
            "attributes": {name: getattr(self, name) for name in PLAYED},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.agent.load_state_dict(state["agent"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.random.set_state(state["random"])
        for name, value in state["attributes"].items():
            setattr(self, name, value)

    @torch.no_grad()
    def collect(self) -> tuple[Rollout, dict[str, float]]:
        """Play one rollout. The state after a step belongs to the next observation, unless that begins an episode."""
        settings, first, columns, right, returns = self.settings, self.state, [], 0, []
        for _ in range(settings.steps):
            outputs, value, self.state = self.agent.step(self.x, self.state, self.reset)
            policy = policy_of(outputs, self.envs.single_action_space)
            action = policy.sample()
            x, reward, terminated, truncated, info = self.envs.step(action.numpy())
            right += int(np.sum(info.get("right", 0)))
            self.totals += reward
            returns += self.totals[terminated | truncated].tolist()
            self.totals[terminated | truncated] = 0
            reward = torch.as_tensor(reward, dtype=torch.float32)
            if (cut := truncated & ~terminated).any():  # an episode that has ended has no rest
                reward = reward + settings.gamma * self.cut_off(info["final_obs"], cut)
            ended = torch.as_tensor(terminated | truncated)
            columns.append((self.x, self.reset, action, policy.log_prob(action), value, reward, ended))
            self.x, self.reset = torch.as_tensor(x, dtype=torch.float32), ended
        x, reset, action, log_prob, value, reward, ended = (torch.stack(c, dim=1) for c in zip(*columns, strict=True))
        after = self.agent.step(self.x, self.state, self.reset)[1]
        advantage = advantages(reward, value, ended, after, settings)
        count = max(len(returns), 1)
        episodes = {"episodes": len(returns), "right": right / count, "return": sum(returns) / count}
        return Rollout(x, reset, first, action, log_prob, value, advantage), episodes

    def cut_off(self, final_obs: np.ndarray, cut: np.ndarray) -> Tensor:
        """The values of the observations at which episodes were cut off, 0 for the others."""
        chosen = torch.as_tensor(cut)
        final = self.x.clone()
        final[chosen] = torch.as_tensor(np.stack(list(final_obs[cut])), dtype=torch.float32)
        return torch.where(chosen, self.agent.step(final, self.state, torch.zeros_like(chosen))[1], 0)

    def update(self, rollout: Rollout) -> None:
        settings = self.settings
        for _ in range(settings.epochs):
            for chosen in torch.randperm(settings.envs, generator=self.random).chunk(settings.batches):
                self.descend(rollout.of(chosen))

    def descend(self, rollout: Rollout) -> None:
        """One step of the optimiser on all of a rollout."""
        self.optimiser.zero_grad()
        self.loss(rollout).backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.settings.max_norm)
        self.optimiser.step()

    def loss(self, rollout: Rollout) -> Tensor:
        outputs, value, _ = self.agent(rollout.x, rollout.state, rollout.reset)
        return self.objective(outputs, value, rollout)


def objective(outputs: Tensor, value: Tensor, rollout: Rollout, *, space: spaces.Space, settings: Settings) -> Tensor:
    """PPO's loss from the agent's outputs ``[B, T, A]`` and values ``[B, T]``."""
    policy = policy_of(outputs, space)
    advantage = (rollout.advantage - rollout.advantage.mean()) / (rollout.advantage.std() + 1e-8)
    ratio = (policy.log_prob(rollout.action) - rollout.log_prob).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage)
    error = F.mse_loss(value, rollout.value + rollout.advantage)
    return -gain.mean() + 0.5 * error - settings.entropy * policy.entropy().mean()


def advantages(reward: Tensor, value: Tensor, ended: Tensor, after: Tensor, settings: Settings) -> Tensor:
    """``a_t = delta_t + gamma lambda a_{t+1}``, ``delta_t = r_t + gamma v_{t+1} - v_t``, cut where an episode ended."""
    going = 1 - ended.float()
    following = torch.cat([value[:, 1:], after[:, None]], dim=1)
    delta = reward + settings.gamma * going * following - value
    advantage, total = torch.empty_like(delta), torch.zeros_like(after)
    for t in reversed(range(delta.shape[1])):
        total = delta[:, t] + settings.gamma * settings.trace * going[:, t] * total
        advantage[:, t] = total
    return advantage

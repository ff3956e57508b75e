"""PPO with memory in one file: an agent that remembers what it saw once, with any layer of this library.

The usual difficulty with memory in PPO is that episodes end in the middle of a rollout. Code then loops over timesteps
to reset states, or cuts rollouts into short pieces and loses the gradient between them. Here a rollout is one sequence.
Its first state is carried over from the previous rollout, `reset` marks the first step of each episode, and every
update recomputes all timesteps at once and backpropagates through all of them.

    python examples/ppo_memory.py                          T-mazes with corridors of 1 to 20 steps, a BMRU: 10 seconds
    python examples/ppo_memory.py --cell gru               any name of multistable.layers.registry
    python examples/ppo_memory.py --env CartPole-v1        any gymnasium environment with discrete actions

Needs gymnasium: pip install '.[rl]'.
"""

import argparse
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

try:
    import gymnasium
except ImportError as error:
    raise SystemExit("this program needs gymnasium: pip install '.[rl]'") from error
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import FlattenObservation, RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

from multistable import Stack


@dataclass(frozen=True)
class Settings:
    env: str = "TMaze-v0"
    cell: str = "bmru"
    hidden: int = 32
    envs: int = 32  # B, parallel environments
    steps: int = 128  # T, timesteps per rollout
    rollouts: int = 40
    epochs: int = 4  # passes over each rollout
    batches: int = 4  # updates per pass; each uses the whole sequences of some environments
    rate: float = 1e-3
    gamma: float = 0.98
    trace: float = 0.95  # lambda of the advantage estimates
    clip: float = 0.2
    entropy: float = 0.01
    seed: int = 0


# The environment


class TMaze(gymnasium.Env):
    """A corridor of 1 to ``longest`` steps to a junction (Bakker 2001). A clue at the start says where to turn there.

    Observations have 3 numbers: 0 1 1 or 1 1 0 at the start (the clue), 1 0 1 in the corridor, 0 1 0 at the junction.
    Actions: 0 up, 1 forward, 2 down, 3 back. The right turn is rewarded with 4; a wrong turn costs 0.1, and so does
    an action that moves nowhere. An episode ends with a turn at the junction.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (3,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, longest: int = 20) -> None:
        self.longest = longest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position, self.length = 0, int(self.np_random.integers(1, self.longest + 1))
        self.goal = 2 * int(self.np_random.integers(2))  # 0 up, 2 down
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        turns = action in (0, 2)
        if self.position == self.length and turns:
            return self.observe(), 4.0 if action == self.goal else -0.1, True, False, {}
        before = self.position
        if not turns:
            self.position = min(max(before + (1 if action == 1 else -1), 0), self.length)
        return self.observe(), -0.1 if self.position == before else 0.0, False, False, {}

    def observe(self) -> np.ndarray:
        if self.position == 0:
            seen = (0, 1, 1) if self.goal == 0 else (1, 1, 0)
        else:
            seen = (0, 1, 0) if self.position == self.length else (1, 0, 1)
        return np.array(seen, dtype=np.float32)


gymnasium.register("TMaze-v0", TMaze, max_episode_steps=200)


def make_envs(settings: Settings) -> VectorEnv:
    """Environments that start the next episode in the same step in which the previous one ended."""
    envs = gymnasium.make_vec(
        settings.env,
        settings.envs,
        "sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=(FlattenObservation, RecordEpisodeStatistics),
    )
    if not isinstance(envs.single_action_space, gymnasium.spaces.Discrete):
        raise ValueError(f"this PPO needs discrete actions, {settings.env} has {envs.single_action_space}")
    return envs


# The agent


class Agent(nn.Module):
    """A memory with two read-outs: the logits of the actions and the value of the state."""

    def __init__(self, envs: VectorEnv, settings: Settings) -> None:
        super().__init__()
        D, A = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)  # pyright: ignore
        self.memory = Stack(settings.cell, D, settings.hidden, batch_first=True)
        self.actor = nn.Linear(settings.hidden, A)
        self.critic = nn.Linear(settings.hidden, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)  # at first, all actions are about equally likely

    def forward(self, x: Tensor, state: Tensor | None, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map observations ``[B, T, D]``, the state before them and the episode starts ``[B, T]`` to logits
        ``[B, T, A]``, values ``[B, T]`` and the state after them."""
        features, state = self.memory(x, state, reset=reset)
        # The critic only reads the memory. Where its error trains the memory, too, a BMRU may lose a clue again, and
        # CartPole-v1 is learned more slowly with BMRU, hybrid and GRU: docs/log.md, "A critic apart".
        return self.actor(features), self.critic(features.detach()).squeeze(-1), state


class Now(NamedTuple):
    """The environments between two rollouts."""

    x: Tensor  # [B, D], the next observations
    reset: Tensor  # [B], whether they are the first of an episode
    state: Tensor | None  # the memory before them; None: nothing seen yet


class Rollout(NamedTuple):
    """T timesteps of B environments. All tensors are ``[B, T, ...]``, except ``state``, the memory before the first."""

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


@torch.no_grad()
def collect(agent: Agent, envs: VectorEnv, now: Now, settings: Settings) -> tuple[Rollout, Now, list[float]]:
    """Play T timesteps. Return the rollout, the environments after it, and the returns of episodes that ended in it."""
    steps, returns = [], []
    first = agent.memory.initial_state((envs.num_envs,), now.x) if now.state is None else now.state
    now = now._replace(state=first)
    for _ in range(settings.steps):
        logits, value, state = agent(now.x[:, None], now.state, now.reset[:, None])
        policy = Categorical(logits=logits[:, 0])
        action = policy.sample()
        x, reward, terminated, truncated, info = envs.step(action.numpy())
        reward, ended = torch.as_tensor(reward, dtype=torch.float32), torch.as_tensor(terminated | truncated)
        if (truncated := truncated & ~terminated).any():  # the episode was cut off: add the value of the rest
            last = torch.stack([torch.as_tensor(y, dtype=torch.float32).flatten() for y in final(info, x, truncated)])
            rest = agent(last[:, None], state, torch.zeros(len(last), 1, dtype=torch.bool))[1][:, 0]
            reward = reward + settings.gamma * torch.where(torch.as_tensor(truncated), rest, 0)
        steps.append((now.x, now.reset, action, policy.log_prob(action), value[:, 0], reward, ended))
        returns += episode_returns(info)
        # The next observation of an environment that has ended is the first of its next episode.
        now = Now(torch.as_tensor(x, dtype=torch.float32), ended, state)
    x, reset, action, log_prob, value, reward, ended = (
        torch.stack(column, dim=1) for column in zip(*steps, strict=True)
    )
    after = agent(now.x[:, None], now.state, now.reset[:, None])[1][:, 0]
    advantage = advantages(reward, value, ended, after, settings)
    return Rollout(x, reset, first, action, log_prob, value, advantage), now, returns


def final(info: dict, x: np.ndarray, truncated: np.ndarray) -> list[np.ndarray]:
    """The last observations of truncated episodes; the entries of other environments are not used."""
    return [info["final_obs"][i] if truncated[i] else x[i] for i in range(len(x))]


def episode_returns(info: dict) -> list[float]:
    """The returns of the episodes that have just ended, as reported by RecordEpisodeStatistics."""
    if "final_info" not in info or "episode" not in info["final_info"]:
        return []
    episode = info["final_info"]["episode"]
    return episode["r"][info["final_info"]["_episode"]].tolist()


def advantages(reward: Tensor, value: Tensor, ended: Tensor, after: Tensor, settings: Settings) -> Tensor:
    """Generalised advantage estimates ``[B, T]``: how much better the actions were than expected.

    ``delta_t = r_t + gamma v_{t+1} - v_t`` and ``a_t = delta_t + gamma lambda a_{t+1}``, both without the term of t + 1
    where an episode ends; ``after`` is the value after the last step.
    """
    going = 1 - ended.float()
    following = torch.cat([value[:, 1:], after[:, None]], dim=1)
    delta = reward + settings.gamma * going * following - value
    advantage, total = torch.empty_like(delta), torch.zeros_like(after)
    for t in reversed(range(delta.shape[1])):
        total = delta[:, t] + settings.gamma * settings.trace * going[:, t] * total
        advantage[:, t] = total
    return advantage


# Learning


def update(agent: Agent, optimiser: torch.optim.Optimizer, rollout: Rollout, settings: Settings) -> None:
    """Train for a few epochs on one rollout."""
    for _ in range(settings.epochs):
        for chosen in torch.randperm(settings.envs).chunk(settings.batches):
            optimiser.zero_grad()
            ppo_loss(agent, rollout.of(chosen), settings).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimiser.step()


def ppo_loss(agent: Agent, rollout: Rollout, settings: Settings) -> Tensor:
    """The loss of PPO. One call recomputes all timesteps of all episodes; the gradient passes through all of them."""
    logits, value, _ = agent(rollout.x, rollout.state, rollout.reset)
    policy = Categorical(logits=logits)
    advantage = (rollout.advantage - rollout.advantage.mean()) / (rollout.advantage.std() + 1e-8)
    ratio = (policy.log_prob(rollout.action) - rollout.log_prob).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage)
    error = F.mse_loss(value, rollout.value + rollout.advantage)
    return -gain.mean() + 0.5 * error - settings.entropy * policy.entropy().mean()


def train(settings: Settings, say: Any = print) -> tuple[Agent, list[float]]:
    """Train an agent. Return it, and the mean episode return of each rollout."""
    torch.manual_seed(settings.seed)
    envs = make_envs(settings)
    agent = Agent(envs, settings)
    optimiser = torch.optim.Adam(agent.parameters(), settings.rate)
    x, _ = envs.reset(seed=settings.seed)
    now = Now(torch.as_tensor(x, dtype=torch.float32), torch.ones(settings.envs, dtype=torch.bool), None)
    curve: list[float] = []
    for i in range(settings.rollouts):
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * (1 - i / settings.rollouts)
        rollout, now, returns = collect(agent, envs, now, settings)
        update(agent, optimiser, rollout, settings)
        curve.append(float(np.mean(returns)) if returns else float("nan"))
        if i % 10 == 9:
            say(f"{(i + 1) * settings.envs * settings.steps:,} steps: mean return {curve[-1]:.2f}")
    envs.close()
    return agent, curve


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small: on two busy cores, two threads took 30 times as long
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Settings):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    train(Settings(**vars(parser.parse_args())))

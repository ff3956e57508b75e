"""A recurrent agent: balance a pole on a cart without seeing velocities, by PPO.

    pip install gymnasium
    python examples/clients/agent.py

The agent sees the position of the cart and the angle of the pole, and has to infer how fast they change. Episodes
follow each other within a rollout; `reset` marks their first steps, so that no loop over time is needed in training.
The score is the number of steps for which the pole stays up, at most 500: the mean of 64 episodes.
"""

import time
from typing import NamedTuple

import torch
from compare import Net, Program, Trained, build, compare
from torch import Tensor, nn
from torch.distributions import Categorical

CARTS, LENGTH, UPDATES, EPOCHS = 16, 128, 60, 4
DISCOUNT, SMOOTHING, CLIP, ENTROPY = 0.98, 0.95, 0.2, 0.01
REWARD = 0.02  # of each step, so that values are at most 1


class Step(NamedTuple):
    """One timestep of all carts, or a rollout of them ``[CARTS, LENGTH]``, with what the agent saw and did."""

    x: Tensor
    first: Tensor
    """Whether an episode begins."""
    over: Tensor
    """Whether the episode has ended with the step before: this one has no effect but to begin a new one."""
    action: Tensor
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    fallen: Tensor
    """Whether the pole falls in this step; an episode of 500 steps ends without."""
    ended: Tensor


class Carts:
    """Many carts side by side, for ever: an episode that has ended is followed by a new one."""

    def __init__(self, count: int, seed: int) -> None:
        try:
            import gymnasium
        except ImportError as error:
            raise SystemExit("this program needs gymnasium: pip install gymnasium") from error
        self.env = gymnasium.make_vec("CartPole-v1", count, vectorization_mode="vector_entry_point")
        self.x = self.visible(self.env.reset(seed=seed)[0])
        self.first, self.over = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)

    @staticmethod
    def visible(observation) -> Tensor:
        """Position and angle, ``[B, 2]``, without the velocities."""
        return torch.as_tensor(observation)[:, [0, 2]] * torch.tensor([1.0, 10.0])

    @torch.no_grad()
    def step(self, agent: Net, state: Tensor | None, greedy: bool = False) -> tuple[Step, Tensor]:
        """Let the agent act once; also return its new state."""
        if state is not None:
            state = state * ~self.first[:, None]
        features, state = agent.rnn.step(self.x, state)
        out = agent.head(features)  # two scores of actions, and the value of the state
        choice = Categorical(logits=out[:, :2])
        action = out[:, :2].argmax(-1) if greedy else choice.sample()
        seen = self.x, self.first, self.over, action, choice.log_prob(action), out[:, 2]
        observation, reward, fallen, late, _ = self.env.step(action.numpy())
        fallen, late = torch.as_tensor(fallen), torch.as_tensor(late)
        self.x, self.first, self.over = self.visible(observation), self.over, fallen | late
        return Step(*seen, REWARD * torch.as_tensor(reward), fallen, fallen | late), state


def advantages(rollout: Step, last: Tensor) -> Tensor:
    """Generalised advantage estimates ``[B, T]``; ``last [B]`` is the value after the rollout."""
    following = torch.cat([rollout.value[:, 1:], last[:, None]], dim=1)
    surprise = rollout.reward + DISCOUNT * following * ~rollout.fallen - rollout.value
    total, found = torch.zeros_like(last), []
    for t in reversed(range(surprise.shape[1])):
        total = surprise[:, t] + DISCOUNT * SMOOTHING * total * ~(rollout.ended | rollout.over)[:, t]
        found.append(total)
    return torch.stack(found[::-1], dim=1)


def ppo_loss(agent: Net, start: Tensor, rollout: Step, gain: Tensor) -> Tensor:
    out = agent.head(agent.rnn(rollout.x, start, reset=rollout.first)[0])
    real, choice = ~rollout.over, Categorical(logits=out[..., :2])
    ratio = (choice.log_prob(rollout.action) - rollout.log_prob).exp()
    scaled = (gain - gain[real].mean()) / (gain[real].std() + 1e-8)
    policy = -torch.minimum(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled)
    value = (out[..., 2] - (rollout.value + gain)).square()
    return (policy + value - ENTROPY * choice.entropy())[real].mean()


def balance(agent: Net, seed: int, episodes: int = 64) -> float:
    """How many steps the pole stays up, in the mean of so many episodes, if the agent does what it thinks best."""
    carts, state, up, total = Carts(episodes, seed), None, torch.ones(episodes, dtype=torch.bool), 0.0
    for _ in range(500):
        step, state = carts.step(agent, state, greedy=True)
        total += up.float().mean().item()
        up = up & ~step.ended
    return total


def train(kind: str, rate: float, seed: int, width: int, updates: int = UPDATES) -> Trained:
    agent = build(kind, 2, 3, seed, width)
    carts, state = Carts(CARTS, seed), agent.rnn.initial_state((CARTS,), torch.zeros(()))
    optimiser, begin = torch.optim.Adam(agent.parameters(), lr=rate), time.process_time()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        start, steps = state, []
        for _ in range(LENGTH):
            step, state = carts.step(agent, state)
            steps.append(step)
        rollout = Step(*(torch.stack(parts, dim=1) for parts in zip(*steps, strict=True)))
        with torch.no_grad():
            last = agent.head(agent.rnn.step(carts.x, state)[0])[:, 2]
        gain = advantages(rollout, last)
        for _ in range(EPOCHS):
            optimiser.zero_grad()
            ppo_loss(agent, start, rollout, gain).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimiser.step()
        schedule.step()
    seconds = time.process_time() - begin
    return Trained(agent, -balance(agent, 10**6), balance(agent, 10**6 + 1), seconds)


PROGRAM = Program("steps", train)

if __name__ == "__main__":
    compare(PROGRAM)

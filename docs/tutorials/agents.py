# %% [markdown]
# # Memory in reinforcement learning
#
# An agent sees a clue at the start of a corridor and must turn the right way at the end, so it needs memory. The usual
# difficulty with memory in reinforcement learning is that episodes end in the middle of a rollout. Here a rollout is
# one sequence, and `reset` marks where episodes start.

# %%
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from multistable import Stack

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other

# %% [markdown]
# ## The environment: a batch of corridors
#
# An observation has three numbers: the clue (+1 or -1 at the start, then 0), whether this is the junction, and noise.
# At the junction the agent goes up or down, and the right choice is rewarded with 1. Elsewhere the action has no effect
# and the agent moves on.


# %%
class Corridors:
    """B parallel corridors of 2 to ``longest`` steps; when one ends, a new one starts."""

    def __init__(self, B: int, longest: int) -> None:
        self.B, self.longest = B, longest
        self.place = torch.zeros(B, dtype=torch.long)
        self.length = torch.randint(2, longest + 1, (B,))
        self.goal = torch.randint(2, (B,))

    def see(self) -> tuple[Tensor, Tensor]:
        """Observations ``[B, 3]``, and whether each is the first of an episode."""
        first = self.place == 0
        clue = torch.where(first, 2.0 * self.goal - 1, 0.0)
        junction = (self.place == self.length - 1).float()
        return torch.stack([clue, junction, 0.3 * torch.randn(self.B)], dim=-1), first

    def act(self, action: Tensor) -> Tensor:
        """Rewards ``[B]``."""
        ends = self.place == self.length - 1
        reward = (ends & (action == self.goal)).float()
        self.place = torch.where(ends, 0, self.place + 1)
        self.length = torch.where(ends, torch.randint(2, self.longest + 1, (self.B,)), self.length)
        self.goal = torch.where(ends, torch.randint(2, (self.B,)), self.goal)
        return reward


# %% [markdown]
# ## The agent
#
# The state goes in and comes out; the module stores none. Acting and learning use the same call, with one timestep
# while acting and a whole rollout while learning.


# %%
class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Stack("bmru", 3, 32, batch_first=True)
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x: Tensor, state: Tensor | None, reset: Tensor) -> tuple[Categorical, Tensor, Tensor]:
        features, state = self.memory(x, state, reset=reset)
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1), state


@torch.no_grad()
def play(agent: Agent, world: Corridors, state: Tensor, T: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Play T steps: observations, episode starts, actions and rewards ``[B, T, ...]``, and the state after them."""
    seen = []
    for _ in range(T):
        x, first = world.see()
        policy, _, state = agent(x[:, None], state, first[:, None])
        action = policy.sample()[:, 0]
        seen.append((x, first, action, world.act(action)))
    return tuple(torch.stack(column, dim=1) for column in zip(*seen, strict=True)), state


# %% [markdown]
# ## Learning
#
# This is the simplest actor-critic method: the only action that matters is rewarded at once, at the junction, so the
# return of an episode is its reward. (For PPO in one file, see `examples/ppo_memory.py`.) Each update recomputes the
# whole rollout in one call and backpropagates through all of it; `reset` separates the episodes.

# %%
agent, world = Agent(), Corridors(64, longest=20)
optimiser = torch.optim.Adam(agent.parameters(), lr=5e-3)
state = agent.memory.initial_state((64,), torch.zeros(64, 3))
for update in range(120):
    start = state
    (x, first, action, reward), state = play(agent, world, state, 32)
    policy, value, _ = agent(x, start, first)
    ends = x[..., 1] == 1
    advantage = (reward - value.detach())[ends]
    loss = -(policy.log_prob(action)[ends] * advantage).mean() + F.mse_loss(value[ends], reward[ends])
    loss = loss - 0.01 * policy.entropy()[ends].mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if update % 30 == 29:
        print(f"update {update + 1}: {reward[ends].mean():.0%} of turns are right")

# %% [markdown]
# ## A corridor a hundred times as long
#
# The agent was trained with at most 20 steps. Is the clue held for 2,000, too?


# %%
@torch.no_grad()
def success(agent: Agent, T: int, B: int = 100) -> float:
    goal = torch.randint(2, (B,))
    x = torch.stack([torch.zeros(B, T), torch.zeros(B, T), 0.3 * torch.randn(B, T)], dim=-1)
    x[:, 0, 0], x[:, -1, 1] = 2.0 * goal - 1, 1.0
    policy, _, _ = agent(x, None, torch.zeros(B, T, dtype=torch.bool))
    return float((policy.probs[:, -1].argmax(-1) == goal).float().mean())


for T in (20, 200, 2_000):
    print(f"{T:>5} steps: {success(agent, T):.0%}")
assert success(agent, 2_000) > 0.9

# %% [markdown]
# [Memory for agents](../rl.md) has adapters for TorchRL and sb3-contrib, measurements, and advice on which cell to
# choose.

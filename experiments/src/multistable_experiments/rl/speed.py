"""How many updates a learner makes per second: PPO's loss on one rollout, backward, and a step of Adam.

Layers of this library get the marks of episodes inside the rollout (``reset``). ``nn.GRU`` and ``nn.LSTM`` get none,
as if the rollout were one episode: with them they would have to loop or to cut the rollout, and be slower.

On a GPU an update is replayed as one CUDA graph, with every memory: launched one by one, its kernels take 5 ms at 128
steps, whatever the memory. There the loss after the memory is compiled and Adam is fused, too: some sixty small
kernels, the same for all, would take as long as the memory. All products of float32 are computed in TF32, as cuDNN
computes those of ``nn.GRU`` and ``nn.LSTM`` by default. And the processor waits for the GPU once per rollout, that is
after 16 updates, as PPO does.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from multistable import BMRU, LRU, MinGRU, Stack
from multistable_experiments.bench.measure import take_turns
from multistable_experiments.bench.report import Row
from multistable_experiments.rl.agent import Agent
from multistable_experiments.rl.ppo import Learner, Rollout, Settings, objective

__all__ = ["rows"]

B, N, D, ACTIONS = 8, 128, 32, 8
LENGTHS = (1_024, 128, 8_192)  # the one with a goal first
GOALS = {"cpu": 5.0, "cuda": 10.0}  # BMRU over nn.GRU at 1,024 steps
UPDATES = {"cpu": 1, "cuda": Settings().epochs * Settings().batches}  # timed together
MEMORIES: dict[str, Callable[[], nn.Module]] = {
    "BMRU": partial(BMRU, D, N, batch_first=True),
    "LRU": partial(LRU, D, N, batch_first=True),
    "MinGRU": partial(MinGRU, D, N, batch_first=True),
    "Stack, 1 block of BMRU": partial(Stack, "bmru", D, N, batch_first=True),
    "Stack, 1 block of hybrid": partial(Stack, "hybrid", D, N, batch_first=True),
    "Stack, 2 blocks of hybrid": partial(Stack, "hybrid", D, N, 2, batch_first=True),
}


class WithoutMarks(nn.Module):
    """torch's own module in an agent; it starts from zero and knows no episodes."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor, state: Tensor, *, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.rnn(x)[0], state

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_zeros(1, *shape, 1)


class NoEnvs(VectorEnv):
    """What a learner reads of its environments when it does not play."""

    def __init__(self) -> None:
        self.single_action_space = spaces.Discrete(ACTIONS)

    def reset(self, **options: object) -> tuple[Tensor, dict[str, object]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.zeros(B, D), {}


def rows(device: str = "cpu", repeats: int = 5) -> Iterator[Row]:
    """Milliseconds per update, all memories in turns in this process; on a GPU its products are TF32 from now on."""
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    for T in LENGTHS:
        rivals = {"nn.GRU": nn.GRU(D, N, batch_first=True), "nn.LSTM": nn.LSTM(D, N, batch_first=True)}
        memories = [build() for build in MEMORIES.values()] + [WithoutMarks(rnn) for rnn in rivals.values()]
        calls = [partial(run, build_update(memory, T, device), device) for memory in memories]
        times = take_turns(calls, repeats if T < 8_192 else min(repeats, 3))
        *ours, gru, lstm = (ms / UPDATES[device] for ms in times)
        for name, ms in zip(MEMORIES, ours, strict=True):
            goal = GOALS[device] if (name, T) == ("BMRU", 1_024) else None
            yield Row(f"learner, {name}", (B, T, N), "float32", ms, "nn.GRU", gru, kind="gain", goal=goal)
            yield Row(f"learner, {name}", (B, T, N), "float32", ms, "nn.LSTM", lstm, kind="gain")


def build_update(memory: nn.Module, T: int, device: str) -> Callable[[], None]:
    """One update on a random rollout of T steps, in which an episode begins at every fiftieth step on average."""
    agent = Agent("none", D, ACTIONS, N)
    agent.memory = memory  # pyright: ignore[reportAttributeAccessIssue]
    agent.to(device)
    learner = Learner(agent, NoEnvs(), Settings(envs=B, steps=T), seed=0)
    x, action = torch.randn(B, T, D, device=device), torch.randint(ACTIONS, (B, T), device=device)
    reset, numbers = torch.rand(B, T, device=device) < 0.02, torch.randn(3, B, T, device=device)
    state = agent.memory.initial_state((B,), x[:, 0])
    update = partial(learner.descend, Rollout(x, reset, state, action, *numbers.unbind(0)))
    if device == "cpu":
        return update
    learner.objective = _compiled_objective()
    learner.optimiser = torch.optim.Adam(agent.parameters(), learner.settings.rate, capturable=True, fused=True)
    return replayed(update)


def run(update: Callable[[], None], device: str) -> None:
    """The updates that are timed together, to their end."""
    for _ in range(UPDATES[device]):
        update()
    if device == "cuda":
        torch.cuda.synchronize()


@cache
def _compiled_objective() -> Any:
    return torch.compile(partial(objective, space=NoEnvs().single_action_space, settings=Settings()), dynamic=False)


def replayed(update: Callable[[], None]) -> Callable[[], None]:
    """The update as a CUDA graph."""
    from multistable_experiments.training.step import warm_up

    warm_up(update)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()

    def replay(_kept: object = update) -> None:  # the graph reads the rollout and the weights
        graph.replay()

    return replay

"""Train machines on state tracking until they are certified."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers.fsm import Surrogate
from multistable.machines import Machine, Transducer, Verdict, certify
from multistable_experiments.tasks.seeds import generator
from multistable_experiments.tasks.state_tracking import machine, random_symbols, with_idle

__all__ = ["Data", "Training", "build", "loss", "train"]

CHECK_EVERY = 50  # updates; a wrong model is refuted in milliseconds
SUCCESSORS = 10**6  # of pairs of states, computed at most by one check: a second


@dataclass(frozen=True)
class Data:
    """Training data; one length is drawn for each batch."""

    machine: str
    length: int = 128
    lengths: Literal["uniform", "log"] = "uniform"
    """Their distribution, from 1 to ``length``; with ``log`` that of their logarithm is uniform, so that half are below
    ``sqrt(length)``."""
    batch: int = 64
    idle: float = 0.0
    """Probability that a step has one of ``idle_symbols`` symbols that change nothing."""
    idle_symbols: int = 0
    broken: float = 0.05
    """How often brackets are broken (:func:`random_symbols`)."""

    @property
    def target(self) -> Machine:
        """The machine with its idle symbols."""
        return with_idle(machine(self.machine), self.idle_symbols)

    def draw(self, random: torch.Generator) -> Tensor:
        """Symbols ``[batch, T]``."""
        shape = (self.batch, self.draw_length(random))
        return random_symbols(machine(self.machine), shape, random, self.idle, self.idle_symbols, self.broken)

    def draw_length(self, random: torch.Generator) -> int:
        if self.lengths == "uniform":
            return int(torch.randint(1, self.length + 1, (), generator=random))
        return int((self.length + 1) ** float(torch.rand((), generator=random)))


@dataclass(frozen=True)
class Training:
    """Everything that decides the numbers of one training."""

    machine: str
    seed: int = 0
    surrogate: Surrogate = "softmax"
    answers: Literal["last", "every"] = "every"
    """Whether the loss counts the last answer or all of them."""
    units: int = 4
    states: int | None = None
    """Of each unit; None: as many as the target has."""
    length: int = 128
    lengths: Literal["uniform", "log"] = "uniform"
    batch: int = 64
    updates: int = 2_000
    """At most; training ends when the model is certified."""
    rate: float = 1e-2
    decay: float = 0.0
    """Weight decay, relative to the rate: it silences units that have learnt nothing."""
    idle: float = 0.0
    idle_symbols: int = 0
    broken: float = 0.05

    @property
    def name(self) -> str:
        size = [] if self.states is None else [f"{self.units}x{self.states}"]
        words = [self.machine, self.surrogate, *size, *["last"] * (self.answers == "last")]
        return "-".join([*words, *["log"] * (self.lengths == "log"), *["idle"] * (self.idle > 0), f"seed{self.seed}"])

    @property
    def data(self) -> Data:
        return Data(self.machine, self.length, self.lengths, self.batch, self.idle, self.idle_symbols, self.broken)

    def settings(self) -> dict[str, Any]:
        """As stored: later fields are left out where they mean what was computed before them."""
        return {key: value for key, value in asdict(self).items() if key not in LATER or value != LATER[key]}


LATER = {"decay": 0.0, "idle": 0.0, "idle_symbols": 0, "broken": 0.05}
"""Fields that results of earlier commits lack, and the values that mean their behaviour."""


def train(training: Training) -> tuple[Transducer, Verdict, int]:
    """The model, what is proven of it, and after how many updates."""
    torch.manual_seed(training.seed)
    data, random = training.data, generator(training.seed, "machines", training.machine)
    target, model = data.target, build(training)
    optimiser = torch.optim.AdamW(model.parameters(), lr=training.rate, weight_decay=training.decay)
    max_pairs = SUCCESSORS // target.n_symbols
    for update in range(1, training.updates + 1):
        optimiser.zero_grad()
        loss(model, target, data.draw(random), training.answers).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if update % CHECK_EVERY == 0:
            verdict = certify(model, target, max_pairs=max_pairs)
            if verdict.right:
                return model.eval(), verdict, update
    return model.eval(), certify(model, target, max_pairs=max_pairs), training.updates


def build(training: Training) -> Transducer:
    """The model before training."""
    target = training.data.target
    states = training.states or target.n_states
    return Transducer(target.n_symbols, target.n_outputs, training.units, states, surrogate=training.surrogate)


def loss(model: nn.Module, target: Machine, symbols: Tensor, answers: str) -> Tensor:
    logits, right = model(symbols)[0], target.run(symbols)
    if answers == "last":
        logits, right = logits[:, -1:], right[:, -1:]
    return F.cross_entropy(logits.flatten(0, 1), right.flatten())

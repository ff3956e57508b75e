"""Train machines on state tracking, certify them, and record how: the command ``multistable machines``."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.layers.fsm import Surrogate
from multistable.machines import Machine, Transducer, Verdict, certify
from multistable_experiments.files import stored_result, write_json
from multistable_experiments.machine import describe
from multistable_experiments.tasks.seeds import generator
from multistable_experiments.tasks.state_tracking import failing_length, machine, random_symbols

__all__ = ["SMOKE", "Training", "record", "train"]

SMOKE = ("parity", "Z3", "S3", "flip-flop")
CHECK_EVERY = 50  # updates; a wrong model is refuted in milliseconds


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
    """One length is drawn for each batch, from 1 to this."""
    lengths: Literal["uniform", "log"] = "uniform"
    """Their distribution; with ``log`` that of their logarithm is uniform, so that half are below ``sqrt(length)``."""
    batch: int = 64
    updates: int = 2_000
    """At most; training ends when the model is certified."""
    rate: float = 1e-2

    @property
    def name(self) -> str:
        words = [self.machine, self.surrogate, *["last"] * (self.answers == "last"), *["log"] * (self.lengths == "log")]
        return "-".join([*words, f"seed{self.seed}"])


def train(training: Training) -> tuple[Transducer, Verdict, int]:
    """The model, what is proven of it, and after how many updates."""
    torch.manual_seed(training.seed)
    target, random = machine(training.machine), generator(training.seed, "machines", training.machine)
    states = training.states or target.n_states
    model = Transducer(target.n_symbols, target.n_outputs, training.units, states, surrogate=training.surrogate)
    optimiser = torch.optim.Adam(model.parameters(), lr=training.rate)
    verdict = certify(model, target)
    for update in range(1, training.updates + 1):
        symbols = random_symbols(target, (training.batch, draw_length(training, random)), random)
        optimiser.zero_grad()
        loss(model, target, symbols, training.answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if update % CHECK_EVERY == 0:
            verdict = certify(model, target, max_pairs=10**6)
            if verdict.right:
                return model.eval(), verdict, update
    return model.eval(), verdict, training.updates


def draw_length(training: Training, random: torch.Generator) -> int:
    if training.lengths == "uniform":
        return int(torch.randint(1, training.length + 1, (), generator=random))
    return int((training.length + 1) ** float(torch.rand((), generator=random)))


def loss(model: Transducer, target: Machine, symbols: Tensor, answers: str) -> Tensor:
    logits, right = model(symbols)[0], target.run(symbols)
    if answers == "last":
        logits, right = logits[:, -1:], right[:, -1:]
    return F.cross_entropy(logits.flatten(0, 1), right.flatten())


def record(
    training: Training, folder: Path, longest: int = 100_000, sequences: int = 8, about: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train, certify, test on long inputs, and write ``<folder>/<name>.json``, unless that is there; ``about`` is this
    machine."""
    path = folder / f"{training.name}.json"
    if (stored := stored_result(path, "training", asdict(training))) is not None:
        tested = stored["test"]["longest"], stored["test"]["sequences"]
        if tested != (longest, sequences):
            raise ValueError(f"{path} was tested on {tested[1]} sequences of {tested[0]:,} steps: move it away")
        return stored
    start = time.perf_counter()
    model, verdict, updates = train(training)
    seconds = time.perf_counter() - start
    failed = failing_length(model, machine(training.machine), longest=longest, sequences=sequences, seed=training.seed)
    result = {
        "training": asdict(training),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "updates": updates,
        "seconds": round(seconds, 2),
        "verdict": asdict(verdict),
        "test": {"longest": longest, "sequences": sequences, "failing_length": failed},
        "machine": about or describe(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return result

"""Copy-first-input in small: three models trained by the library's loop, then tested on longer sequences.

The first of many random numbers is to be given back at the end. Training and folder are those of
``multistable train``: a killed demo goes on where it was, and a finished run is not computed again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multistable.models import build_model
from multistable_experiments.paper.settings import SHORT, Preset, make_run
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training import Options, Run, train_run
from multistable_experiments.training.evaluate import evaluate_stream
from multistable_experiments.training.results import folder_of, load_trained

__all__ = ["CELLS", "FIRST", "LENGTHS", "NOISES", "PRESET", "Outcome", "learn", "make"]

CELLS = {"BMRU": "bmru", "LRU": "lru", "GRU": "gru"}
# Ten steps, because all three learn them: with 20 to 50 the GRU's error stayed at 1 in as many epochs, and with 50 the
# LRU's was 0.2 (BMRU: 0.03 with 20 steps, 0.06 with 50). Without beta_bias the BMRU's error at 10,000 steps is 1 to 2
# with weak noise instead of 0.002, because thresholds that start near zero at the mean input stay there for some units.
PRESET = Preset(
    CopyFirst(length=10, train_samples=8_000, test_samples=2_000),
    blocks=1, d_model=32, d_state=64, epochs=20, batch_size=64, schedule=SHORT, beta_bias=4.0,
)  # fmt: skip
LENGTHS = (10, 20, 50, 100, 300, 1_000, 3_000, 10_000)
NOISES = (1.0, 0.1)
"""Standard deviation of the numbers after the first in the tests: that of the training, and the paper's weaker one."""
FIRST = (-1.5, -0.75, 0.0, 0.75, 1.5)
"""First numbers of the sequences that are drawn."""

Show = Callable[[Sequence[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class Outcome:
    """A trained model and its tests."""

    run: Run
    result: dict[str, Any]
    """What :func:`~multistable_experiments.training.train_run` wrote: history, metrics, seconds, versions, commit."""
    errors: dict[float, list[tuple[int, float]]]
    """For each noise: length, mean squared error."""
    outputs: Tensor
    """The output at every step of sequences with the first numbers ``FIRST``: ``[5, T]``."""


def make(name: str, seed: int, preset: Preset = PRESET) -> Run:
    return make_run(preset, (CELLS[name],) * preset.blocks, seed=seed)


def learn(run: Run, folder: Path, lengths: Sequence[int], samples: int, show: Show, show_progress: bool) -> Outcome:
    """Train, or go on from what is in ``folder``; then test the weights that were best on the validation set."""
    result = train_run(run, folder, Options(device="cpu", show_progress=show_progress))
    _, model = load_trained(folder_of(run, folder))
    errors: dict[float, list[tuple[int, float]]] = {noise: [] for noise in NOISES}
    tests = [(noise, T) for noise in NOISES for T in lengths]
    for noise, T in show(tests, f"testing on up to {max(lengths):,} steps"):
        task = CopyFirst(T, noise)
        errors[noise].append((T, evaluate_stream(task, model, T, samples, run.seed).score))
    return Outcome(run, result, errors, outputs_over_time(run, folder, max(lengths)))


@torch.no_grad()
def outputs_over_time(run: Run, folder: Path, T: int) -> Tensor:
    """What the model would answer at each of T steps, ``[5, T]``; the noise is that of the training, and the same for
    all five sequences and all models."""
    _, trained = load_trained(folder_of(run, folder))
    model = build_model(replace(run.model, pooling="none")).eval()
    model.load_state_dict(trained.state_dict())
    task = replace(run.task, length=T, train_samples=2, test_samples=1)
    r = task.samples("test", run.seed).stored.repeat(len(FIRST), 1)  # [5, T]
    r[:, 0] = torch.tensor(FIRST)
    output, _ = model(task.inputs(r))
    return output.squeeze(-1)

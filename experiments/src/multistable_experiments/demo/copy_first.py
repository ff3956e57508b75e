"""Copy-first-input with small models: trained by ``train_run``, then tested on longer sequences.

A killed demo resumes, and a finished run is not computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multistable.models import SequenceModel, build_model
from multistable_experiments.demo.outcome import Outcome
from multistable_experiments.paper.settings import SHORT, Preset, make_run
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.evaluate import evaluate_stream
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.results import folder_of, load_trained
from multistable_experiments.training.run import Run

__all__ = ["CELLS", "FIRST", "LENGTHS", "NOISES", "PRESET", "CopyOutcome", "learn"]

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


@dataclass(frozen=True)
class CopyOutcome(Outcome):
    run: Run
    result: dict[str, Any]
    """The result of :func:`~multistable_experiments.training.train_run`."""


def learn(name: str, seed: int, preset: Preset, folder: Path, lengths: Sequence[int], samples: int) -> CopyOutcome:
    """Train, or resume the training in ``folder``; then test the weights that were best on the validation set."""
    run = make_run(preset, (CELLS[name],) * preset.blocks, seed=seed)
    result = train_run(run, folder, Options(device="cpu"))
    _, model = load_trained(folder_of(run, folder))
    errors = {
        noise: [(T, evaluate_stream(CopyFirst(T, noise), model, T, samples, seed).score) for T in lengths]
        for noise in NOISES
    }
    return CopyOutcome(
        curve=[(record["epoch"], record["valid_mse"]) for record in result["history"]],
        errors=errors,
        outputs=answers(run, model, max(lengths)),
        parameters=result["parameters"],
        seconds=result["seconds"],
        run=run,
        result=result,
    )


@torch.no_grad()
def answers(run: Run, trained: SequenceModel, T: int) -> Tensor:
    """The output at each of T steps of five sequences, ``[5, T]``: the numbers ``FIRST``, then the same noise."""
    model = build_model(replace(run.model, pooling="none")).eval()
    model.load_state_dict(trained.state_dict())
    task = replace(run.task, length=T, train_samples=2, test_samples=1)
    r = task.samples("test", run.seed).stored.repeat(len(FIRST), 1)  # [5, T]
    r[:, 0] = torch.tensor(FIRST)
    output, _ = model(task.inputs(r))
    return output.squeeze(-1)

"""What a run left behind: load its model, test it at lengths it was not trained on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

from multistable.models import SequenceModel, build_model
from multistable_experiments.tasks import Task
from multistable_experiments.training import checkpoint
from multistable_experiments.training.evaluate import evaluate_stream
from multistable_experiments.training.run import Run

__all__ = ["evaluate_lengths", "load_trained"]


def load_trained(
    folder: Path | str, which: Literal["best", "last"] = "best", device: torch.device | str = "cpu"
) -> tuple[Run, SequenceModel]:
    """The run in a folder and its model, in evaluation mode: best on the validation set, or as it was last."""
    path = Path(folder) / f"{which}.safetensors"
    tensors, info = checkpoint.load(path)
    if which == "last":
        tensors = {name.removeprefix("model."): x for name, x in tensors.items() if name.startswith("model.")}
    run = Run.from_dict(info["run"])
    model = build_model(run.model)
    checkpoint.restore(model.state_dict(), tensors, path)
    return run, model.to(device).eval()


def evaluate_lengths(
    folder: Path | str,
    lengths: Iterable[int] = (100, 1_000, 10_000, 100_000),
    samples: int = 6_000,
    task: Task | None = None,
    device: torch.device | str = "cpu",
) -> list[dict[str, Any]]:
    """Test the best model of a run at other lengths, on the run's task or a variant of it (another noise, say).

    The defaults are the paper's: 6,000 new sequences of each of 10^2 to 10^5 timesteps.
    """
    run, model = load_trained(folder, device=device)
    task = task or run.task
    records = []
    for length in lengths:
        found = evaluate_stream(task, model, length, samples, run.seed, precision=run.precision, device=device)
        records.append({"length": length, "samples": samples, task.metric: found.score})
    return records

"""The folder of a run: ``run.json``, ``result.json``, and the trained model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

from multistable.models import SequenceModel
from multistable.models.files import from_tensors
from multistable_experiments.files import UNREADABLE, read_json, write_json
from multistable_experiments.training import checkpoint
from multistable_experiments.training.evaluate import evaluate_stream
from multistable_experiments.training.run import Run

__all__ = ["FILE", "check_same", "evaluate_lengths", "folder_of", "load_trained", "read", "write", "write_run"]

RUN = "run.json"
FILE = "result.json"


def folder_of(run: Run, out: Path) -> Path:
    """The folder of a run in ``out``, named by its task and its hash."""
    return out / f"{run.task.name}-{run.id}"


def write_run(folder: Path, run: Run) -> None:
    """Write ``run.json``; raise if the file exists and holds another run."""
    if not (folder / RUN).exists():
        write_json(folder / RUN, run.to_dict())
    check_same(run, _read(folder / RUN), folder / RUN)


def check_same(run: Run, values: Any, path: Path) -> None:
    """Raise unless ``values``, read from ``path``, describe this run."""
    if (found := read_run(values, path)).id != run.id:
        raise checkpoint.CheckpointError(f"{path} belongs to another run: {found.id}, expected {run.id}")


def read_run(values: Any, path: Path) -> Run:
    """The run that ``values``, read from ``path``, describe."""
    try:
        return Run.from_dict(values)
    except UNREADABLE as error:
        raise checkpoint.CheckpointError(f"{path} does not describe a run: {error}") from error


def write(folder: Path, run: Run, values: dict[str, Any]) -> None:
    """Write ``values``, the other fields of a result, with the run itself."""
    write_json(folder / FILE, {"id": run.id, "run": run.to_dict(), **values})


def read(folder: Path, run: Run) -> dict[str, Any] | None:
    """The result of a run in its folder, or None if the run has not finished."""
    if not (folder / FILE).exists():
        return None
    result = _read(folder / FILE)
    check_same(run, result.get("run"), folder / FILE)
    return result


def _read(path: Path) -> dict[str, Any]:
    with checkpoint.hint_on_damage("remove it to compute again what it held"):
        return read_json(path)


def load_trained(
    folder: Path | str, which: Literal["best", "last"] = "best", device: torch.device | str = "cpu"
) -> tuple[Run, SequenceModel]:
    """The run in a folder and its model in evaluation mode, with the last weights or the best on validation."""
    path = Path(folder) / f"{which}.safetensors"
    tensors, info = checkpoint.load(path)
    if which == "last":
        tensors = {name.removeprefix("model."): x for name, x in tensors.items() if name.startswith("model.")}
    run = read_run(info.get("run"), path)
    try:
        model = from_tensors(run.model, tensors, f"the model in {path} does not fit the run it describes")
    except ValueError as error:
        raise checkpoint.CheckpointError(str(error)) from error
    return run, model.to(device).eval()


def evaluate_lengths(
    folder: Path | str,
    lengths: Iterable[int] = (100, 1_000, 10_000, 100_000),
    samples: int = 6_000,
    device: torch.device | str = "cpu",
) -> list[dict[str, Any]]:
    """Test the best model of a run at other lengths.

    The defaults are the paper's: 6,000 new sequences of each of 10^2 to 10^5 timesteps.
    """
    run, model = load_trained(folder, device=device)
    records = []
    for length in lengths:
        scores = evaluate_stream(run.task, model, length, samples, run.seed, precision=run.precision, device=device)
        records.append({"length": length, "samples": samples, run.task.metric: scores.score})
    return records

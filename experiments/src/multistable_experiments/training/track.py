"""Send the metrics of each epoch to TensorBoard, trackio or Weights & Biases."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from multistable_experiments.training.run import Run

__all__ = ["Tracker", "tracking"]

Tracker = Literal["tensorboard", "trackio", "wandb"]
PROJECT = "multistable"


@contextmanager
def tracking(tracker: Tracker | None, run: Run, folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function for the line of metrics of each epoch; it does nothing if ``tracker`` is None.

    TensorBoard's files are in ``folder / "tensorboard"``. trackio and wandb share three functions, ``init``, ``log``
    and ``finish``; the name of a run is that of its folder, so that a resumed run is continued there.
    """
    if tracker is None:
        yield lambda record: None
        return
    if tracker not in get_args(Tracker):
        raise ValueError(f"track must be one of {', '.join(get_args(Tracker))}, got {tracker!r}")
    try:
        module = import_module("torch.utils.tensorboard" if tracker == "tensorboard" else tracker)
    except ImportError as error:
        raise ImportError(f"--track {tracker} needs a package: pip install {tracker}") from error
    if tracker == "tensorboard":
        with module.SummaryWriter(str(folder / "tensorboard")) as writer:
            writer.add_text("run", f"```\n{json.dumps(run.to_dict(), indent=1)}\n```")
            yield lambda record: write_scalars(writer, record)
        return
    own = {"id": run.id, "dir": str(folder)} if tracker == "wandb" else {}  # trackio finds a run by its name
    module.init(project=PROJECT, name=folder.name, config=run.to_dict(), resume="allow", **own)
    try:
        yield lambda record: module.log(metrics_of(record), step=record["epoch"])
    finally:
        module.finish()


def metrics_of(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "epoch"}


def write_scalars(writer: Any, record: dict[str, Any]) -> None:
    for name, value in metrics_of(record).items():
        writer.add_scalar(name, value, record["epoch"])
    writer.flush()  # a killed run keeps what it has logged

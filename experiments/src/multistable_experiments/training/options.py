"""How to compute a run: device, compilation, checkpoints, what to show and where to keep it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multistable.layers import Recurrent
from multistable.models import SequenceModel
from multistable_experiments.training.track import Tracker

__all__ = ["Options", "worth_compiling"]


@dataclass(frozen=True)
class Options:
    """How to compute a run. Nothing here changes its numbers beyond rounding, except ``compiled``, which draws other
    random numbers for dropout."""

    device: str = "auto"
    graph: bool = True
    """On a GPU, replay the whole step as one CUDA graph (one process only)."""
    compiled: bool | None = None
    """Compile the model with ``torch.compile``; None: if the step is a CUDA graph and the run is long enough."""
    show_progress: bool = True
    checkpoint_seconds: float = 20
    """Least time between two checkpoints; a killed run loses about this much work."""
    deadline: float | None = None
    """Training stops with a checkpoint when ``time.perf_counter()`` reaches this (one process only)."""
    after_epoch: Callable[[dict[str, Any]], None] | None = None
    """Called with the line of metrics of each epoch, in the first process. What it raises ends the training."""
    test: bool = True
    """Whether the trained model is tested; a search must not see the test set."""
    track: Tracker | None = None
    """Also send the metrics of each epoch there: tensorboard, trackio or wandb."""
    mirror: str | None = None
    """An address for fsspec, at which the run's folder is kept as well, see ``mirror.py``."""


def worth_compiling(graph: bool, model: SequenceModel, timesteps: int) -> bool:
    """Decide if compiling saves time in a run of this many timesteps over all epochs.

    Compiled, two blocks of 256 units train 70 million timesteps per second instead of 42 (H200), which saves 10 s in a
    billion. Compiling took 6 to 20 s, and about 4 s if a similar model had been compiled before, as for the next seed.
    Without a graph, launching the kernels takes longer than computing them.
    """
    parallel = all(layer.parallel for layer in model.modules() if isinstance(layer, Recurrent))
    return graph and parallel and timesteps >= 1e9

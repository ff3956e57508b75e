"""Loss and metric of a model on a set of samples, or on a stream of any length."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from multistable.models import ModelState, SequenceModel
from multistable.sizes import check_sizes
from multistable.tasks import Samples, Streamed, Task
from multistable.training.config import Precision
from multistable.training.processes import Processes
from multistable.training.stepper import autocast

__all__ = ["Evaluation", "evaluate", "evaluate_stream", "read_pieces"]


class Evaluation(NamedTuple):
    """Means over a set."""

    loss: float
    score: float


@torch.no_grad()
def evaluate(
    task: Task, model: SequenceModel, samples: Samples, batch_size: int, precision: Precision, processes: Processes
) -> Evaluation:
    """In evaluation mode, in batches; several processes share the samples."""
    mode = model.training
    model.eval()
    share = processes.share(len(samples))
    sums = [torch.zeros(2, device=processes.device)]
    for start in range(share.start, share.stop, batch_size):
        rows = slice(start, min(start + batch_size, share.stop))
        with autocast(processes.device, precision):
            output, _ = model(task.inputs(samples.stored[rows]))
        output = output.float()
        target = samples.target[rows]
        sums.append(torch.stack([task.losses(output, target).sum(), task.scores(output, target).sum()]))
    model.train(mode)
    loss, score = processes.sum_numbers([math.fsum(column) for column in zip(*torch.stack(sums).tolist(), strict=True)])
    return Evaluation(loss / len(samples), score / len(samples))


@torch.no_grad()
def evaluate_stream(
    task: Task,
    model: SequenceModel,
    length: int,
    samples: int,
    seed: int,
    *,
    batch_size: int = 256,
    precision: Precision = "float32",
    device: torch.device | str = "cpu",
) -> Evaluation:
    """On ``samples`` sequences of ``length`` timesteps, read piece by piece with the state carried along.

    At no time does more than one piece ``[S, t, D]`` exist, and the model sees ``batch_size`` rows of it at a time:
    the memory needed does not depend on ``length``.
    """
    if not isinstance(task, Streamed) or task.pooling != "last":
        raise ValueError(f"task must be one that streams and whose last output counts, got {task!r}")
    check_sizes(1, length=length, samples=samples)
    target, pieces = task.stream(length, samples, seed)
    readings = read_pieces(model, pieces, batch_size=batch_size, precision=precision, device=device)
    [(output, _)] = deque(readings, maxlen=1)
    target = target.to(device)
    return Evaluation(float(task.losses(output, target).mean()), float(task.scores(output, target).mean()))


@torch.no_grad()
def read_pieces(
    model: SequenceModel,
    pieces: Iterable[Tensor],
    *,
    batch_size: int = 256,
    precision: Precision = "float32",
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Read sequences that come in pieces ``[S, t, D]``; yields what is behind each one: outputs ``[S, d_output]``, and
    the states of the blocks, each ``[1, S, ...]``.

    A GPU is not waited for: it computes on one piece while the next is made.
    """
    mode = model.training
    model.eval()
    device = torch.device(device)
    states: list[ModelState | None] = []
    try:
        for piece in pieces:
            groups = piece.to(device).split(batch_size)
            states = states or [None] * len(groups)
            outputs = []
            for i, x in enumerate(groups):
                with autocast(device, precision):
                    output, states[i] = model(x, states[i])
                outputs.append(output.float())
            carried = [state.cells for state in states if state is not None]
            yield torch.cat(outputs), [torch.cat(parts, dim=1) for parts in zip(*carried, strict=True)]
    finally:
        model.train(mode)

"""Tests of a trained model at other lengths and noises, and whether noise overwrote what a BMRU had stored.

A *stored value* is what the first timestep left in a unit that keeps it: +-alpha, or zero where it did not write. A
unit keeps written values (zeros) if, in the sequences of the run's own task whose first timestep wrote it (did not),
its last state is still the same in 75 % or more. The other units compute: one that writes all the time has the same
value again by chance in half of them. A stored value is *overwritten* if the unit's last state is another one.

To see whether the model loses for no other reason, the overwritten values are put back before the last timestep.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from multistable.models import ModelState, SequenceModel
from multistable.models.block import Block
from multistable_experiments.paper.experiments import TestAt
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.evaluate import prefetch, read_chunk
from multistable_experiments.training.run import Run

__all__ = ["keeping_units", "measure"]

KEEPS = 0.75
"""Half way between a unit that never loses its value and one that writes all the time."""
BATCH = 512
"""Sequences at a time. Twice that of training: fewer kernels to launch, and there are no gradients to keep."""


class Trace(NamedTuple):
    """S sequences after the model has read them."""

    scores: Tensor
    """``[S]``."""
    target: Tensor
    first: ModelState
    """After the first timestep."""
    before: ModelState | None
    """Before the last timestep; None if there is only one."""
    last: ModelState
    """After the last timestep."""
    x: Tensor
    """``[S, 1, D]``: the last timestep."""


def measure(run: Run, model: SequenceModel, test: TestAt, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The metric of a model on new sequences. Of a model with a BMRU also: the mean numbers of values ``stored`` and
    ``overwritten`` per sequence, the number of sequences with none overwritten (``intact``), and the metric with the
    overwritten values put back (``restored``)."""
    started = time.perf_counter()
    trace = read(run, model, test, device)
    results: dict[str, Any] = {"length": test.length, "noise": test.noise, "samples": test.samples}
    results[run.task.metric] = float(trace.scores.mean())
    if bmru_slices(model):
        values, zeros = keeping_units(run, model, test.samples, device)
        first, last = bmru_states(model, trace.first), bmru_states(model, trace.last)
        stored = torch.where(first != 0, values, zeros)  # [S, M]
        overwritten = (stored & (first != last)).sum(dim=1)
        results["stored"] = int(stored.sum()) / len(stored)
        results["overwritten"] = int(overwritten.sum()) / len(stored)
        results["intact"] = int((overwritten == 0).sum())
        results["restored"] = float(restored_scores(run, model, trace, stored, device).mean())
    return results | {"seconds": round(time.perf_counter() - started, 3)}


def keeping_units(
    run: Run, model: SequenceModel, samples: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Which of the M units of all BMRU keep a written value, and which a zero: booleans ``[M]``."""
    task = copy_first(run)
    trace = read(run, model, TestAt(task.length, task.noise, samples), device)
    first, last = bmru_states(model, trace.first), bmru_states(model, trace.last)

    def keeps(chosen: Tensor) -> Tensor:
        lost = (chosen & (first != last)).sum(dim=0)
        return chosen.any(dim=0) & (lost <= (1 - KEEPS) * chosen.sum(dim=0))

    return keeps(first != 0), keeps(first == 0)


def read(run: Run, model: SequenceModel, test: TestAt, device: torch.device | str) -> Trace:
    task = replace(copy_first(run), noise=test.noise)
    target, chunks = task.stream(test.length, test.samples, run.seed)
    advance = partial(read_chunk, model, batch_size=BATCH, precision=run.precision, device=device)
    chunks = prefetch(split_ends(chunks))
    x, before = next(chunks), None
    output, first = advance(x, before)
    last = first
    for x in chunks:
        before = last
        output, last = advance(x, before)
    target = target.to(output.device)
    return Trace(task.scores(output, target), target, first, before, last, x)


def restored_scores(run: Run, model: SequenceModel, trace: Trace, stored: Tensor, device: torch.device | str) -> Tensor:
    """Scores ``[S]`` with the stored values ``[S, M]`` put back before the last timestep."""
    if trace.before is None:
        return trace.scores
    states = [h.clone() for h in trace.before.cells]
    start = 0
    for i, units in bmru_slices(model):
        h = states[i][0, :, units]  # [S, units], a view
        h.copy_(torch.where(stored[:, start : start + h.shape[1]], trace.first.cells[i][0, :, units], h))
        start += h.shape[1]
    state = trace.before._replace(cells=tuple(states))
    output, _ = read_chunk(model, trace.x, state, batch_size=BATCH, precision=run.precision, device=device)
    return copy_first(run).scores(output, trace.target)


def copy_first(run: Run) -> CopyFirst:
    if not isinstance(run.task, CopyFirst):
        raise ValueError(f"run.task must be copy-first, whose first timestep is to be stored, got {run.task.name}")
    return run.task


def split_ends(chunks: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same sequences with the first and the last timestep as chunks of their own."""
    chunk = next(chunks)
    yield chunk[:, :1]
    rest = chunk[:, 1:]
    for chunk in chunks:
        if rest.shape[1] > 0:
            yield rest
        rest = chunk
    if rest.shape[1] > 1:
        yield rest[:, :-1]
    if rest.shape[1] > 0:
        yield rest[:, -1:]


def bmru_slices(model: SequenceModel) -> list[tuple[int, slice]]:
    """Blocks with a BMRU, and the slice of the block's state that holds its units."""
    slices = []
    for i, block in enumerate(model.blocks):
        start = 0
        for part in cast(Block, block).cell.parts:
            if part.name == "bmru":
                slices.append((i, slice(start, start + part.size)))
            start += part.size
    return slices


def bmru_states(model: SequenceModel, state: ModelState) -> Tensor:
    """``[S, M]``: the states of all BMRU units."""
    return torch.cat([state.cells[i][0, :, units] for i, units in bmru_slices(model)], dim=-1)

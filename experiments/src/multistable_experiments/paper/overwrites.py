"""Tests of a trained model at other lengths and noises, and whether noise overwrote what a BMRU had stored.

A *stored value* is what the first timestep left in a unit that keeps it: +-alpha, or zero where it did not write. A
unit keeps written values (zeros) if, in the sequences of the run's own task whose first timestep wrote it (did not),
its last state is still the same in 75 % or more. The other units compute: one that writes all the time has the same
value again by chance in half of them. A stored value is *overwritten* if the unit's last state is another one.

To see whether the model loses for no other reason, the overwritten values are put back before the last timestep is
read.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from multistable.models import ModelState, SequenceModel
from multistable.models.block import Block
from multistable_experiments.paper.bookmark import Bookmark, Place
from multistable_experiments.paper.experiments import TestAt
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training import Run
from multistable_experiments.training.evaluate import prefetch as ahead
from multistable_experiments.training.evaluate import read_chunk as read_piece

__all__ = ["OF_BMRU", "Memory", "find_memory", "is_whole", "measure"]

KEEPS = 0.75
"""Half way between a unit that never loses its value and one that writes all the time."""
BATCH = 512
"""Sequences at a time. Twice that of training: fewer kernels to launch, and there are no gradients to keep."""
OF_BMRU = ("stored", "overwritten", "intact", "restored")
"""What is measured of a model with a BMRU beside the metric."""


class Trace(NamedTuple):
    """S sequences, read: errors ``[S]``, and the states around the timesteps that count."""

    scores: Tensor
    target: Tensor
    first: ModelState
    """Behind the first timestep."""
    before: ModelState
    """Before the last one; of sequences of one timestep that behind it."""
    last: ModelState
    """Behind the last one."""
    x: Tensor
    """``[S, 1, D]``: the last timestep."""


class Memory(NamedTuple):
    """Which of the M units of all BMRU keep a written value, and which a zero: booleans ``[M]``."""

    values: Tensor
    zeros: Tensor

    def stored(self, first: Tensor) -> Tensor:
        """``[S, M]``: whether what the first timestep left in a unit is a stored value."""
        return torch.where(first != 0, self.values, self.zeros)


def measure(
    run: Run, model: SequenceModel, test: TestAt, device: torch.device | str = "cpu", bookmark: Bookmark | None = None
) -> dict[str, Any]:
    """The metric of a model on new sequences. Of a model with a BMRU also how many values are stored and overwritten
    per sequence, in how many sequences none is, and the metric with the overwritten ones put back (``restored``).

    With a bookmark it goes on where it was stopped; raises ``OutOfTimeError`` at its deadline.
    """
    started = time.perf_counter()
    metric = run.task.metric
    trace = read(run, model, test, device, bookmark)
    found: dict[str, Any] = {"length": test.length, "noise": test.noise, "samples": test.samples}
    found[metric] = float(trace.scores.mean())
    if bmru_places(model):
        memory = find_memory(run, model, test.samples, device)
        first, last = (bmru_states(model, state) for state in (trace.first, trace.last))
        stored = memory.stored(first)
        overwritten = (stored & (first != last)).sum(dim=1)
        found["stored"] = int(stored.sum()) / len(stored)
        found["overwritten"] = int(overwritten.sum()) / len(stored)
        found["intact"] = int((overwritten == 0).sum())
        found["restored"] = float(read_restored(run, model, trace, stored, device).mean())
    seconds = time.perf_counter() - started + (bookmark.seconds if bookmark is not None else 0)
    return found | {"seconds": round(seconds, 3)}


def is_whole(run: Run, found: dict[str, Any]) -> bool:
    """Whether a test says all that :func:`measure` measures today; one of an earlier version may not.

    >>> from multistable_experiments.training.presets import make_run, preset
    >>> is_whole(make_run(preset("copy-first", "smoke"), ("bmru",)), {"length": 100, "mse": 0.1})
    False
    """
    return {run.task.metric, *(OF_BMRU if run.model.has_bmru else ())} <= found.keys()


def find_memory(run: Run, model: SequenceModel, samples: int, device: torch.device | str = "cpu") -> Memory:
    """The units that keep what the first timestep left in them, on sequences of the run's own task."""
    task = copy_first(run)
    trace = read(run, model, TestAt(task.length, task.noise, samples), device)
    first, last = (bmru_states(model, state) for state in (trace.first, trace.last))

    def keeps(chosen: Tensor) -> Tensor:
        lost = (chosen & (first != last)).sum(dim=0)
        return chosen.any(dim=0) & (lost <= (1 - KEEPS) * chosen.sum(dim=0))

    return Memory(keeps(first != 0), keeps(first == 0))


def read(
    run: Run, model: SequenceModel, test: TestAt, device: torch.device | str, bookmark: Bookmark | None = None
) -> Trace:
    """Piece by piece. One that goes on draws the numbers again that it has read, but does not read them again: 6,000 x
    100,000 of them take 9 s of one core."""
    task = replace(copy_first(run), noise=test.noise)
    target, pieces = task.stream(test.length, test.samples, run.seed)
    place = None if bookmark is None else bookmark.find(device)
    output = before = x = None
    for x in ahead(islice(ends_apart(pieces), place.done if place else 0, None)):
        if bookmark is not None and place is not None and output is not None:  # a piece was read: we got further
            bookmark.look(place)
        before = place.last if place else None
        output, last = read_piece(model, x, before, batch_size=BATCH, precision=run.precision, device=device)
        place = Place(place.done + 1, place.first, last) if place else Place(1, last, last)
    assert output is not None  # a stream has one piece or more, and so has what is left behind a bookmark
    assert x is not None
    assert place is not None
    target = target.to(output.device)
    return Trace(task.scores(output, target), target, place.first, before or place.last, place.last, x)


def read_restored(run: Run, model: SequenceModel, trace: Trace, stored: Tensor, device: torch.device | str) -> Tensor:
    """Errors ``[S]`` where the stored values ``[S, M]`` were put back before the last timestep was read."""
    if trace.before is trace.last:
        return trace.scores
    first, before = (bmru_states(model, state) for state in (trace.first, trace.before))
    state = with_bmru_states(model, trace.before, torch.where(stored, first, before))
    output, _ = read_piece(model, trace.x, state, batch_size=BATCH, precision=run.precision, device=device)
    return copy_first(run).scores(output, trace.target)


def copy_first(run: Run) -> CopyFirst:
    if not isinstance(run.task, CopyFirst):
        raise ValueError(f"run.task must be copy-first, whose first timestep is to be stored, got {run.task.name}")
    return run.task


def ends_apart(pieces: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same sequences with the first and the last timestep as pieces of their own."""
    piece = next(pieces)
    yield piece[:, :1]
    rest = piece[:, 1:]
    for piece in pieces:
        if rest.shape[1] > 0:
            yield rest
        rest = piece
    if rest.shape[1] > 1:
        yield rest[:, :-1]
    if rest.shape[1] > 0:
        yield rest[:, -1:]


def bmru_places(model: SequenceModel) -> list[tuple[int, slice]]:
    """Blocks with a BMRU, and where its units are in the block's state."""
    found = []
    for i, block in enumerate(model.blocks):
        start = 0
        for part in cast(Block, block).cell.parts:
            if part.name == "bmru":
                found.append((i, slice(start, start + part.size)))
            start += part.size
    return found


def bmru_states(model: SequenceModel, state: ModelState) -> Tensor:
    """``[S, M]``: of the states ``[1, S, ...]`` of the blocks what belongs to a BMRU."""
    return torch.cat([state.cells[i][0, :, place] for i, place in bmru_places(model)], dim=-1)


def with_bmru_states(model: SequenceModel, state: ModelState, units: Tensor) -> ModelState:
    """The state with other values ``[S, M]`` of what belongs to a BMRU."""
    cells = [h.clone() for h in state.cells]
    places = bmru_places(model)
    sizes = [place.stop - place.start for _, place in places]
    for (i, place), values in zip(places, units.split(sizes, dim=-1), strict=True):
        cells[i][0, :, place] = values
    return state._replace(cells=tuple(cells))

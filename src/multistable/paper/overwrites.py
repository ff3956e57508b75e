"""Tests of a trained model at other lengths and noises, and whether noise overwrote what a BMRU had stored.

A *stored value* is what the first timestep wrote into a memory unit. It is *overwritten* if the unit's last state is
another one; to write the same value again loses nothing, and the model's answer follows from the last states. A
*memory unit* is a unit of a BMRU, in any block, that holds: in the sequences of the run's own task whose first timestep
wrote it, the value was still there in the end in 75 % or more. The other units compute: one that writes all the time
has the same value again by chance in half of them. A state of zero that noise writes to is not counted.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from multistable.models import SequenceModel
from multistable.models.block import Block
from multistable.paper.experiments import TestAt
from multistable.tasks import CopyFirst
from multistable.training import OutOfTimeError, Run
from multistable.training.evaluate import read_pieces

__all__ = ["bins", "measure", "memory_units"]

HOLDS = 0.75
"""Half way between a unit that never loses its value and one that writes all the time."""
BATCH = 512
"""Sequences at a time. Twice that of training: fewer kernels to launch, and there are no gradients to keep."""


class Reading(NamedTuple):
    """S sequences, read: errors ``[S]``, and the states of the M units of all BMRU behind first and last timestep."""

    scores: Tensor
    first: Tensor
    """``[S, M]``; zero where the first timestep did not write."""
    last: Tensor


def measure(
    run: Run, model: SequenceModel, test: TestAt, device: torch.device | str = "cpu", deadline: float | None = None
) -> dict[str, Any]:
    """The metric of a model on new sequences; of a model with a BMRU also the overwrites, see :func:`bins`.

    Raises ``OutOfTimeError`` when ``time.perf_counter()`` comes to ``deadline``.
    """
    started = time.perf_counter()
    reading = read(run, model, test, device, deadline)
    found: dict[str, Any] = {"length": test.length, "noise": test.noise, "samples": test.samples}
    found[run.task.metric] = float(reading.scores.mean())
    if reading.first.shape[1] > 0:
        memory = memory_units(run, model, test.samples, device)
        overwritten = (is_overwritten(reading) & memory).sum(dim=1)
        found["memory_units"] = int(memory.sum())
        found["overwrites"] = bins(overwritten, reading.scores, run.task.metric)
    return found | {"seconds": round(time.perf_counter() - started, 3)}


def memory_units(run: Run, model: SequenceModel, samples: int, device: torch.device | str = "cpu") -> Tensor:
    """``[M]`` booleans: the units that hold what the first timestep wrote, on sequences of the run's own task."""
    task = copy_first(run)
    reading = read(run, model, TestAt(task.length, task.noise, samples), device)
    written = reading.first != 0
    lost = is_overwritten(reading).sum(dim=0)
    return written.any(dim=0) & (lost <= (1 - HOLDS) * written.sum(dim=0))


def is_overwritten(reading: Reading) -> Tensor:
    """``[S, M]``."""
    return (reading.first != 0) & (reading.first != reading.last)


def bins(overwritten: Tensor, scores: Tensor, metric: str) -> list[dict[str, Any]]:
    """Sequences by the number of their overwritten values, ``[S]``: none, 1, 2 to 3, 4 to 7, ...; no empty bin.

    >>> bins(torch.tensor([0, 0, 5, 7]), torch.tensor([0.5, 1.5, 4.0, 2.0]), "mse")
    [{'least': 0, 'most': 0, 'sequences': 2, 'mse': 1.0}, {'least': 4, 'most': 7, 'sequences': 2, 'mse': 3.0}]
    """
    found = []
    most = int(overwritten.max())
    for least, upper in [(0, 0)] + [(1 << k, (2 << k) - 1) for k in range(most.bit_length())]:
        chosen = (overwritten >= least) & (overwritten <= upper)
        if n := int(chosen.sum()):
            found.append({"least": least, "most": upper, "sequences": n, metric: float(scores[chosen].mean())})
    return found


def read(
    run: Run, model: SequenceModel, test: TestAt, device: torch.device | str, deadline: float | None = None
) -> Reading:
    task = replace(copy_first(run), noise=test.noise)
    target, pieces = task.stream(test.length, test.samples, run.seed)
    readings = read_pieces(model, first_apart(pieces), batch_size=BATCH, precision=run.precision, device=device)
    output, states = next(readings)
    first = bmru_states(model, states)
    for output, states in readings:  # noqa: B007  the last ones count
        if deadline is not None and time.perf_counter() >= deadline:
            raise OutOfTimeError(f"no time to test at {test.length} timesteps")
    return Reading(task.scores(output, target.to(output.device)), first, bmru_states(model, states))


def copy_first(run: Run) -> CopyFirst:
    if not isinstance(run.task, CopyFirst):
        raise ValueError(f"run.task must be copy-first, whose first timestep is to be stored, got {run.task.name}")
    return run.task


def first_apart(pieces: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same sequences with the first timestep as a piece of its own."""
    piece = next(pieces)
    rest = [piece[:, 1:]] if piece.shape[1] > 1 else []
    return chain([piece[:, :1]], rest, pieces)


def bmru_states(model: SequenceModel, states: list[Tensor]) -> Tensor:
    """``[S, M]``: of the states ``[1, S, ...]`` of the blocks what belongs to a BMRU."""
    found = [states[0].new_empty(states[0].shape[1], 0)]
    for block, state in zip(list(model.blocks), states, strict=True):
        parts = cast(Block, block).cell.parts
        pieces = state[0].split([part.size for part in parts], dim=-1)
        found += [piece for part, piece in zip(parts, pieces, strict=True) if part.name == "bmru"]
    return torch.cat(found, dim=-1)

"""How long a memory lasts: tests of models trained on MNIST with tails longer than those of their training.

A model reads each test image, then more and more pixels that say nothing about it: black ones, random ones, or those of
other images. Images are streamed in chunks with the state carried along, so the tail may have a million steps.

With black pixels and held positions every step after the trained length repeats the last one. A BMRU is then unchanged
for ever, which is stationarity (a test of ours, not evidence); the other tails are the evidence.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from multistable.models import SequenceModel
from multistable_experiments.paper.experiments import TailAt
from multistable_experiments.tasks import MNIST
from multistable_experiments.tasks.mnist import PIXELS, TailPixels, normalise
from multistable_experiments.tasks.seeds import generator
from multistable_experiments.training.evaluate import read_chunk, split_state
from multistable_experiments.training.run import Run

__all__ = ["measure_tails"]

CHUNK = 4096
"""Timesteps at a time."""
BATCH = 512


@torch.no_grad()
def measure_tails(
    run: Run, model: SequenceModel, tests: Sequence[TailAt], device: torch.device | str = "cpu"
) -> list[dict[str, Any]]:
    """Accuracies after tails of one kind, in one pass over the longest: a result per test, by increasing length.

    ``same`` is the share of the images that get the same answer as after the shortest tail. Tests of longer tails may
    have fewer images, the first ones.
    """
    task = run.task
    assert isinstance(task, MNIST)
    kind, held = tests[0].tail, tests[0].held
    assert all((test.tail, test.held) == (kind, held) for test in tests)
    tests = sorted(tests, key=lambda test: test.pixels)
    samples = task.samples("test", run.seed, device)
    images = samples.stored[:, :PIXELS]
    tail = TailPixels(kind, images, generator(run.seed, task.name, "tail", "test"))
    output, state, reached, first, results = None, None, -PIXELS, None, []
    with held_positions(model, task.length if held else None):
        for test in tests:
            rows, started = slice(0, test.samples), time.perf_counter()
            state = None if state is None else first_rows(state, test.samples)
            for start, stop in chunks(reached, test.pixels):
                pixels = images[rows] if start < 0 else tail(start, stop, rows)
                output, state = read_chunk(
                    model, normalise(pixels), state, batch_size=BATCH, precision=run.precision, device=device
                )
            assert output is not None
            reached, answers = test.pixels, output[rows].argmax(dim=-1)
            first = answers if first is None else first
            results.append(
                {
                    "tail": kind, "pixels": test.pixels, "samples": len(answers), "held": held,
                    "accuracy": share(answers == samples.target[rows]), "same": share(answers == first[rows]),
                    "seconds": round(time.perf_counter() - started, 3),
                }
            )  # fmt: skip
    return results


def chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges of timesteps from ``start`` to ``stop``, counted from the end of the image; the image is one of them."""
    if start < 0:
        yield start, 0
    for begin in range(max(start, 0), stop, CHUNK):
        yield begin, min(begin + CHUNK, stop)


def share(found: Tensor) -> float:
    return float(found.double().mean())


def first_rows(state: Any, samples: int) -> Any:
    return next(iter(split_state(state, samples)))


@contextmanager
def held_positions(model: SequenceModel, length: int | None) -> Iterator[None]:
    """Let positions stay at the last one of ``length`` steps; None: let them go on."""
    if model.position is None:
        yield
        return
    before, model.position.last = model.position.last, None if length is None else length - 1
    try:
        yield
    finally:
        model.position.last = before

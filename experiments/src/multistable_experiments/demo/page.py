"""The page of the demo. Its text is in ``page.html``, its numbers come from here."""

from collections.abc import Mapping
from typing import Any

from multistable_experiments.demo import copy_first, figures, hold_bit
from multistable_experiments.demo.outcome import error_rows, score
from multistable_experiments.machine import describe
from multistable_experiments.page import commit_of, fill, machine_rows

__all__ = ["make"]


def make(
    bits: Mapping[str, hold_bit.BitOutcome], copies: Mapping[str, copy_first.CopyOutcome], seconds: float, **sizes: int
) -> str:
    """The whole page. ``sizes`` are numbers of the text that the outcomes do not hold: ``seed``, ``bit_steps`` (of
    training) and ``copy_samples`` (per test)."""
    run = copies["BMRU"].run
    bit_tests, copy_tests = bits["BMRU"].errors[0.0], copies["BMRU"].errors
    best_epochs = [outcome.result["metrics"]["best"]["epoch"] for outcome in copies.values()]
    values: dict[str, Any] = {
        "bit_train_length": hold_bit.TRAIN_LENGTH,
        "bit_longest": bit_tests[-1][0],
        "short": {name: score(outcome.errors[0.0][0][1]) for name, outcome in bits.items()},
        "long": {name: score(outcome.errors[0.0][-1][1]) for name, outcome in bits.items()},
        "fading": bits["LRU"].fading,
        "bits": bits,
        "bit_rows": error_rows(bits),
        "run": run,
        "copies": copies,
        "train_samples": len(run.task.samples("train", run.seed)),
        "copy_longest": copy_tests[1.0][-1][0],
        "copy_ends": [score(errors[-1][1]) for errors in copy_tests.values()],
        "copy_rows": [*error_rows(copies), ["best epoch", *best_epochs]],
        "machine": machine_rows(describe()),
        "commits": sorted({commit_of(outcome.result["machine"]) for outcome in copies.values()}),
        "seconds": seconds,
        "pictures": {
            "bit_states": figures.bit_states(bits),
            "bit_errors": figures.errors("bit-errors", bits, hold_bit.TRAIN_LENGTH, "training step", -16),
            "copy_errors": figures.errors("copy-errors", copies, run.task.length, "epoch", -5),
            "copy_outputs": figures.copy_outputs(copies, run.task.length),
        },
    }
    return fill("multistable_experiments.demo", "page.html", values | sizes)

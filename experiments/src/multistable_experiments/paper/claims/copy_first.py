"""Claims on copy-first-input and its generalisation (section 5.2), measured on results.

The error is the mean squared error; always answering 0 gives 1. Thresholds, fixed when these runs had one seed: a model
that *learns* has at most 0.1, one that *does not* at least 0.5; *degrades* is at least twice the error; *unaffected* is
at most 1.1 times more or less, and at most twice the error with the noise of the training; *much more resilient* is at
most half the error. Every seed must learn, or fail to: this was added when LRU's second seed at T = 300 learned and the
mean still said that it does not. *Only* means nine tenths of the loss with every seed: this was fixed before any of
these runs was tested so, but after five seeds did not hold the claim by another count, which left out zeros
(docs/log.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from multistable_experiments.paper.claims.claim import Claim, Finding, collector
from multistable_experiments.paper.claims.compare import Number, Scores, compare, number, over_seeds
from multistable_experiments.paper.settings import LENGTHS
from multistable_experiments.paper.store import Record, by_seed

__all__ = ["CLAIMS"]

CLAIMS: list[Claim] = []
claim = collector("Copy-first-input", CLAIMS)

TASK = "copy-first"
LEARNS, FAILS, DEGRADES, UNAFFECTED, HALF, MOST = 0.1, 0.5, 2.0, 1.1, 0.5, 0.9
LOUD, QUIET, QUIET_VARIANCE = 1.0, 0.1, math.sqrt(0.1)
SHORT, LONG = LENGTHS[0], LENGTHS[-1]


def listed(scores: Scores) -> str:
    """
    >>> listed({"bmru-T100": [0.001], "LRU at T = 1,000": [1.02]})
    'BMRU 0.001, LRU at T = 1,000: 1.02'
    """
    names = {name: f"{name}:" if " " in name else name.partition("-")[0].upper() for name in scores}
    return ", ".join(f"{names[name]} {number(values)}" for name, values in scores.items())


def learned(scores: Scores) -> tuple[bool, str]:
    return all(max(values) <= LEARNS for values in scores.values()), listed(scores)


def failed(scores: Scores) -> tuple[bool, str]:
    return all(min(values) >= FAILS for values in scores.values()), listed(scores)


@claim(
    "copy-100-both",
    "At T = 100 both cells learn to copy the first input",
    "sec. 5.2, fig. 8",
    f"test error of the last epoch: at most {LEARNS:g} for both, with every seed",
)
def copy_100_both(records: Sequence[Record]) -> Finding:
    return compare(records, TASK, ["bmru-T100", "lru-T100"], learned)


@claim(
    "copy-300-bmru",
    "At T = 300 BMRU learns",
    "sec. 5.2, fig. 8",
    f"test error of the last epoch: at most {LEARNS:g} with every seed",
)
def copy_300_bmru(records: Sequence[Record]) -> Finding:
    return compare(records, TASK, ["bmru-T300"], learned)


@claim(
    "copy-300-lru",
    "At T = 300 LRU does not learn, by its last epoch",
    "sec. 5.2, fig. 8",
    "test error of the last epoch, torch's initialisation, weight decay by the paper's words: "
    f"at least {FAILS:g} with every seed",
)
def copy_300_lru(records: Sequence[Record]) -> Finding:
    return lru_at_300(records, "last")


@claim(
    "copy-300-lru-best",
    "At T = 300 LRU does not learn, by its best epoch either",
    "sec. 5.2, fig. 8",
    "test error of the weights best on the validation set, torch's initialisation, weight decay by the paper's words: "
    f"at least {FAILS:g} with every seed",
)
def copy_300_lru_best(records: Sequence[Record]) -> Finding:
    return lru_at_300(records, "best")


VARIANTS = {
    "lru-T300-usual-decay": "without decay of eigenvalues, norms and biases",
    "lru-T300-unit-variance": "with linear maps that keep the variance at the start",
}


def lru_at_300(records: Sequence[Record], weights: Literal["last", "best"]) -> Finding:
    """Whether LRU fails at T = 300. Notes say with which seeds it learns, its best epochs, and what it does where one
    thing is decided otherwise."""
    finding = over_seeds(records, TASK, {"lru-T300": ("lru-T300", lambda r: r.score(weights))}, failed)
    if finding.held is None:
        return finding
    by_seeds = by_seed(records, TASK, "lru-T300")
    runs = [by_seeds[seed] for seed in finding.seeds or () if not by_seeds[seed].failure]
    learning = [f"{run.run.seed}" for run in runs if (error := run.score(weights)) is not None and error <= LEARNS]
    if learning:
        finding = finding.with_note(f"it learns with seeds {', '.join(learning)}")
    if weights == "best" and runs:
        epochs = ", ".join(f"{run.metrics['best']['epoch']:g}" for run in runs)
        finding = finding.with_note(f"best epochs: {epochs}")
    for name, words in VARIANTS.items():
        variant = over_seeds(records, TASK, {name: (name, lambda r: r.score("last"))}, learned)
        if variant.held is not None:
            error = variant.measured.removeprefix("LRU ")
            finding = finding.with_note(f"{words} the last epoch has {error} ({variant.evidence})")
    return finding


# --- generalisation: the models of T = 100, their best weights, on longer sequences -----------------------------------


def error_at(length: int, noise: float, name: str | None = None) -> Number:
    return lambda record: record.streamed(length, noise, name)


def errors(cells: Sequence[str], noise: float, lengths: Sequence[int]) -> dict[str, tuple[str, Number]]:
    """Under names such as ``"BMRU at T = 1,000"``."""
    return {f"{cell.upper()} at T = {T:,}": (f"{cell}-T100", error_at(T, noise)) for cell in cells for T in lengths}


def growth(records: Sequence[Record], noise: float, test: Callable[[float], bool]) -> Finding:
    """Test the ratio of BMRU's error at the greatest length to that at the length of training."""

    def on_scores(scores: Scores) -> tuple[bool, str]:
        before, after = scores.values()
        ratio = fmean(after) / fmean(before)
        return test(ratio), f"{number(before)} at T = {SHORT}, {number(after)} at T = {LONG:,} (x {ratio:.3g})"

    return over_seeds(records, TASK, errors(["bmru"], noise, (SHORT, LONG)), on_scores)


@claim(
    "longer-lru-fails",
    "LRU trained on T = 100 does not generalise to longer sequences",
    "sec. 5.2, fig. 9",
    f"error with noise 1: at most {LEARNS:g} at T = {SHORT}, at least {FAILS:g} at T = {LONG:,}, with every seed",
)
def longer_lru_fails(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        before, after = scores.values()
        return max(before) <= LEARNS and min(after) >= FAILS, listed(scores)

    return over_seeds(records, TASK, errors(["lru"], LOUD, (SHORT, LONG)), test)


@claim(
    "longer-lru-fails-quiet",
    "LRU does not generalise with weak noise either",
    "sec. 5.2, fig. 9, right",
    f"error with noise of standard deviation 0.1 at T = {LONG:,}: at least {FAILS:g} with every seed",
)
def longer_lru_fails_quiet(records: Sequence[Record]) -> Finding:
    return over_seeds(records, TASK, errors(["lru"], QUIET, (LONG,)), failed)


@claim(
    "longer-bmru-resilient",
    "BMRU is much more resilient than LRU",
    "sec. 5.2, fig. 9",
    f"its error at T = 1,000, 10,000 and 100,000 with noise 1: at most {HALF:g} times LRU's",
)
def longer_bmru_resilient(records: Sequence[Record]) -> Finding:
    lengths = LENGTHS[1:]

    def test(scores: Scores) -> tuple[bool, str]:
        pairs = {T: (scores[f"BMRU at T = {T:,}"], scores[f"LRU at T = {T:,}"]) for T in lengths}
        words = ", ".join(f"{number(bmru)} against {number(lru)} at T = {T:,}" for T, (bmru, lru) in pairs.items())
        return all(fmean(bmru) <= HALF * fmean(lru) for bmru, lru in pairs.values()), words

    return over_seeds(records, TASK, errors(["bmru", "lru"], LOUD, lengths), test)


@claim(
    "longer-bmru-loud",
    "Noise of high amplitude makes BMRU lose with length",
    "sec. 5.2, fig. 9, left",
    f"its error with noise 1 at T = {LONG:,}: at least {DEGRADES:g} times that at T = {SHORT}",
)
def longer_bmru_loud(records: Sequence[Record]) -> Finding:
    return growth(records, LOUD, lambda ratio: ratio >= DEGRADES)


@claim(
    "longer-bmru-quiet",
    "With low noise BMRU is unaffected by the length",
    "sec. 5.2, fig. 9, right",
    f"its error with noise of standard deviation 0.1 at T = {LONG:,}: not {UNAFFECTED:g} times more or less than that "
    f"at T = {SHORT}, which is at most {DEGRADES:g} times that with noise 1",
)
def longer_bmru_quiet(records: Sequence[Record]) -> Finding:
    finding, other = (unaffected(records, noise) for noise in (QUIET, QUIET_VARIANCE))
    if None in (finding.held, other.held):
        return finding
    words = f"{'held' if other.held else 'not held'}: {other.measured}"
    return finding.with_note(f"if N(0, 0.1) gives the variance, {words}")


def unaffected(records: Sequence[Record], noise: float) -> Finding:
    """Whether weak noise does no harm: the error does not change with the length, and is not much larger than with the
    noise of the training."""
    finding = growth(records, noise, lambda ratio: 1 / UNAFFECTED <= ratio <= UNAFFECTED)

    def small(scores: Scores) -> tuple[bool, str]:
        weak, strong = (fmean(values) for values in scores.values())
        return weak <= DEGRADES * strong, f"{weak / strong:.3g} times the error with noise 1 at T = {SHORT}"

    numbers = {name: ("bmru-T100", error_at(SHORT, x)) for name, x in (("weak", noise), ("strong", LOUD))}
    level = over_seeds(records, TASK, numbers, small)
    if None in (finding.held, level.held):
        return finding
    return replace(finding, held=finding.held and level.held).with_note(level.measured)


@claim(
    "longer-bmru-overwrites",
    "BMRU loses only where noise overwrote stored values",
    "sec. 5.2, fig. 9, left",
    f"noise 1: of what the error at T = {LONG:,} has above that at T = {SHORT}, {MOST:.0%} or more goes where the "
    "overwritten values are put back before the last timestep, with every seed",
)
def longer_bmru_overwrites(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        before, after, restored = (fmean(values) for values in scores.values())
        words = "{} at T = {:,}, {} at T = {:,}, {} with them put back".format(
            number(scores["before"]), SHORT, number(scores["after"]), LONG, number(scores["restored"])
        )
        shares = [(a - r) / (a - b) for b, a, r in zip(*scores.values(), strict=True) if not a <= b]  # NaN is a loss
        if not shares:
            return True, f"{words}: nothing is lost"
        spread = f"{min(shares):.0%} to {max(shares):.0%} by seed"
        if after <= before:
            lost = f"{spread}, of the seeds that lose"
        else:
            share = (after - restored) / (after - before)
            lost = f"{share:.0%} of the loss" + (f", {spread}" if len(shares) > 1 else "")
        return min(shares) >= MOST, f"{words}: {lost}"

    name = "bmru-T100"
    numbers = {
        "before": (name, error_at(SHORT, LOUD)),
        "after": (name, error_at(LONG, LOUD)),
        "restored": (name, error_at(LONG, LOUD, "restored")),
    }
    return note_counts(over_seeds(records, TASK, numbers, test), records)


def note_counts(finding: Finding, records: Sequence[Record]) -> Finding:
    """Note how many values are stored and overwritten per sequence."""
    runs = by_seed(records, TASK, "bmru-T100")
    columns = error_at(SHORT, LOUD, "stored"), *(error_at(T, LOUD, "overwritten") for T in (SHORT, LONG))
    rows = [[column(runs[seed]) for column in columns] for seed in finding.seeds or ()]
    known = [[value for value in row if value is not None] for row in rows if None not in row]
    if not known:
        return finding
    stored, short, long = (fmean(column) for column in zip(*known, strict=True))
    return finding.with_note(
        f"of {stored:.0f} stored values {short:.2g} are overwritten at T = {SHORT}, {long:.2g} at T = {LONG:,}"
    )

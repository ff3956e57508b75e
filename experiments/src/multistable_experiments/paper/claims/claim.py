"""A claim: one sentence of the paper, how it is measured, and what was found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from multistable_experiments.paper.store import Record

__all__ = ["VERDICTS", "Claim", "Finding", "Verdict", "collector"]

Verdict = Literal["held", "provisional", "not held", "undecided", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("held", "provisional", "not held", "undecided", "not measured")


@dataclass(frozen=True)
class Finding:
    """What a measurement says of a claim."""

    held: bool | None
    """None: there is nothing to measure it on."""
    measured: str
    """The numbers, in words that do not depend on the machine or on the time of day."""
    note: str = ""
    """What the outcome depends on, and what else a reader should know."""
    seeds: tuple[int, ...] | None = None
    """Of the runs behind it; None where nothing is trained."""
    epochs: tuple[int, ...] = ()
    """The different numbers of epochs of those runs."""
    planned: int = 0
    """The number of epochs that the recipe has."""
    planned_seeds: int = 0
    """The number of seeds that the recipe has."""
    undecided: bool = False
    """Whether it compares with a model that has learned nothing."""

    @property
    def verdict(self) -> Verdict:
        """Provisional if the runs are fewer or shorter than the recipe's."""
        if self.held is None:
            return "not measured"
        if self.undecided:
            return "undecided"
        seeds = len(self.seeds) if self.seeds is not None else self.planned_seeds
        if seeds < self.planned_seeds or min(self.epochs, default=self.planned) < self.planned:
            return "provisional"
        return "held" if self.held else "not held"

    @property
    def words(self) -> str:
        """The verdict; a provisional one says which way it leans."""
        if self.verdict != "provisional":
            return self.verdict
        return f"provisional ({'held' if self.held else 'not held'} so far)"

    @property
    def evidence(self) -> str:
        """Seeds and epochs.

        >>> Finding(True, "", seeds=(0, 1, 2), epochs=(100,), planned=100).evidence
        'seeds 0, 1, 2; 100 epochs'
        """
        if not self.seeds:
            return ""
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        epochs = f"{', '.join(map(str, self.epochs))} epoch{'s' if self.epochs != (1,) else ''}"
        return f"{seeds}; {epochs}{f' of {self.planned}' if min(self.epochs) < self.planned else ''}"

    def with_note(self, words: str) -> "Finding":
        return replace(self, note="; ".join(part for part in (self.note, words) if part))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our own words, with its thresholds in numbers."""

    id: str
    chapter: str
    """Of the report."""
    sentence: str
    where: str
    """Section or figure of the paper."""
    how: str
    """How it is measured."""
    measure: Callable[[Sequence[Record]], Finding]
    trained: bool = True
    """Whether it is measured on trained models."""


def collector(chapter: str, claims: list[Claim]) -> Callable[..., Callable[..., Claim]]:
    """A decorator that makes a function that measures into a claim, and appends it to ``claims``::

    @claim("copy-300-bmru", "At T = 300 BMRU learns", "sec. 5.2, fig. 8", "test error: at most 0.1")
    def copy_300_bmru(records: Sequence[Record]) -> Finding: ...
    """

    def claim(id: str, sentence: str, where: str, how: str) -> Callable[..., Claim]:
        def make(measure: Callable[[Sequence[Record]], Finding]) -> Claim:
            claims.append(Claim(id, chapter, sentence, where, how, measure))
            return claims[-1]

        return make

    return claim

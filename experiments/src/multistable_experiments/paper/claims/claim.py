"""A claim: one sentence of the paper, how it is measured, what was found, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from multistable_experiments.paper.store import Record

__all__ = ["SEEDS", "Claim", "Finding", "Measured", "Verdict", "collector"]

Verdict = Literal["held", "provisional", "not held", "not measured"]
SEEDS = 5
"""The paper's averages are over 5 runs; with fewer a verdict is provisional."""


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
    """The number of epochs in the paper's table."""

    @property
    def reduced(self) -> bool:
        """Whether the runs are fewer or shorter than the paper's."""
        return self.seeds is not None and (len(self.seeds) < SEEDS or min(self.epochs, default=0) < self.planned)

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


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our own words, with its thresholds in numbers."""

    id: str
    sentence: str
    where: str
    """Section or figure of the paper."""
    how: str
    """How it is measured."""
    test: Callable[..., Finding]
    """Of nothing, or of the records of runs if ``trained``."""
    trained: bool
    """Whether it is measured on finished runs."""

    def measure(self, records: Sequence[Record]) -> "Measured":
        """Compute it; ``records`` matter to trained claims only."""
        return Measured(self, self.test(records) if self.trained else self.test())


@dataclass(frozen=True)
class Measured:
    """A claim and what was found."""

    claim: Claim
    finding: Finding

    @property
    def verdict(self) -> Verdict:
        if self.finding.held is None:
            return "not measured"
        if self.finding.reduced:
            return "provisional"
        return "held" if self.finding.held else "not held"

    @property
    def words(self) -> str:
        """The verdict; a provisional one says which way it leans."""
        if self.verdict != "provisional":
            return self.verdict
        return f"provisional ({'held' if self.finding.held else 'not held'} so far)"


def collector(into: list[Claim], trained: bool) -> Callable[..., Callable[[Callable[..., Finding]], Claim]]:
    """A decorator that makes a claim of a measuring function and appends it to a list::

    @claim("two-values", "A unit's state is +alpha or -alpha.", "sec. 4.2", "count the others")
    def two_values() -> Finding: ...
    """

    def claim(id: str, sentence: str, where: str, how: str) -> Callable[[Callable[..., Finding]], Claim]:
        def make(test: Callable[..., Finding]) -> Claim:
            made = Claim(id, sentence, where, how, test, trained)
            into.append(made)
            return made

        return make

    return claim

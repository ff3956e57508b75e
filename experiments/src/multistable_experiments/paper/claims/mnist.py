"""Claims on permuted sequential MNIST (section 5.3), measured on results.

Accuracies are in percent, differences in points. Thresholds, fixed before the first of these runs (short ones of a
prototype were known): *better* is at least half a point, *much better* two, *greatly* five; the *same* is within one
point; performance that *does not decrease* loses at most one point, and *maintained* performance two.
"""

from collections.abc import Sequence
from statistics import fmean

from multistable_experiments.paper.claims.claim import Claim, Finding, collector
from multistable_experiments.paper.claims.compare import Scores, compare, minus, points
from multistable_experiments.paper.experiments import mnist_name
from multistable_experiments.paper.store import Record

__all__ = ["CLAIMS"]

CLAIMS: list[Claim] = []
claim = collector("Permuted sequential MNIST", CLAIMS)

TASK = "mnist"
BETTER, MUCH, GREATLY, SAME, KEPT, MAINTAINED = 0.5, 2.0, 5.0, 1.0, 1.0, 2.0
DEPTHS = (2, 3)
WHERE = "sec. 5.3, fig. 10"


def name(cell: str, blocks: int, black: bool = False) -> str:
    return mnist_name(cell, blocks, "black" if black else None)


def advantage(records: Sequence[Record], cell: str, other: str, least: float, black: bool) -> Finding:
    """Whether a layer is ahead of another by at least so many points at both depths."""

    def test(scores: Scores) -> tuple[bool, str]:
        gaps = [minus(scores[name(cell, blocks, black)], scores[name(other, blocks, black)]) for blocks in DEPTHS]
        words = ", ".join(
            f"{points(gap, sign=True)} ({blocks} blocks)" for gap, blocks in zip(gaps, DEPTHS, strict=True)
        )
        return all(fmean(gap) >= least for gap in gaps), words

    return compare(records, TASK, [name(each, b, black) for b in DEPTHS for each in (cell, other)], test)


def losses(scores: Scores, cell: str, blocks: int) -> list[float]:
    """The points that black pixels cost."""
    return minus(scores[name(cell, blocks)], scores[name(cell, blocks, black=True)])


def with_and_without(*cells: str, depths: Sequence[int] = DEPTHS) -> list[str]:
    return [name(cell, blocks, black) for cell in cells for blocks in depths for black in (False, True)]


@claim(
    "mnist-lru-better",
    "Without black pixels LRU is better than BMRU",
    WHERE,
    f"accuracy of LRU less BMRU, 2 and 3 blocks: at least {BETTER:g} points each",
)
def lru_better(records: Sequence[Record]) -> Finding:
    return advantage(records, "lru", "bmru", BETTER, black=False)


@claim(
    "mnist-lru-combines",
    "LRU is much better at combining information of different timesteps",
    WHERE,
    f"accuracy of LRU less BMRU without black pixels, 2 and 3 blocks: at least {MUCH:g} points each",
)
def lru_combines(records: Sequence[Record]) -> Finding:
    return advantage(records, "lru", "bmru", MUCH, black=False)


@claim(
    "mnist-bmru-maintains",
    "BMRU maintains its performance better than LRU when black pixels are added",
    WHERE,
    f"what black pixels take from LRU less what they take from BMRU, 2 and 3 blocks: at least {BETTER:g} points each",
)
def bmru_maintains(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        lost = {blocks: (losses(scores, "bmru", blocks), losses(scores, "lru", blocks)) for blocks in DEPTHS}
        words = "; ".join(f"{b} blocks: BMRU loses {points(own)}, LRU {points(lru)}" for b, (own, lru) in lost.items())
        return all(fmean(minus(lru, own)) >= BETTER for own, lru in lost.values()), words

    return compare(records, TASK, with_and_without("bmru", "lru"), test)


@claim(
    "mnist-most-when-shallow",
    "BMRU's advantage with black pixels is greater for the shallower model",
    WHERE,
    f"what black pixels take from LRU less what they take from BMRU, 2 blocks less 3: at least {BETTER:g} points",
)
def most_when_shallow(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        gaps = [minus(losses(scores, "lru", blocks), losses(scores, "bmru", blocks)) for blocks in DEPTHS]
        words = f"{points(gaps[0], sign=True)} with 2 blocks, {points(gaps[1], sign=True)} with 3"
        return fmean(minus(gaps[0], gaps[1])) >= BETTER, words

    return compare(records, TASK, with_and_without("bmru", "lru"), test)


@claim(
    "mnist-lru-needs-depth",
    "LRU needs more depth for the longer dependencies",
    WHERE,
    f"accuracy with black pixels, LRU of 3 blocks less 2: at least {MUCH:g} points, and more than BMRU gains",
)
def lru_needs_depth(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        lru, bmru = (minus(scores[name(cell, 3, True)], scores[name(cell, 2, True)]) for cell in ("lru", "bmru"))
        words = f"a third block gives LRU {points(lru, sign=True)}, BMRU {points(bmru, sign=True)}"
        return fmean(lru) >= MUCH and fmean(minus(lru, bmru)) > 0, words

    configurations = [name(cell, blocks, True) for cell in ("lru", "bmru") for blocks in DEPTHS]
    return compare(records, TASK, configurations, test)


@claim(
    "mnist-bmru-two-layers",
    "BMRU handles the long dependencies with two layers",
    WHERE,
    f"what black pixels take from BMRU of 2 blocks: at most {MAINTAINED:g} points",
)
def bmru_two_layers(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        lost = losses(scores, "bmru", 2)
        without, with_them = scores[name("bmru", 2)], scores[name("bmru", 2, True)]
        return fmean(lost) <= MAINTAINED, f"loses {points(lost)} ({points(without)} to {points(with_them)})"

    return compare(records, TASK, with_and_without("bmru", depths=(2,)), test)


@claim(
    "mnist-hybrid-equals-lru",
    "Without black pixels the combination has the performance of LRU",
    WHERE,
    f"accuracy of the hybrid less LRU, 2 and 3 blocks: within {SAME:g} point",
)
def hybrid_equals_lru(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        gaps = {blocks: minus(scores[name("hybrid", blocks)], scores[name("lru", blocks)]) for blocks in DEPTHS}
        words = ", ".join(f"{points(gap, sign=True)} ({blocks} blocks)" for blocks, gap in gaps.items())
        return all(abs(fmean(gap)) <= SAME for gap in gaps.values()), words

    return compare(records, TASK, [name(cell, blocks) for cell in ("hybrid", "lru") for blocks in DEPTHS], test)


@claim(
    "mnist-hybrid-keeps",
    "The combination's performance does not decrease when black pixels are added",
    WHERE,
    f"what black pixels take from the hybrid, 2 and 3 blocks: at most {KEPT:g} point",
)
def hybrid_keeps(records: Sequence[Record]) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        lost = {blocks: losses(scores, "hybrid", blocks) for blocks in DEPTHS}
        words = ", ".join(f"loses {points(values)} ({blocks} blocks)" for blocks, values in lost.items())
        return all(fmean(values) <= KEPT for values in lost.values()), words

    return compare(records, TASK, with_and_without("hybrid"), test)


@claim(
    "mnist-hybrid-above-bmru",
    "With black pixels the combination stays above BMRU alone",
    WHERE,
    f"accuracy of the hybrid less BMRU with black pixels, 2 and 3 blocks: at least {BETTER:g} points each",
)
def hybrid_above_bmru(records: Sequence[Record]) -> Finding:
    return advantage(records, "hybrid", "bmru", BETTER, black=True)


@claim(
    "mnist-hybrid-above-lru",
    "With black pixels the combination is above LRU alone: the best of both worlds",
    WHERE,
    f"accuracy of the hybrid less LRU with black pixels, 2 and 3 blocks: at least {BETTER:g} points each",
)
def hybrid_above_lru(records: Sequence[Record]) -> Finding:
    return advantage(records, "hybrid", "lru", BETTER, black=True)


def positions(records: Sequence[Record], having: str, lacking: str, least: float) -> Finding:
    def test(scores: Scores) -> tuple[bool, str]:
        gain, pair = minus(scores[having], scores[lacking]), (scores[lacking], scores[having])
        words = f"{points(gain, sign=True)} points with positions ({points(pair[0])} to {points(pair[1])})"
        return (fmean(gain) >= least if least > 0 else fmean(gain) <= least), words

    return compare(records, TASK, [having, lacking], test)


@claim(
    "mnist-positions-help-bmru",
    "A position encoding greatly improves BMRU",
    "sec. 5.3",
    f"accuracy of BMRU of 2 blocks, units not tuned to positions, with them less without: at least {GREATLY:g} points",
)
def positions_help_bmru(records: Sequence[Record]) -> Finding:
    tuned = any(record.recipe == "tuned" for record in records)
    having = "bmru-2-blocks-untuned" if tuned else "bmru-2-blocks"
    return positions(records, having, "bmru-2-blocks-no-positions", GREATLY)


@claim(
    "mnist-positions-impede-lru",
    "A position encoding impedes LRU",
    "sec. 5.3",
    f"accuracy of LRU of 2 blocks with positions less without: at most -{BETTER:g} points",
)
def positions_impede_lru(records: Sequence[Record]) -> Finding:
    return positions(records, "lru-2-blocks-positions", "lru-2-blocks", -BETTER)

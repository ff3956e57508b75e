"""Claims on Pathfinder (section 5.4), measured on results of the hard images. Accuracies are in percent.

Thresholds, fixed before the first of these runs: *learns* is at least 55 %, where guessing gives 50 (on 20,000 test
images its standard deviation is 0.35 points); an effect of width or depth is at least one point.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from multistable_experiments.paper.claims.claim import Claim, Finding, collector
from multistable_experiments.paper.claims.compare import Scores, compare, minus, points
from multistable_experiments.paper.experiments import pathfinder_name as name
from multistable_experiments.paper.experiments import shortened_name
from multistable_experiments.paper.settings import DEPTHS, WIDTHS
from multistable_experiments.paper.store import Record, by_seed

__all__ = ["CLAIMS"]

CLAIMS: list[Claim] = []
claim = collector("Pathfinder", CLAIMS)

TASK = "pathfinder"
LEARNS, EFFECT = 55.0, 1.0
OWN = "images of our own generator: the mean of their pixels is not the paper's (docs/pathfinder.md)"
WHERE = "sec. 5.4, fig. 11"

Grid = Mapping[tuple[int, int], list[float]]
"""Accuracies per seed by blocks and width."""


def on_grid(
    records: Sequence[Record], test: Callable[[Grid], tuple[bool, str]], depths: Sequence[int] = DEPTHS
) -> Finding:
    """Test on the grid of hard images at full length if a seed has all of it, else on the shortened runs.

    The outcome on easy images is added as a note.
    """
    hard, easy = (on_level(records, level, test, depths) for level in ("hard", "easy"))
    if hard.held is not None:
        hard = hard.with_note(OWN)
    if None in (hard.held, easy.held):
        return hard
    words = f"{'held' if easy.held else 'not held'}: {easy.measured} ({easy.evidence})"
    return hard.with_note(f"on easy images {words}")


def on_level(
    records: Sequence[Record], level: str, test: Callable[[Grid], tuple[bool, str]], depths: Sequence[int]
) -> Finding:
    cells = {(blocks, width): name(level, blocks, width) for blocks in depths for width in WIDTHS}
    shortened = {cell: shortened_name(each) for cell, each in cells.items()}
    if not is_complete(records, cells) and is_complete(records, shortened):
        cells = shortened

    def on_names(scores: Scores) -> tuple[bool, str]:
        return test({cell: scores[each] for cell, each in cells.items()})

    return compare(records, TASK, list(cells.values()), on_names)


def is_complete(records: Sequence[Record], cells: Mapping[tuple[int, int], str]) -> bool:
    """True if a seed has all of them."""
    return bool(set.intersection(*(computed(records, each) for each in cells.values())))


def computed(records: Sequence[Record], configuration: str) -> set[int]:
    """The seeds that finished or failed."""
    return {seed for seed, run in by_seed(records, TASK, configuration).items() if run.metrics or run.failure}


def average(lines: Sequence[list[float]]) -> list[float]:
    """Over configurations, seed by seed."""
    return [fmean(values) for values in zip(*lines, strict=True)]


def by_depth(grid: Grid) -> dict[int, list[float]]:
    """Averages over the widths."""
    return {blocks: average([grid[blocks, width] for width in WIDTHS]) for blocks in DEPTHS}


def by_width(grid: Grid) -> dict[int, list[float]]:
    """Averages over the depths."""
    return {width: average([grid[blocks, width] for blocks in DEPTHS]) for width in WIDTHS}


def span(effects: Mapping[int, list[float]]) -> float:
    means = [fmean(values) for values in effects.values()]
    return max(means) - min(means)


@claim(
    "pathfinder-one-layer",
    "BMRU learns Pathfinder, even with one recurrent layer",
    WHERE,
    f"accuracy of one block, average over the four widths: at least {LEARNS:g} %",
)
def one_layer(records: Sequence[Record]) -> Finding:
    def test(grid: Grid) -> tuple[bool, str]:
        accuracy = average(list(grid.values()))
        best = max(grid.values(), key=fmean)
        return fmean(accuracy) >= LEARNS, f"{points(accuracy)} on average, {points(best)} at the best width"

    finding = on_grid(records, test, depths=(1,))
    return finding if finding.epochs == (finding.planned,) else note_full_length(finding, records)


def note_full_length(finding: Finding, records: Sequence[Record]) -> Finding:
    """Note what one block of each width reaches in the paper's number of epochs."""
    for width in WIDTHS:
        runs = by_seed(records, TASK, name("hard", 1, width)).values()
        last = [score for run in runs if (score := run.score("last")) is not None]
        best = [score for run in runs if (score := run.score("best")) is not None]
        if last:
            chosen = f", with the weights best on validation {points(best)}" if best else ""
            finding = finding.with_note(f"on hard images width {width} at full length: {points(last)}{chosen}")
    return finding


@claim(
    "pathfinder-width-over-depth",
    "On Pathfinder width has a bigger impact than depth",
    WHERE,
    f"largest less smallest average over widths against that over depths: at least {EFFECT:g} point more",
)
def width_over_depth(records: Sequence[Record]) -> Finding:
    def test(grid: Grid) -> tuple[bool, str]:
        width, depth = span(by_width(grid)), span(by_depth(grid))
        return width >= depth + EFFECT, f"widths span {width:.1f} points, depths {depth:.1f}"

    return on_grid(records, test)


@claim(
    "pathfinder-wider-is-better",
    "On Pathfinder a wider state performs better",
    WHERE,
    f"accuracy of width {max(WIDTHS)} less {min(WIDTHS)}, average over the depths: at least {EFFECT:g} point",
)
def wider_is_better(records: Sequence[Record]) -> Finding:
    def test(grid: Grid) -> tuple[bool, str]:
        widths = by_width(grid)
        gain = minus(widths[max(WIDTHS)], widths[min(WIDTHS)])
        return fmean(gain) >= EFFECT, ", ".join(f"{width}: {points(values)}" for width, values in widths.items())

    return on_grid(records, test)


@claim(
    "pathfinder-depth-does-not-help",
    "On Pathfinder depth is not that important",
    WHERE,
    f"the better of 2 and 3 blocks less 1, average over the widths: at most {EFFECT:g} point",
)
def depth_does_not_help(records: Sequence[Record]) -> Finding:
    def test(grid: Grid) -> tuple[bool, str]:
        depths = by_depth(grid)
        gain = max(fmean(depths[2]), fmean(depths[3])) - fmean(depths[1])
        return gain <= EFFECT, described(depths)

    return on_grid(records, test)


@claim(
    "pathfinder-drop-with-layers",
    "On Pathfinder performance drops when layers are added",
    WHERE,
    f"1 block less 3, average over the widths: at least {EFFECT:g} point",
)
def drop_with_layers(records: Sequence[Record]) -> Finding:
    def test(grid: Grid) -> tuple[bool, str]:
        depths = by_depth(grid)
        return fmean(depths[1]) - fmean(depths[3]) >= EFFECT, described(depths)

    return on_grid(records, test)


def described(depths: Mapping[int, list[float]]) -> str:
    return ", ".join(f"{blocks} block{'s' if blocks > 1 else ''}: {points(v)}" for blocks, v in depths.items())

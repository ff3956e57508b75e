"""The figures of the paper that show trained models, drawn from the results there are.

A mark is the mean over the seeds of a configuration; its bar spans the least to the greatest value, which works on a
logarithmic axis, too. A line below the picture says what has not been computed.
"""

import itertools
import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multistable_experiments.page.pictures import COLOURS, label_ends
from multistable_experiments.paper import experiments
from multistable_experiments.paper.experiments import Experiment, TailAt
from multistable_experiments.paper.figures.style import GREY, label, panels
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.paper.settings import DEPTHS, NOISES, STREAMS, TAILS, Scale
from multistable_experiments.paper.store import Record, by_seed
from multistable_experiments.tasks import MNIST
from multistable_experiments.tasks.mnist import Tail

__all__ = ["copy_first", "generalisation", "pathfinder", "permuted_mnist", "tails", "without_positions"]

DOTTED, DASHED = (0, (1, 2)), (0, (4, 2))
NAMES = {"bmru": "BMRU", "lru": "LRU", "hybrid": "hybrid", "mingru": "minGRU", "gru": "GRU"}
LEVELS = {"hard": COLOURS["BMRU"], "easy": COLOURS["GRU"]}


class Results:
    """The numbers of a figure's configurations, and which of them are missing."""

    def __init__(self, records: Sequence[Record], planned: Sequence[Experiment]) -> None:
        self.records = records
        self.tasks = {experiment.configuration: experiment.run.task.name for experiment in planned}
        self.counts: set[int] = set()
        """How many seeds the numbers have."""
        self.missing: dict[str, None] = {}
        """In order, each once."""
        self.failed: dict[str, None] = {}
        """Runs whose loss became NaN, or that have a number which cannot be drawn."""

    def of(self, configuration: str, number: Callable[[Record], float | None], what: str = "") -> list[float]:
        """One number for each seed that has it; if none has it, that is noted under ``what``."""
        runs = by_seed(self.records, self.tasks[configuration], configuration)
        values = {seed: value for seed, run in runs.items() if (value := number(run)) is not None}
        finite = [value for value in values.values() if math.isfinite(value)]
        failed = [run.name for seed, run in runs.items() if run.failure or not math.isfinite(values.get(seed, 0.0))]
        self.failed |= dict.fromkeys(failed)
        self.counts |= {len(finite)} - {0}
        if not finite and not failed:
            self.missing[f"{configuration} {what}".strip()] = None
        return finite

    def last(self, configuration: str) -> list[float]:
        """The scores of the last epoch."""
        return self.of(configuration, lambda record: record.score("last"))

    def note(self, figure: Figure) -> None:
        """Write below the picture how many seeds it shows, and what is missing."""
        words = []
        if self.counts:
            least, most = min(self.counts), max(self.counts)
            many = f"{least} to {most}" if least < most else f"{most}"
            words.append(f"mean and range over {many} seeds" if most > 1 else "one seed")
        if self.failed:
            words.append(f"failed: {some(list(self.failed))}")
        if self.missing:
            words.append(f"not computed yet: {some(list(self.missing))}")
        width = int(15 * figure.get_figwidth())  # characters of this size
        figure.supxlabel(textwrap.fill("; ".join(words), width), fontsize=8, color=GREY, x=0.01, ha="left")


def some(names: Sequence[str]) -> str:
    """
    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def mark(axis: Axes, x: float, values: Sequence[float], colour: str, filled: bool = True) -> None:
    """Mean and range, and a dash for each seed: two of five may be far from the others."""
    if values:
        axis.plot([x] * len(values), values, color=colour, marker="_", ms=6, ls="")
        axis.errorbar(x, statistics.fmean(values), [[y] for y in reach(values)], color=colour, capsize=3, lw=1.2)
        axis.plot(x, statistics.fmean(values), color=colour, marker="o", ms=6, mfc=colour if filled else "white")


def curve(axis: Axes, points: Mapping[int, Sequence[float]], colour: str, style: Any = "-") -> float | None:
    """Draw means and ranges over x, as open points unless the line is solid. Return the last mean, if any."""
    known = {x: values for x, values in points.items() if values}
    if not known:
        return None
    means = [statistics.fmean(values) for values in known.values()]
    bars = list(zip(*(reach(values) for values in known.values()), strict=True))
    caps = 3 if max(map(len, known.values())) > 1 else 0  # with one seed a cap would be a dash through the point
    inside = colour if style == "-" else "white"
    axis.errorbar(list(known), means, bars, color=colour, marker="o", ms=4, mfc=inside, ls=style, lw=1.5, capsize=caps)
    return means[-1]


def reach(values: Sequence[float]) -> tuple[float, float]:
    """Distances of the least and the greatest value from the mean."""
    mean = statistics.fmean(values)
    return max(mean - min(values), 0.0), max(max(values) - mean, 0.0)  # not negative: the mean may be rounded


def finish(axis: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Label the lines, or write that there are none."""
    if ends:
        label_ends(axis, ends)
    else:
        nothing_yet(axis)


def nothing_yet(axis: Axes) -> None:
    axis.text(0.5, 0.5, "no result yet", transform=axis.transAxes, color=GREY, ha="center", va="center")


def copy_first(records: Sequence[Record], scale: Scale, recipe: Recipe) -> Figure:
    """Test error of both cells on copy-first-input at the two lengths, on a logarithmic axis. Filled: the last epoch;
    open: the weights that were best on the validation set. The LRU twice more: without weight decay on eigenvalues,
    norms and biases, and with linear maps whose first weights keep the variance. Dotted: always answering 0."""
    planned = experiments.copy_first(scale, 0, recipe)
    results = Results(records, planned)
    figure, axes = panels(1, 1, 6.2, 3.2)
    axis, ticks = axes[0, 0], []
    for x, experiment in enumerate(planned):
        cell = NAMES[experiment.run.model.cells[0]]
        mark(axis, x - 0.12, results.last(experiment.configuration), COLOURS[cell])
        best = results.of(experiment.configuration, lambda record: record.score("best"))
        mark(axis, x + 0.12, best, COLOURS[cell], filled=False)
        T, *variant = experiment.configuration.split("-")[1:]
        ticks.append(f"{cell}\n{T.replace('T', 'T = ')}\n{' '.join(variant)}".rstrip())
    if results.counts:
        axis.set_yscale("log")
    else:
        nothing_yet(axis)
    axis.axhline(1, color=GREY, lw=1, ls=DOTTED, zorder=0)
    axis.set(xticks=range(len(planned)), xticklabels=ticks, xlim=(-0.5, max(len(planned), 1) - 0.5))
    label(axis, "filled: last epoch, open: best on validation", "", "mean squared error")
    results.note(figure)
    return figure


def generalisation(records: Sequence[Record], scale: Scale, recipe: Recipe) -> Figure:
    """Error of the models trained on the shorter length, on longer sequences, by the standard deviation of the noise:
    N(0, 1), and N(0, 0.1) with 0.1 read as the standard deviation and as the variance. Best weights on validation;
    dotted: always answering 0."""
    planned = experiments.generalisation(scale, 0, recipe)
    results = Results(records, planned)
    figure, axes = panels(1, len(NOISES), 3.6, 3.0, sharey=True)
    lengths, _ = STREAMS[scale]
    errors = {
        (NAMES[experiment.run.model.cells[0]], noise): {
            T: results.of(experiment.configuration, lambda r, T=T, noise=noise: r.streamed(T, noise), "longer")
            for T in lengths
        }
        for experiment in planned
        for noise in NOISES
    }
    known = [error for points in errors.values() for values in points.values() for error in values]
    axes[0, 0].set(yscale="log", ylim=(min(known, default=2e-4) / 2, max([*known, 1]) * 3))
    titles = "noise N(0, 1)", "N(0, 0.1), 0.1 the deviation", "N(0, 0.1), 0.1 the variance"
    for axis, noise, title in zip(axes[0], NOISES, titles, strict=True):
        axis.set(xscale="log", xlim=(lengths[0] / 1.5, lengths[-1] * 1.5))
        axis.axhline(1, color=GREY, lw=1, ls=DOTTED, zorder=0)
        ends = []
        for cell in dict.fromkeys(cell for cell, _ in errors):
            if (end := curve(axis, errors[cell, noise], COLOURS[cell])) is not None:
                ends.append((end, cell, COLOURS[cell]))
        label(axis, title, "length of the sequence, T", "mean squared error" if axis is axes[0, 0] else "")
        finish(axis, ends)
    results.note(figure)
    return figure


def tails(records: Sequence[Record], scale: Scale, recipe: Recipe) -> Figure:
    """Accuracy of models of 3 blocks against the number of pixels after the image, most of them far more than the 1,216
    of their training: black ones; random ones, by models trained with such a tail (solid) and with black pixels
    (dashed); those of other images, likewise. Positions stay at the last trained one. Dotted: guessing."""
    planned = {e.configuration: e for e in experiments.tails(scale, 0, recipe)}
    results = Results(records, list(planned.values()))
    figure, axes = panels(1, 3, 3.6, 3.2, sharey=True)
    for axis, (tail, title) in zip(axes[0], TAIL_TITLES.items(), strict=True):
        ends: dict[str, tuple[float, str, str]] = {}
        for cell, name in NAMES.items():
            lines: dict[Tail, Any] = {"black": DASHED, tail: "-"}
            for trained_with, style in lines.items():
                configuration = experiments.mnist_name(cell, 3, trained_with)
                if configuration not in planned:
                    continue
                tests = {t.pixels: t for t in planned[configuration].tests if isinstance(t, TailAt) and t.tail == tail}
                held = any(test.held for test in planned[configuration].tests if isinstance(test, TailAt))
                line = {
                    pixels: results.of(
                        configuration, lambda r, t=tail, p=pixels, h=held: r.after_tail(t, p, h), "longer"
                    )
                    for pixels in tests
                }
                end = curve(axis, line, COLOURS[name], style)
                if end is not None:  # the solid line comes last
                    ends[name] = end, name, COLOURS[name]
        pixels = [pixels for pixels, _ in TAILS[scale]]
        axis.axhline(10, color=GREY, lw=1, ls=DOTTED, zorder=0)
        axis.set(xscale="log", xlim=(pixels[0] / 1.5, pixels[-1] * 1.5), ylim=(0, 103))
        label(axis, title, "pixels after the image", "test accuracy, %" if axis is axes[0, 0] else "")
        finish(axis, list(ends.values()))
    results.note(figure)
    return figure


TAIL_TITLES: dict[Tail, str] = {"black": "black pixels", "random": "random pixels", "images": "pixels of other images"}


def permuted_mnist(records: Sequence[Record], scale: Scale, recipe: Recipe) -> Figure:
    """Test accuracy on permuted sequential MNIST after the last epoch, for 2 and 3 blocks. Full bars: without black
    pixels; light bars: with 1,216 of them at the end of each sequence. Dotted: guessing."""
    planned = experiments.permuted_mnist(scale, 0, recipe)
    results = Results(records, planned)
    figure, axes = panels(1, 2, 4.2, 3.1, sharey=True)
    for axis, blocks in zip(axes[0], (2, 3), strict=True):
        cells = {cell: NAMES[cell] for cell in NAMES if any(e.run.model.cells[0] == cell for e in planned)}
        for x, (cell, name) in enumerate(cells.items()):
            for black, shift, alpha in (("", -0.2, 1.0), ("-black", 0.2, 0.45)):
                values = results.last(f"{cell}-{blocks}-blocks{black}")
                bar(axis, x + shift, values, COLOURS[name], alpha)
        axis.axhline(10, color=GREY, lw=1, ls=DOTTED, zorder=0)
        axis.set(xticks=range(len(cells)), xticklabels=cells.values(), xlim=(-0.6, max(len(cells), 1) - 0.4))
        axis.set(ylim=(0, 109), yticks=range(0, 101, 20))
        label(
            axis,
            f"{blocks} recurrent blocks; light: with black pixels",
            "",
            "test accuracy, %" if axis is axes[0, 0] else "",
        )
        if not axis.patches:
            nothing_yet(axis)
    results.note(figure)
    return figure


def without_positions(records: Sequence[Record], scale: Scale, recipe: Recipe) -> Figure:
    """Test accuracy on sequential MNIST without a position encoding, 3 blocks: permuted, and in reading order. "LRU,
    BMRU" is a stack of one LRU and two BMRU, which can take their clock from it. Dotted: guessing. An order without
    results is left out, unless there are none at all."""
    planned = experiments.without_positions(scale, 0, recipe)
    results = Results(records, planned)
    orders = {
        permuted: [e for e in planned if isinstance(e.run.task, MNIST) and e.run.task.permuted == permuted]
        for permuted in (True, False)
    }
    known = {key: shown for key, shown in orders.items() if any(results.last(e.configuration) for e in shown)}
    known = known or orders
    figure, axes = panels(1, len(known), 4.2, 3.1, sharey=True)
    for axis, (permuted, shown) in zip(axes[0], known.items(), strict=True):
        names = [", ".join(NAMES[cell] for cell in dict.fromkeys(e.run.model.cells)) for e in shown]
        for x, experiment in enumerate(shown):
            colour = COLOURS[NAMES[experiment.run.model.cells[-1]]]
            bar(axis, x, results.last(experiment.configuration), colour, 1.0 if "," not in names[x] else 0.45)
        axis.axhline(10, color=GREY, lw=1, ls=DOTTED, zorder=0)
        axis.set(xticks=range(len(shown)), xticklabels=names, xlim=(-0.6, max(len(shown), 1) - 0.4), ylim=(0, 109))
        title = "permuted" if permuted else "in reading order"
        label(axis, title, "", "test accuracy, %" if axis is axes[0, 0] else "")
        if not axis.patches:
            nothing_yet(axis)
    results.note(figure)
    return figure


def bar(axis: Axes, x: float, values: Sequence[float], colour: str, alpha: float) -> None:
    """A bar with its mean written above it."""
    if not values:
        return
    mean = statistics.fmean(values)
    axis.bar(x, mean, 0.38, color=colour, alpha=alpha, lw=0)
    if len(values) > 1:
        axis.errorbar(x, mean, [[y] for y in reach(values)], color="black", capsize=2.5, lw=1)
    axis.annotate(f"{mean:.1f}", (x, max(values)), (0, 2), textcoords="offset points", ha="center", fontsize=8)


def pathfinder(records: Sequence[Record], scale: Scale, recipe: Recipe) -> Figure:
    """Test accuracy of BMRU on Pathfinder after the last epoch, against the units per direction, for 1, 2 and 3 blocks;
    hard and easy images, and how many epochs. Dashed, open: shortened runs; dotted: guessing."""
    planned = experiments.pathfinder(scale, 0, recipe)
    results = Results(records, planned)
    longest = max(experiment.run.epochs for experiment in planned)
    figure, axes = panels(1, 3, 3.5, 3.0, sharey=True)
    for axis, blocks in zip(axes[0], DEPTHS, strict=True):
        ends = []
        for (level, colour), epochs in itertools.product(LEVELS.items(), sorted({e.run.epochs for e in planned})):
            line = {
                e.run.model.d_state: results.last(e.configuration)
                for e in planned
                if (len(e.run.model.cells), e.data, e.run.epochs) == (blocks, f"pathfinder {level}", epochs)
            }
            end = curve(axis, line, colour, "-" if epochs == longest else DASHED)
            if end is not None:
                ends.append((end, f"{level}, {epochs} ep.", colour))
        widths = sorted({e.run.model.d_state for e in planned})
        axis.set_xscale("log", base=2)
        axis.set(xticks=widths, xticklabels=widths, xlim=(widths[0] / 1.3, widths[-1] * 1.3), ylim=(45, 101))
        axis.minorticks_off()
        axis.axhline(50, color=GREY, lw=1, ls=DOTTED, zorder=0)
        title = f"{blocks} recurrent block{'s' if blocks > 1 else ''}"
        label(axis, title, "state dimension", "test accuracy, %" if axis is axes[0, 0] else "")
        finish(axis, ends)
    results.note(figure)
    return figure

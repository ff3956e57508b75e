"""The report: one HTML page with all figures and claims of the paper, the runs behind them, and what is missing."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from multistable_experiments.files import check_writable, write_atomically
from multistable_experiments.machine import describe
from multistable_experiments.page import commit_of, fill, machine_rows, style
from multistable_experiments.page.pictures import embed
from multistable_experiments.paper.claims import CHAPTERS, VERDICTS, Claim, Finding, measure
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.paper.figures import FIGURES
from multistable_experiments.paper.figures.style import BAND, BLUE, GREY, RED
from multistable_experiments.paper.settings import SEEDS, Scale
from multistable_experiments.paper.store import Record

__all__ = ["make", "write"]

CHAPTER_FIGURES = {
    "Memory and equilibria": ("fading_and_persistent", "convergence", "brc_hysteresis"),
    "The bistable unit": (
        "implicit_and_approximation", "example_simulation", "surrogates", "stationary_memory", "gradients",
    ),
    "Copy-first-input": ("copy-first", "generalisation"),
    "Permuted sequential MNIST": ("permuted-mnist",),
    "Pathfinder": ("pathfinder",),
}  # fmt: skip
REM_PER_INCH = 5.9
"""Scale of the figures: the widest one fills the page. All have one scale, so that letters have one size."""
VARIABLES = {BLUE: "blue", RED: "red", GREY: "faint", BAND: "band", "#000000": "ink", "#ffffff": "page"}
OPEN_RUNS = 30
"""The table of runs is folded if it has more rows."""


def write(
    records: Sequence[Record],
    results: Path | str,
    out: Path,
    scale: Scale = "paper",
    tell: Callable[[str], None] = lambda words: None,
) -> Path:
    """Write the page of these records, and of the claims on theory in the folder ``results``. ``tell`` is called with
    the name of each figure before it is drawn."""
    check_writable("--out", out)  # before half a minute of drawing
    write_atomically(out, make(records, measure(records, results), scale, tell).encode())
    return out


def make(
    records: Sequence[Record],
    findings: Mapping[Claim, Finding],
    scale: Scale,
    tell: Callable[[str], None] = lambda words: None,
) -> str:
    """The whole page."""
    figures = {}
    for name, figure in FIGURES.items():
        tell(f"figure {name}")
        svg = embed(f"figure-{name}", partial(figure.draw, records, scale), VARIABLES)
        [points] = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)
        figures[name] = {"svg": svg, "width": float(points) / 72 * REM_PER_INCH, "of": figure}
    chapters = [
        {
            "title": title,
            "figures": [figures[name] for name in CHAPTER_FIGURES.get(title, ()) if name in figures],
            "claims": [(claim, finding) for claim, finding in findings.items() if claim.chapter == title],
        }
        for title in CHAPTERS
    ]
    verdicts = [finding.verdict for finding in findings.values()]
    planned = plan(None, scale, range(SEEDS["paper"]))
    own_style = (files("multistable_experiments.paper") / "report.css").read_text(encoding="utf-8")
    values = {
        "style": style() + Markup(own_style),
        "scale": scale,
        "verdicts": {verdict: verdicts.count(verdict) for verdict in VERDICTS},
        "chapters": chapters,
        "records": records,
        "places": sorted({place(record) for record in records}),
        "hours": sum(record.seconds for record in records) / 3600,
        "open_runs": OPEN_RUNS,
        "planned": len(planned),
        "missing": missing_seeds(records, planned),
        "machine": machine_rows(describe()),
    }
    filters = {"css": css, "place": place, "commits": commits}
    return fill("multistable_experiments.paper", "report.html", values, filters)


def css(words: str) -> str:
    """
    >>> css("Not held")
    'not-held'
    """
    return words.lower().replace(" ", "-")


def place(record: Record) -> str:
    return record.machine["gpu"] or record.machine["processor"]


def commits(record: Record) -> str:
    """The commit that finished a run, and those at which earlier parts of it were computed."""
    last = commit_of(record.machine | {"commit": (record.machine["commit"] or "")[:12]}).replace("+", " +")  # to wrap
    earlier = [(commit or "unknown")[:12] for commit in record.machine.get("earlier_commits", [])]
    return f"{last}, begun at {', '.join(earlier)}" if earlier else last


def missing_seeds(records: Sequence[Record], planned: Sequence[Experiment]) -> dict[tuple[str, str], list[int]]:
    """(task, configuration) -> seeds that are still to be computed."""
    done = {record.id: record for record in records}
    seeds: dict[tuple[str, str], list[int]] = {}
    for experiment in planned:
        record = done.get(experiment.run.id)
        if record is None or not record.has(experiment):
            seeds.setdefault((experiment.run.task.name, experiment.configuration), []).append(experiment.run.seed)
    return seeds

"""The report: one HTML page with all figures and claims of the paper, the runs behind them, and what is missing."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from multistable_experiments.files import check_writable, write_atomically
from multistable_experiments.machine import describe
from multistable_experiments.page import commit_of, fill, machine_rows, style
from multistable_experiments.page.pictures import embed
from multistable_experiments.paper.claims import CHAPTERS, VERDICTS, measure_all
from multistable_experiments.paper.claims.table import Findings, by_claim
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.paper.figures import FIGURES
from multistable_experiments.paper.figures.style import BAND, BLUE, GREY, RED
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.paper.settings import Scale
from multistable_experiments.paper.store import Record, missing

__all__ = ["make", "write"]

CHAPTER_FIGURES = {
    "Memory and equilibria": ("fading_and_persistent", "convergence", "brc_hysteresis"),
    "The bistable unit": (
        "implicit_and_approximation", "example_simulation", "surrogates", "stationary_memory", "gradients",
    ),
    "Copy-first-input": ("copy-first", "generalisation"),
    "Permuted sequential MNIST": ("tails", "permuted-mnist", "without-positions"),
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
    scale: Scale = "full",
    tell: Callable[[str], None] = lambda words: None,
) -> Path:
    """Write the page of these records, and of the claims on theory in the folder ``results``. ``tell`` is called with
    the name of each figure before it is drawn."""
    check_writable("--out", out)  # before half a minute of drawing
    write_atomically(out, make(records, measure_all(records, results), scale, tell).encode())
    return out


def make(
    records: Sequence[Record],
    findings: Findings,
    scale: Scale,
    tell: Callable[[str], None] = lambda words: None,
) -> str:
    """The whole page."""
    recipes: list[Recipe] = [recipe for recipe in findings if recipe is not None]
    figures = {}
    for name, figure in FIGURES.items():
        tell(f"figure {name}")
        shown: list[Recipe | None] = [recipe for recipe in recipes if recipe in figure.recipes] or [None]
        figures[name] = [drawing(name, recipe, records, scale) for recipe in shown]
    claims = by_claim(findings)
    chapters = []
    for title in CHAPTERS:
        found_here = [(claim, found) for claim, found in claims.items() if claim.chapter == title]
        figures_here = [each for name in CHAPTER_FIGURES.get(title, ()) for each in figures.get(name, ())]
        on_models = any(recipe for _, found in found_here for recipe in found)
        chapters.append({"title": title, "figures": figures_here, "claims": found_here, "recipes": on_models})
    verdicts = [finding.verdict for found in findings.values() for finding in found.values()]
    theory = sum(None in found for found in claims.values())
    planned = plan(None, scale, None, recipes)
    own_style = (files("multistable_experiments.paper") / "report.css").read_text(encoding="utf-8")
    values = {
        "style": style() + Markup(own_style),
        "scale": scale,
        "verdicts": {verdict: verdicts.count(verdict) for verdict in VERDICTS},
        "theory": theory,
        "trained": len(claims) - theory,
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


def drawing(name: str, recipe: Recipe | None, records: Sequence[Record], scale: Scale) -> dict[str, object]:
    """A figure for the page, by a recipe if it shows trained models."""
    figure = FIGURES[name]
    draw = partial(figure.draw, records, scale) if recipe is None else partial(figure.draw, records, scale, recipe)
    svg = embed(f"figure-{name}{f'-{recipe}' if recipe else ''}", draw, VARIABLES)
    [points] = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)
    return {"svg": svg, "width": float(points) / 72 * REM_PER_INCH, "of": figure, "recipe": recipe}


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


def missing_seeds(records: Sequence[Record], planned: Sequence[Experiment]) -> dict[tuple[str, str, str], list[int]]:
    """(recipe, task, configuration) -> seeds that are still to be computed."""
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for each in missing(records, planned):
        seeds.setdefault((each.recipe, each.run.task.name, each.configuration), []).append(each.run.seed)
    return seeds

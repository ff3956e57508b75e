"""The report: one HTML page with all figures and claims of the paper, the runs behind them, and what is missing."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path

from multistable_experiments.files import check_writable, write_atomically
from multistable_experiments.machine import describe
from multistable_experiments.page import commit_of, fill, machine_rows, table
from multistable_experiments.page.pictures import embed
from multistable_experiments.paper.claims import CHAPTERS, Claim, Measured, measure
from multistable_experiments.paper.claims.claim import SEEDS
from multistable_experiments.paper.claims.table import VERDICTS
from multistable_experiments.paper.drawing import BAND, BLUE, GREY, RED
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.paper.figures import PICTURES
from multistable_experiments.paper.store import Record
from multistable_experiments.training.presets import Scale

__all__ = ["make", "write"]

FIGURES_OF = {
    "Memory and equilibria": ("fading_and_persistent", "convergence", "brc_hysteresis"),
    "The bistable unit": (
        "implicit_and_approximation", "example_simulation", "surrogates", "stationary_memory", "gradients",
    ),
    "Copy-first-input": ("copy-first", "generalisation"),
    "Permuted sequential MNIST": ("permuted-mnist",),
    "Pathfinder": ("pathfinder",),
}  # fmt: skip
"""Chapter -> its figures."""
REM_PER_INCH = 5.9
"""Scale of the pictures: the widest one fills the page."""
VARIABLES = {BLUE: "blue", RED: "red", GREY: "faint", BAND: "band", "#000000": "ink", "#ffffff": "page"}


def write(
    records: Sequence[Record], out: Path, scale: Scale = "paper", tell: Callable[[str], None] = lambda words: None
) -> Path:
    """Measure, draw, and write the page; ``tell`` hears what is being done."""
    check_writable("--out", out)  # to fail now, and not after half a minute of measuring
    page = make(records, measure(records, lambda claim: tell(f"claim {claim.id}")), scale, tell)
    write_atomically(out, page.encode())
    return out


def make(
    records: Sequence[Record],
    measured: Sequence[Measured],
    scale: Scale,
    tell: Callable[[str], None] = lambda words: None,
) -> str:
    """The whole page."""
    planned = plan(None, scale, range(SEEDS))
    pictures = {}
    for name, picture in PICTURES.items():
        tell(f"figure {name}")
        pictures[name] = embed(f"figure-{name}", partial(picture.draw, records, scale), VARIABLES)
    values = {
        "own_style": (files("multistable_experiments.paper") / "report.css").read_text(encoding="utf-8"),
        "run_count": len(records),
        "scale": scale,
        "verdicts": verdict_counts(measured),
        "contents": contents(),
        "chapters": "\n".join(chapter(title, claims, measured, pictures) for title, claims in CHAPTERS.items()),
        "run_words": run_words(records),
        "failures": failures(records),
        "runs": runs_table(records),
        **missing(records, planned),
        "machine": table([], machine_rows(describe()).items(), "facts"),
    }
    return fill("multistable_experiments.paper", "report.html", values)


def verdict_counts(measured: Sequence[Measured]) -> str:
    found = [each.verdict for each in measured]
    items = (f'<li class="{css(verdict)}"><b>{found.count(verdict)}</b>{verdict}</li>' for verdict in VERDICTS)
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def css(words: str) -> str:
    """
    >>> css("Not held")
    'not-held'
    """
    return words.lower().replace(" ", "-")


def contents() -> str:
    names = {css(title): title for title in CHAPTERS} | {"runs": "Runs", "made": "How this was made"}
    return "\n".join(f'<a href="#{name}">{title}</a>' for name, title in names.items())


def chapter(title: str, claims: Sequence[Claim], measured: Sequence[Measured], pictures: dict[str, str]) -> str:
    """Figures, then claims."""
    own = [each for each in measured if each.claim in claims]
    shown = "\n".join(figure(name, pictures[name]) for name in FIGURES_OF.get(title, ()))
    rows = table(["claim", "measured", "verdict"], map(claim_row, own), "claims")
    return f'<h2 id="{css(title)}">{title}</h2>\n{shown}\n{rows}'


def figure(name: str, svg: str) -> str:
    """All in one scale, so that letters have the same size in each."""
    picture = PICTURES[name]
    [points] = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)
    width = f"{float(points) / 72 * REM_PER_INCH:.1f}rem"
    words = f"<b>{picture.title}</b> (figure {picture.number} of the paper). {escape(picture.caption)}"
    return f'<figure style="--width: {width}">\n{svg}\n<figcaption>{words}</figcaption>\n</figure>'


def claim_row(each: Measured) -> tuple[str, str, str]:
    claim, finding = each.claim, each.finding
    said = f"{escape(claim.sentence)}.<small>{escape(claim.where)}. Measured: {escape(claim.how)}.</small>"
    small = [part for part in (finding.evidence, f"Note: {finding.note}" if finding.note else "") if part]
    numbers = escape(finding.measured) + "".join(f"<small>{escape(part)}</small>" for part in small)
    lean = each.words.removeprefix(each.verdict).strip(" ()")
    verdict = each.verdict + (f'<small class="{css(lean.removesuffix(" so far"))}">{lean}</small>' if lean else "")
    return said, numbers, f'<span class="{css(each.verdict)}">{verdict}</span>'


def run_words(records: Sequence[Record]) -> str:
    """How much was computed, and where."""
    if not records:
        return "No run yet: <code>multistable reproduce</code> computes them."
    seconds = sum(record.seconds for record in records)
    where = sorted({place(record) for record in records})
    return f"{len(records)} runs, {seconds / 3600:.2f} hours of training in all, on {escape(', '.join(where))}."


def place(record: Record) -> str:
    return record.machine["gpu"] or record.machine["processor"]


def failures(records: Sequence[Record]) -> str:
    failed = [record for record in records if record.failure]
    if not failed:
        return "<p>None of them failed.</p>" if records else ""
    rows = [[escape(record.name), escape(record.failure or "")] for record in failed]
    return f"<p>{len(failed)} failed:</p>" + table(["run", "why"], rows, "facts")


def runs_table(records: Sequence[Record]) -> str:
    if not records:
        return ""
    head = ["task", "configuration", "seed", "epochs", "metric", "last", "best (epoch)", "seconds", "machine", "commit"]
    rows = table(head, map(run_row, records), "runs")
    opened = " open" if len(records) <= 30 else ""
    return f'<details{opened}><summary>All runs</summary><div class="wide">{rows}</div></details>'


def run_row(record: Record) -> list[str]:
    run, metric = record.run, record.run.task.metric
    last, best = record.metrics.get("last"), record.metrics.get("best")
    cells = [
        run.task.name, record.configuration, str(run.seed), str(run.epochs), metric,
        f"{last[f'test_{metric}']:.4g}" if last else "failed",
        f"{best[f'test_{metric}']:.4g} ({best['epoch']:g})" if best else "",
        f"{record.seconds:,.0f}", place(record), short_commit(record),
    ]  # fmt: skip
    return [escape(cell) for cell in cells]


def short_commit(record: Record) -> str:
    """The commit that finished a run, and those at which parts of it were computed before."""
    found = commit_of(record.machine | {"commit": (record.machine["commit"] or "")[:12]}).replace("+", " +")  # to wrap
    earlier = [(commit or "unknown")[:12] for commit in record.machine.get("earlier_commits", [])]
    return f"{found}, begun at {', '.join(earlier)}" if earlier else found


def missing(records: Sequence[Record], planned: Sequence[Experiment]) -> dict[str, str]:
    """The words and the table of what is still to be computed, by configuration."""
    done = {record.id: record for record in records}
    seeds: dict[tuple[str, str], list[int]] = {}
    for experiment in planned:
        record = done.get(experiment.run.id)
        if record is None or not record.has(experiment):
            seeds.setdefault((experiment.run.task.name, experiment.configuration), []).append(experiment.run.seed)
    count = sum(map(len, seeds.values()))
    words = f"{count} of {len(planned)} planned runs are missing, or lack tests at other lengths."
    if not count:
        return {"missing_words": "Nothing.", "missing": ""}
    rows = [[task, escape(name), ", ".join(map(str, which))] for (task, name), which in seeds.items()]
    listed = table(["task", "configuration", "seeds"], rows, "runs")
    return {"missing_words": words, "missing": f"<details><summary>By configuration</summary>{listed}</details>"}

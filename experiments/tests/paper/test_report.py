"""The report: one self-contained page with all figures, claims and runs."""

import re
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

import pytest

from html_page import assert_self_contained
from multistable_experiments.page import style
from multistable_experiments.page.pictures import VARIABLES
from multistable_experiments.paper import report, store
from multistable_experiments.paper.claims import CLAIMS, measure_all, read_theory
from multistable_experiments.paper.figures import FIGURES
from paper_records import RESULTS, records, save

FAILED = "lru-T300-seed1"
FAST = {name: figure for name, figure in FIGURES.items() if name != "stationary_memory"}
"""All figures but the one that trains its own models."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page for two seeds of copy-first, one run of which failed."""
    found = [
        replace(r, metrics={}, failure="the loss became NaN in epoch 3 (<rate> too high)") if r.name == FAILED else r
        for r in records([0, 1], ["copy-first"])
    ]
    found = store.load(save(tmp_path_factory.mktemp("results"), found))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "FIGURES", FAST)
        return report.make(found, measure_all(found, RESULTS, ("tuned",)), "full")


def test_page_is_self_contained_and_well_formed(page: str) -> None:
    assert_self_contained(page)
    assert page.startswith("<!doctype html>")


def test_page_has_every_figure_and_every_claim(page: str) -> None:
    assert page.count("<svg") == len(FAST)
    for figure in FAST.values():
        assert escaped(figure.caption) in page
    for claim in CLAIMS:
        assert escaped(claim.sentence) in page
    for claim, finding in read_theory(RESULTS).items():
        assert escaped(claim.sentence) in page
        assert escaped(finding.measured) in page
    assert "two for |x| up to 0.90" in page


def test_page_says_where_one_seed_is_enough(page: str) -> None:
    assert "one for\nPathfinder and, by paper, for three blocks" in page


def escaped(words: str) -> str:
    """Escaped as in the page."""
    return escape(words).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def test_page_escapes_what_a_result_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FIGURES", {"copy-first": FIGURES["copy-first"]})
    hostile = "<script>alert(1)</script>"
    machine = {"gpu": hostile, "processor": hostile, "commit": hostile, "dirty": False, "earlier_commits": [hostile]}
    found = [replace(r, machine=machine, configuration=hostile) for r in records([0], ["copy-first"])]
    page = report.make(found, measure_all(found, RESULTS, ("tuned",)), "full")
    assert page.count("&lt;script") >= 3 * len(found)
    assert_self_contained(page)


def test_every_figure_has_a_chapter() -> None:
    assert sorted(name for names in report.CHAPTER_FIGURES.values() for name in names) == sorted(FIGURES)


def test_page_counts_verdicts(page: str) -> None:
    assert '<li class="held"><b>45</b>held</li>' in page
    assert '<li class="provisional"><b>4</b>provisional</li>' in page
    assert '<small class="held">held so far</small>' in page
    assert "45 claims on the unit and its theory have one each, 27 claims on trained models" in page


def test_only_claims_on_trained_models_have_a_column_of_recipes(page: str) -> None:
    tables = re.findall(r'<table class="claims">.*?</table>', page, re.DOTALL)
    assert [table.count("recipe</th>") for table in tables] == [0, 0, 0, 1, 1, 1]
    for table in tables:
        columns = table.count("</th>")
        [row] = re.findall(r"<tbody>\s*<tr>.*?</tr>", table, re.DOTALL)
        assert row.count("</td>") == columns


def test_page_lists_runs_failures_and_what_is_missing(page: str) -> None:
    rows = re.findall(r"<tr><td>tuned</td><td>copy-first</td><td>([\w-]+)</td><td>(\d)</td><td>(\d+)</td>", page)
    assert ("bmru-T100", "0", "100") in rows
    assert len(rows) == 12
    assert "12 runs, 0.04 hours of training in all, on a GPU." in page
    assert "the loss became NaN in epoch 3 (&lt;rate&gt; too high)" in page
    assert "0123456789ab</td>" in page
    assert "342 of 350 planned runs are missing" in page  # the four runs at T = 100 lack tests at greater lengths
    assert "<td>bmru-3-blocks-black</td><td>0, 1, 2, 3, 4</td>" in page


def test_a_run_lists_the_commits_at_which_it_was_computed() -> None:
    [record] = (r for r in records([0], ["copy-first"]) if r.configuration == "bmru-T100")
    resumed = replace(record, machine=record.machine | {"earlier_commits": ["fedcba9876543210", None]})
    assert report.commits(record) == "0123456789ab"
    changed = replace(record, machine=record.machine | {"dirty": True})
    assert report.commits(changed) == "0123456789ab +changes"
    assert report.commits(resumed) == "0123456789ab, begun at fedcba987654, unknown"


def test_colours_are_variables_of_the_page(page: str) -> None:
    pictures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    for colour in ("#0072b2", "#1f5fa8", "#000000"):
        assert colour not in pictures


def test_every_colour_is_defined_for_light_and_dark() -> None:
    styles = style() + (files("multistable_experiments.paper") / "report.css").read_text()
    for variable in (VARIABLES | report.VARIABLES).values():
        assert len(re.findall(rf"--{variable}:", styles)) == 2, variable


def test_write_rejects_a_folder_before_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "make", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ValueError, match=r"--out must be a file, but .* is a folder"):
        report.write([], tmp_path / "none", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        report.write([], tmp_path / "none", tmp_path / "file" / "report.html")


def test_write_makes_a_page_without_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FIGURES", {name: FIGURES[name] for name in ("surrogates", "copy-first")})
    told: list[str] = []
    path = report.write([], tmp_path / "none", tmp_path / "new" / "report.html", tell=told.append)
    page = path.read_text()
    assert_self_contained(page)
    assert "No run yet" in page
    assert not re.search(r"<tbody>\s*</tbody>", page)
    assert '<li class="not-measured"><b>54</b>not measured</li>' in page
    assert told == ["figure surrogates", "figure copy-first"]

"""The table of claims: in a terminal, as Markdown, as JSON."""

import json

from multistable_experiments.paper.claims import CLAIMS, Finding, measure, read_theory
from multistable_experiments.paper.claims.table import as_json, counts, markdown, show
from paper_records import RESULTS, records


def test_markdown_has_a_row_per_claim_and_a_column_per_recipe():
    text = markdown({recipe: measure(records(), recipe) for recipe in ("tuned", "best")})
    rows = [line for line in text.splitlines() if "**" in line]
    assert len(rows) == len(CLAIMS)
    assert all(row.count("**held**") == 1 and row.count("**not measured**") == 1 for row in rows)
    assert "Recipe `tuned`: 27 held." in text
    assert "Recipe `best`: 27 not measured." in text
    assert "| claim | recipe `tuned` | recipe `best` |" in text


def test_json_has_all_of_a_finding():
    whole = measure(records([0]), "tuned")
    rows = json.loads(as_json({None: read_theory(RESULTS), "tuned": whole}))
    assert len(rows) == 72
    [row] = [row for row in rows if row["id"] == "copy-300-bmru"]
    finding = whole[next(claim for claim in whole if claim.id == row["id"])]
    assert row["findings"]["tuned"]["measured"] == finding.measured
    assert row["findings"]["tuned"]["verdict"] == "provisional"
    assert row["findings"]["tuned"]["seeds"] == [0]


def test_the_table_fits_into_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    show({"tuned": measure(records(), "tuned"), "best": measure([], "best")})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == ["tuned: 27 held", "best: 27 not measured"]


def test_without_its_file_the_theory_is_said_to_be_missing(capsys):
    findings = {None: {}, "best": measure([], "best")}
    show(findings)
    assert "\ntheory: no theory.json in the folder of results\n" in capsys.readouterr().out
    assert "theory" not in markdown(findings)


def test_verdicts_are_counted():
    findings = {claim: Finding(held, "") for claim, held in zip(CLAIMS, (True, False, None, True), strict=False)}
    assert counts(findings) == "2 held, 1 not held, 1 not measured"

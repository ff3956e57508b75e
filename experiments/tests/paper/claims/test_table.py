"""The table of claims in Markdown; the terminal's is tested with its command."""

from multistable_experiments.paper.claims import CLAIMS, Finding
from multistable_experiments.paper.claims.table import counts, markdown
from paper_records import records


def test_markdown_has_a_row_per_claim():
    whole = records()
    text = markdown({claim: claim.measure(whole) for claim in CLAIMS})
    assert text.count(" | held |") == len(CLAIMS)
    assert "On trained models: 27 held." in text


def test_verdicts_are_counted():
    findings = {claim: Finding(held, "") for claim, held in zip(CLAIMS, (True, False, None, True), strict=False)}
    assert counts(findings) == "2 held, 1 not held, 1 not measured"

"""The table of claims, for a terminal and for Markdown."""

from collections.abc import Mapping

from multistable_experiments.paper.claims.claim import VERDICTS, Claim, Finding, Verdict

__all__ = ["counts", "markdown", "show"]

COLOURS: dict[Verdict, str] = {"held": "green", "provisional": "yellow", "not held": "red", "not measured": "dim"}


def counts(findings: Mapping[Claim, Finding]) -> str:
    """Such as ``"2 held, 1 not measured"``."""
    verdicts = [finding.verdict for finding in findings.values()]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts)


def show(findings: Mapping[Claim, Finding]) -> None:
    """Print the table, chapter by chapter."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(findings)} claims: {counts(findings)}", title_justify="left")
    for column in ("claim", "where", "measured", "verdict"):
        table.add_column(column)
    chapter = None
    for claim, finding in findings.items():
        if claim.chapter != chapter:
            table.add_section()
            chapter = claim.chapter
        small = [f"({finding.evidence})"] if finding.evidence else []
        small += [f"note: {finding.note}"] if finding.note else []
        numbers = Text(finding.measured).append("".join(f"\n{line}" for line in small), style="dim")
        sentence = Text(claim.sentence).append(f"\n{claim.id}", style="dim")
        table.add_row(sentence, claim.where, numbers, Text(finding.words, style=COLOURS[finding.verdict]))
    Console().print(table)


def markdown(findings: Mapping[Claim, Finding]) -> str:
    """Claims on trained models as a table; folded tables for those that are not measured and those on theory."""
    trained = {claim: finding for claim, finding in findings.items() if claim.trained}
    theory = {claim: finding for claim, finding in findings.items() if not claim.trained}
    measured = {claim: finding for claim, finding in trained.items() if finding.held is not None}
    unmeasured = {claim: finding for claim, finding in trained.items() if finding.held is None}
    lines = [f"On trained models: {counts(trained)}.", "", *rows(measured), ""]
    if unmeasured:
        lines += folded("Not measured yet", unmeasured)
    return "\n".join(lines + folded(f"On the unit and its theory: {counts(theory)}", theory))


def folded(title: str, findings: Mapping[Claim, Finding]) -> list[str]:
    return [f"<details><summary>{title}.</summary>", "", *rows(findings), "", "</details>"]


def rows(findings: Mapping[Claim, Finding]) -> list[str]:
    lines = ["| claim | measured | verdict |", "|---|---|---|"]
    for claim, finding in findings.items():
        evidence = f" ({finding.evidence})" if finding.evidence else ""
        cells = claim.sentence, finding.measured + evidence, finding.words
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines

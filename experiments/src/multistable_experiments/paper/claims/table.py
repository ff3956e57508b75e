"""The table of claims: for a terminal and for README.md."""

from collections.abc import Sequence

from multistable_experiments.paper.claims import CHAPTERS
from multistable_experiments.paper.claims.claim import Measured, Verdict

__all__ = ["VERDICTS", "counts", "markdown", "show"]

VERDICTS: dict[Verdict, str] = {"held": "green", "provisional": "yellow", "not held": "red", "not measured": "dim"}
"""With their colours in a terminal."""


def counts(measured: Sequence[Measured]) -> str:
    """
    >>> from multistable_experiments.paper.claims import CLAIMS, Finding
    >>> counts([Measured(CLAIMS[0], Finding(held, "")) for held in (True, False, None, True)])
    '2 held, 1 not held, 1 not measured'
    """
    found = [each.verdict for each in measured]
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found)


def show(measured: Sequence[Measured]) -> None:
    """Print the table, chapter by chapter."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(measured)} claims: {counts(measured)}", title_justify="left")
    for column in ("claim", "where", "measured", "verdict"):
        table.add_column(column)
    for claims in CHAPTERS.values():
        for each in (one for one in measured if one.claim in claims):
            found = each.finding
            small = [f"({found.evidence})"] if found.evidence else []
            small += [f"note: {found.note}"] if found.note else []
            numbers = Text(found.measured).append("".join(f"\n{line}" for line in small), style="dim")
            words = Text(each.words, style=VERDICTS[each.verdict])
            table.add_row(
                Text(each.claim.sentence).append(f"\n{each.claim.id}", style="dim"), each.claim.where, numbers, words
            )
        table.add_section()
    Console().print(table)


def markdown(measured: Sequence[Measured]) -> str:
    """Claims on trained models as a table; folded tables for those that are not measured and those on theory."""
    trained = [each for each in measured if each.claim.trained]
    theory = [each for each in measured if not each.claim.trained]
    known = [each for each in trained if each.verdict != "not measured"]
    unknown = [each for each in trained if each.verdict == "not measured"]
    lines = [f"On trained models: {counts(trained)}.", "", *rows(known), ""]
    if unknown:
        lines += folded("Not measured yet", unknown)
    return "\n".join(lines + folded(f"On the unit and its theory, computed on the spot: {counts(theory)}", theory))


def folded(title: str, measured: Sequence[Measured]) -> list[str]:
    return [f"<details><summary>{title}.</summary>", "", *rows(measured), "", "</details>"]


def rows(measured: Sequence[Measured]) -> list[str]:
    lines = ["| claim | measured | verdict |", "|---|---|---|"]
    for each in measured:
        evidence = f" ({each.finding.evidence})" if each.finding.evidence else ""
        cells = each.claim.sentence, each.finding.measured + evidence, each.words
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines

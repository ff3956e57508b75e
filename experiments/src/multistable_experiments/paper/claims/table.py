"""The table of claims, with a verdict for each recipe: for a terminal, as Markdown, as JSON."""

import json
from collections.abc import Mapping

from multistable_experiments.paper.claims.claim import VERDICTS, Claim, Finding, Verdict
from multistable_experiments.paper.recipes import Recipe

__all__ = ["Findings", "as_json", "counts", "markdown", "show"]

Findings = Mapping[Recipe | None, Mapping[Claim, Finding]]
"""By recipe; those on theory, where nothing is trained, under None."""
COLOURS: dict[Verdict, str] = {
    "held": "green",
    "provisional": "yellow",
    "not held": "red",
    "undecided": "magenta",
    "not measured": "dim",
}


def counts(findings: Mapping[Claim, Finding]) -> str:
    """Such as ``"2 held, 1 not measured"``."""
    verdicts = [finding.verdict for finding in findings.values()]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts)


def by_claim(findings: Findings) -> dict[Claim, dict[Recipe | None, Finding]]:
    """The findings of each claim by recipe."""
    claims: dict[Claim, dict[Recipe | None, Finding]] = {}
    for recipe, found in findings.items():
        for claim, finding in found.items():
            claims.setdefault(claim, {})[recipe] = finding
    return claims


def show(findings: Findings) -> None:
    """Print the table, chapter by chapter; it fits into 80 columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("claim", "measured", title_justify="left", title="Claims of the paper")
    chapter = None
    for claim, found in by_claim(findings).items():
        if claim.chapter != chapter:
            table.add_section()
            chapter = claim.chapter
        sentence = Text(claim.sentence).append(f"\n{claim.id}, {claim.where}", style="dim")
        words = Text()
        for recipe, finding in found.items():
            words.append("\n" if words else "").append(f"{recipe}: " if recipe else "", style="bold")
            words.append(finding.words, style=COLOURS[finding.verdict]).append(f", {finding.measured}")
            small = [f"({finding.evidence})"] if finding.evidence else []
            small += [f"note: {finding.note}"] if finding.note else []
            words.append("".join(f"\n{line}" for line in small), style="dim")
        table.add_row(sentence, words)
    console = Console()
    console.print(table)
    for recipe, found in findings.items():
        words = counts(found) or "no theory.json in the folder of results"
        console.print(f"{recipe or 'theory'}: {words}", highlight=False)


def as_json(findings: Findings) -> str:
    """A list of claims, each with its findings by recipe (``"theory"`` where nothing is trained)."""
    rows = [
        {
            **{name: getattr(claim, name) for name in ("id", "chapter", "sentence", "where", "how")},
            "findings": {
                recipe or "theory": {
                    "verdict": finding.verdict,
                    "held": finding.held,
                    "measured": finding.measured,
                    "note": finding.note,
                    "seeds": list(finding.seeds or ()),
                    "epochs": list(finding.epochs),
                }
                for recipe, finding in found.items()
            },
        }
        for claim, found in by_claim(findings).items()
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def markdown(findings: Findings) -> str:
    """A row per claim on trained models, with a column per recipe; folded tables of the notes and of the theory."""
    trained: Findings = {recipe: found for recipe, found in findings.items() if recipe is not None}
    theory: Findings = {recipe: found for recipe, found in findings.items() if recipe is None and found}
    lines = [f"Recipe `{recipe}`: {counts(found)}." for recipe, found in trained.items()]
    lines += ["", *rows(trained), "", *folded("Notes to these claims", notes(trained))]
    if theory:
        lines += folded(f"On the unit and its theory: {counts(theory[None])}", rows(theory))
    return "\n".join(lines)


def rows(findings: Findings) -> list[str]:
    """Claims with a column of verdicts and measurements per recipe."""
    names = [f"recipe `{recipe}`" if recipe else "measured" for recipe in findings]
    lines = ["| claim | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for claim, found in by_claim(findings).items():
        cells = [claim.sentence, *(f"**{f.words}**: {f.measured}{evidence(f)}" for f in found.values())]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def evidence(finding: Finding) -> str:
    return f" ({finding.evidence})" if finding.evidence else ""


def notes(findings: Findings) -> list[str]:
    lines = ["| claim | recipe | note |", "|---|---|---|"]
    for claim, found in by_claim(findings).items():
        for recipe, finding in found.items():
            if finding.note:
                lines.append(
                    "| " + " | ".join((claim.sentence, f"`{recipe}`", finding.note.replace("|", "\\|"))) + " |"
                )
    return lines


def folded(title: str, table: list[str]) -> list[str]:
    return [f"<details><summary>{title}.</summary>", "", *table, "", "</details>"]

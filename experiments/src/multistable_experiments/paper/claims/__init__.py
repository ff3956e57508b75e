"""Every sentence of the paper that a measurement can confirm, with its measurement and its verdict.

Claims on trained models are measured on the results of ``multistable reproduce`` (``copy_first``, ``mnist``,
``pathfinder``). Claims on the unit and its theory are tests, in ``experiments/tests/paper/theory``; what they measured
is stored in ``results/theory.json``.

Not among them: what the paper says of other people's work (Transformers, S4, Mamba and their benchmarks), what it only
conjectures ("increasing network depth would possibly make LRU learn", "discretisation makes the learning more
difficult", the section on future work), and definitions.
"""

from collections.abc import Sequence
from pathlib import Path

from multistable_experiments.files import read_json
from multistable_experiments.paper.claims import copy_first, mnist, pathfinder
from multistable_experiments.paper.claims.claim import VERDICTS, Claim, Finding, Verdict
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.paper.store import Record

__all__ = ["CHAPTERS", "CLAIMS", "VERDICTS", "Claim", "Finding", "Verdict", "measure", "measure_all", "read_theory"]

CHAPTERS = (
    "Memory and equilibria",
    "The bistable unit",
    "Parallel scans and cost",
    "Copy-first-input",
    "Permuted sequential MNIST",
    "Pathfinder",
)
"""Chapters of the report."""
CLAIMS: tuple[Claim, ...] = (*copy_first.CLAIMS, *mnist.CLAIMS, *pathfinder.CLAIMS)
"""Claims on trained models."""


def measure(records: Sequence[Record], recipe: Recipe) -> dict[Claim, Finding]:
    """The claims on trained models, measured on the results of a recipe."""
    own = [record for record in records if record.recipe == recipe]
    return {claim: claim.measure(own) for claim in CLAIMS}


def measure_all(
    records: Sequence[Record], results: Path | str, recipes: Sequence[Recipe] = ("paper", "best")
) -> dict[Recipe | None, dict[Claim, Finding]]:
    """The claims on trained models by recipe, and under None those on theory, as the folder ``results`` has them."""
    trained: dict[Recipe | None, dict[Claim, Finding]] = {recipe: measure(records, recipe) for recipe in recipes}
    return {None: read_theory(results)} | trained


def read_theory(results: Path | str) -> dict[Claim, Finding]:
    """The claims on theory, as ``theory.json`` has them; none without that file."""
    path = Path(results) / "theory.json"
    if not path.exists():
        return {}
    values = read_json(path)
    values.pop("machine")
    claims = {}
    for id, entry in values.items():
        finding = Finding(entry.pop("held"), entry.pop("measured"), entry.pop("note"))
        claims[Claim(id, **entry, measure=lambda records, finding=finding: finding, trained=False)] = finding
    return claims

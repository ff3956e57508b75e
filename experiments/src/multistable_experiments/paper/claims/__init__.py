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
from multistable_experiments.paper.store import Record

__all__ = ["CHAPTERS", "CLAIMS", "VERDICTS", "Claim", "Finding", "Verdict", "measure", "read_theory"]

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


def measure(records: Sequence[Record], results: Path | str) -> dict[Claim, Finding]:
    """All claims: those on theory as stored in the folder ``results``, then those on trained models."""
    return read_theory(results) | {claim: claim.measure(records) for claim in CLAIMS}


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

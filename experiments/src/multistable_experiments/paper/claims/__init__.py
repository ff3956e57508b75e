"""Every sentence of the paper that a measurement can confirm, with its measurement and its verdict.

Claims on the unit and its theory are computed on the spot, in seconds (``clock``, ``equilibria``, ``exact``, ``brc``,
``unit``, ``scan``); those on trained models are read from the results of ``multistable reproduce`` (``copy_first``,
``mnist``, ``pathfinder``).

Not among them: what the paper says of other people's work (Transformers, S4, Mamba and their benchmarks), what it only
conjectures ("increasing network depth would possibly make LRU learn", "discretisation makes the learning more
difficult", the section on future work), and definitions.
"""

from collections.abc import Callable, Sequence

from multistable_experiments.paper.claims import (
    brc,
    clock,
    copy_first,
    equilibria,
    exact,
    mnist,
    pathfinder,
    scan,
    unit,
)
from multistable_experiments.paper.claims.claim import Claim, Finding, Measured, Verdict
from multistable_experiments.paper.store import Record
from multistable_experiments.threads import one_thread

__all__ = ["CHAPTERS", "CLAIMS", "Claim", "Finding", "Measured", "Verdict", "measure"]

CHAPTERS: dict[str, list[Claim]] = {
    "Memory and equilibria": [*clock.CLAIMS, *equilibria.CLAIMS, *exact.CLAIMS, *brc.CLAIMS],
    "The bistable unit": unit.CLAIMS,
    "Parallel scans and cost": scan.CLAIMS,
    "Copy-first-input": copy_first.CLAIMS,
    "Permuted sequential MNIST": mnist.CLAIMS,
    "Pathfinder": pathfinder.CLAIMS,
}
"""Chapters of the report, with their claims."""
CLAIMS: tuple[Claim, ...] = tuple(claim for claims in CHAPTERS.values() for claim in claims)


def measure(records: Sequence[Record], tell: Callable[[Claim], None] = lambda claim: None) -> list[Measured]:
    """All claims, measured; ``tell`` is called before each."""
    found = []
    with one_thread():
        for claim in CLAIMS:
            tell(claim)
            found.append(claim.measure(records))
    return found

"""Results keep their identity: ``frozen.json`` holds what every stored result was at commit cab04ea.

A change of names, files or defaults must not change the identity of a run, a number in a stored result, or a verdict.
Later results and claims are not in the file and not checked here.
"""

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest

from multistable_experiments.paper import store
from multistable_experiments.paper.claims import CLAIMS, read_theory
from multistable_experiments.paper.experiments import plan

FROZEN = json.loads(Path(__file__).with_name("frozen.json").read_text())
RESULTS = Path(__file__).parents[2] / "results"
SCALES = {"paper": "full"}
"""Scales that had another name."""
CHANGED = {
    "longer-bmru-quiet": "two-sided, and not far above the error with the noise of the training",
    "longer-bmru-overwrites": "with every seed",
    "mnist-bmru-maintains": "undecided, because the LRU learned nothing",
    "mnist-most-when-shallow": "undecided, because the LRU learned nothing",
    "mnist-lru-needs-depth": "undecided, because the LRU learned nothing",
    "mnist-hybrid-above-lru": "undecided, because the LRU learned nothing",
}
"""Claims that are decided by another rule since."""


def digest(path: Path) -> str:
    """A digest of a result file's content, independent of its formatting."""
    values = json.loads(path.read_text())
    values.pop("checksum", None)  # added later
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def test_all_results_are_frozen():
    assert len(FROZEN["files"]) == 66
    assert len(FROZEN["claims"]) + len(FROZEN["theory"]) == 72


@pytest.mark.parametrize("name", FROZEN["files"])
def test_result_keeps_identity_and_numbers(name):
    record = store.read(RESULTS / "tuned" / name)
    assert [record.run.id, digest(RESULTS / "tuned" / name)] == FROZEN["files"][name]


@pytest.mark.parametrize("scale", FROZEN["plan"])
def test_planned_runs_keep_their_identity(scale):
    now = {f"{e.run.task.name}/{e.name}": e.run.id for e in plan(None, SCALES.get(scale, scale), (0, 1), ("tuned",))}
    assert {name: now.get(name) for name in FROZEN["plan"][scale]} == FROZEN["plan"][scale]


@cache
def frozen_records() -> list[store.Record]:
    return [store.read(RESULTS / "tuned" / name) for name in FROZEN["files"]]


@pytest.mark.parametrize("claim", FROZEN["claims"])
def test_trained_claim_keeps_numbers_and_verdict(claim):
    """Measured on the frozen results only, so that new seeds do not count."""
    records = frozen_records()
    [finding] = [each.measure(records) for each in CLAIMS if each.id == claim]
    words, *numbers = FROZEN["claims"][claim]
    assert [finding.measured, finding.evidence] == numbers
    assert (finding.words == words) == (claim not in CHANGED)


def test_theory_claims_keep_their_verdicts():
    verdicts = {claim.id: finding.words for claim, finding in read_theory(RESULTS).items()}
    assert {id: verdicts.get(id) for id in FROZEN["theory"]} == FROZEN["theory"]

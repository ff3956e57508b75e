"""Claims on Pathfinder: full and shortened grids, easy images, notes."""

from dataclasses import replace

import pytest

from multistable_experiments.paper.claims import CLAIMS
from multistable_experiments.paper.store import Record
from paper_records import records, with_failures

TRAINED = {claim.id: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def all_records() -> list[Record]:
    return records()


def test_shortened_runs_count_until_the_grid_is_complete(all_records):
    some = [r for r in all_records if r.configuration != "hard-3-blocks-1024"]
    finding = TRAINED["pathfinder-wider-is-better"].measure(some)
    assert finding.verdict == "provisional"
    assert finding.evidence.endswith("10 epochs of 100")
    assert TRAINED["pathfinder-one-layer"].measure(some).verdict == "held"  # the runs with one block are complete


def test_single_full_length_runs_are_noted_until_all_exist(all_records):
    some = [r for r in all_records if r.configuration != "hard-1-block-1024"]
    note = TRAINED["pathfinder-one-layer"].measure(some).note
    assert "on hard images width 256 at full length: 68.0 ± 0.1, with the weights best on validation 68.0 ± 0.1" in note
    assert "width 1024 at full length" not in note
    assert "at full length" not in TRAINED["pathfinder-one-layer"].measure(all_records).note
    last_only = [replace(r, metrics={"last": r.metrics["last"]}) for r in some]
    assert "width 256 at full length: 68.0 ± 0.1;" in TRAINED["pathfinder-one-layer"].measure(last_only).note


def test_the_verdict_on_easy_images_is_noted(all_records):
    claim = TRAINED["pathfinder-one-layer"]
    assert "; on easy images held: " in claim.measure(all_records).note
    guessing = [
        replace(r, metrics={which: values | {"test_accuracy": 0.5} for which, values in r.metrics.items()})
        if r.configuration.startswith("easy") else r
        for r in all_records
    ]  # fmt: skip
    finding = claim.measure(guessing)
    assert finding.verdict == "held"
    assert "; on easy images not held: 50.0 ± 0.0 on average" in finding.note
    assert "easy" not in claim.measure([r for r in all_records if r.configuration.startswith("hard")]).note


def test_generated_images_are_noted(all_records):
    noted = {id for id, claim in TRAINED.items() if "images of our own generator" in claim.measure(all_records).note}
    assert noted == {id for id in TRAINED if id.startswith("pathfinder")}


def test_a_failed_full_length_run_takes_precedence_over_shortened_ones(all_records):
    finding = TRAINED["pathfinder-one-layer"].measure(with_failures(all_records, "hard-1-block-256-seed2"))
    assert finding.verdict == "not held"
    assert finding.measured.endswith(" at the best width, but failed: hard-1-block-256-seed2")


def test_a_grid_is_complete_if_one_seed_covers_it(all_records):
    """If every seed lacks something, the shortened runs, which are complete, are used instead."""
    some = [
        r for r in all_records if r.name.replace("hard-1-block-", "") not in ("128-seed0", "256-seed1", "512-seed2")
    ]
    finding = TRAINED["pathfinder-one-layer"].measure(some)
    assert (finding.seeds, finding.evidence) == ((3, 4), "seeds 3, 4; 100 epochs")
    none = [r for r in some if r.name.replace("hard-1-block-", "") not in ("128-seed3", "256-seed4")]
    finding = TRAINED["pathfinder-one-layer"].measure(none)
    assert finding.evidence == "seeds 0, 1, 2, 3, 4; 10 epochs of 100"


NEARLY = {
    "pathfinder-one-layer": lambda blocks, width: 54.9,
    "pathfinder-width-over-depth": lambda blocks, width: 60 + 4 * (width == 1024) + 3.1 * (blocks == 3),
    "pathfinder-wider-is-better": lambda blocks, width: 60 + 0.9 * (width == 1024),
    "pathfinder-depth-does-not-help": lambda blocks, width: 60 + 1.1 * (blocks == 2) - 5 * (blocks == 3),
    "pathfinder-drop-with-layers": lambda blocks, width: 60 - 0.9 * (blocks == 3) - 5 * (blocks == 2),
}
"""Accuracies that miss a threshold by a tenth of a point."""


@pytest.mark.parametrize("id", NEARLY)
def test_a_threshold_is_missed_by_a_tenth_of_a_point(id):
    assert TRAINED[id].measure(records(figures=["pathfinder"], grid=NEARLY[id])).verdict == "not held"


def test_a_width_that_is_worse_counts_like_one_that_is_better():
    one_is_worse = records(figures=["pathfinder"], grid=lambda blocks, width: 60 - 3 * (width == 128))
    finding = TRAINED["pathfinder-width-over-depth"].measure(one_is_worse)
    assert (finding.verdict, finding.measured) == ("held", "widths span 3.0 points, depths 0.0")

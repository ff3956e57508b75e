"""Every verdict on trained models occurs: records confirm a claim, break it, or are too few."""

import math
from dataclasses import replace
from typing import Any

import pytest

from multistable_experiments.paper import store
from multistable_experiments.paper.claims import CLAIMS
from multistable_experiments.paper.store import Record
from paper_records import RESULTS, changed_scores, changed_stream, pathfinder_score, records, with_failures

TRAINED = {claim.id: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def all_records() -> list[Record]:
    return records()


BREAKS: dict[str, dict[str, Any]] = {
    "copy-100-both": changed_scores(lru_T100=0.2),
    "copy-300-bmru": changed_scores(bmru_T300=0.2),
    "copy-300-lru": changed_scores(lru_T300=0.4),
    "copy-300-lru-best": {"best": {"lru-T300": 0.0066}},
    "longer-lru-fails": changed_stream("lru", 100_000, 1.0, 0.4),
    "longer-lru-fails-quiet": changed_stream("lru", 100_000, 0.1, 0.4),
    "longer-bmru-resilient": changed_stream("bmru", 10_000, 1.0, 0.6),
    "longer-bmru-loud": changed_stream("bmru", 100_000, 1.0, 0.0015),
    "longer-bmru-quiet": changed_stream("bmru", 100_000, 0.1, 0.0011),
    "longer-bmru-overwrites": {"restored": 0.011},
    "mnist-lru-better": changed_scores(lru_3_blocks=95.1),
    "mnist-lru-combines": changed_scores(lru_3_blocks=96),
    "mnist-bmru-maintains": changed_scores(bmru_3_blocks_black=91),
    "mnist-most-when-shallow": changed_scores(lru_3_blocks_black=70),
    "mnist-lru-needs-depth": changed_scores(lru_3_blocks_black=81),
    "mnist-bmru-two-layers": changed_scores(bmru_2_blocks_black=90),
    "mnist-hybrid-equals-lru": changed_scores(hybrid_3_blocks=99),
    "mnist-hybrid-keeps": changed_scores(hybrid_2_blocks_black=95),
    "mnist-hybrid-above-bmru": changed_scores(hybrid_3_blocks_black=94),
    "mnist-hybrid-above-lru": changed_scores(lru_3_blocks_black=98),
    "mnist-positions-help-bmru": changed_scores(bmru_2_blocks_no_positions=90),
    "mnist-positions-impede-lru": changed_scores(lru_2_blocks_positions=97),
    "pathfinder-one-layer": {"grid": lambda blocks, width: 52.0},
    "pathfinder-width-over-depth": {"grid": lambda blocks, width: 90.0 - 10 * blocks},
    "pathfinder-wider-is-better": {"grid": lambda blocks, width: 80 - width / 100},
    "pathfinder-depth-does-not-help": {"grid": lambda blocks, width: pathfinder_score(1, width) + 2 * blocks},
    "pathfinder-drop-with-layers": {"grid": lambda blocks, width: pathfinder_score(1, width)},
}


def test_there_are_results_that_break_every_claim():
    assert set(BREAKS) == set(TRAINED)


@pytest.mark.parametrize("id", TRAINED)
def test_five_full_length_seeds_decide_a_claim(id, all_records):
    finding = TRAINED[id].measure(all_records)
    assert (finding.verdict, finding.words) == ("held", "held")
    assert finding.evidence == "seeds 0, 1, 2, 3, 4; 100 epochs"


FIGURES = {
    "Copy-first-input": ("copy-first", "generalisation"),
    "Permuted sequential MNIST": ("permuted-mnist",),
    "Pathfinder": ("pathfinder",),
}


def breaking_records(id: str, seeds: range = range(5)) -> list[Record]:
    """Records of the claim's figures that break the claim."""
    return records(seeds, FIGURES[TRAINED[id].chapter], **BREAKS[id])


@pytest.mark.parametrize("id", TRAINED)
def test_breaking_records_break_a_claim(id):
    finding = TRAINED[id].measure(breaking_records(id))
    assert (finding.verdict, finding.words) == ("not held", "not held"), finding


@pytest.mark.parametrize("id", TRAINED)
def test_four_seeds_are_always_provisional(id):
    finding = TRAINED[id].measure(records(range(4)))
    assert (finding.verdict, finding.words) == ("provisional", "provisional (held so far)")
    assert finding.evidence == "seeds 0, 1, 2, 3; 100 epochs"
    assert TRAINED[id].measure(breaking_records(id, range(4))).words == "provisional (not held so far)"


@pytest.mark.parametrize("id", TRAINED)
def test_fewer_epochs_are_provisional(id, all_records):
    short = [replace(record, run=replace(record.run, epochs=30)) for record in all_records]
    finding = TRAINED[id].measure(short)
    assert finding.verdict == "provisional"
    assert finding.evidence == "seeds 0, 1, 2, 3, 4; 30 epochs of 100"


def test_one_shorter_run_is_provisional(all_records):
    mixed = [replace(r, run=replace(r.run, epochs=30)) if r.run.seed == 2 else r for r in all_records]
    finding = TRAINED["copy-300-bmru"].measure(mixed)
    assert finding.verdict == "provisional"
    assert finding.evidence == "seeds 0, 1, 2, 3, 4; 30, 100 epochs of 100"


@pytest.mark.parametrize("id", TRAINED)
def test_nothing_is_measured_without_results(id):
    finding = TRAINED[id].measure([])
    assert finding.verdict == "not measured"
    assert finding.measured.startswith("missing: ")


def test_only_seeds_with_all_configurations_count(all_records):
    some = [r for r in all_records if not (r.configuration == "lru-T100" and r.run.seed in (1, 3))]
    finding = TRAINED["copy-100-both"].measure(some)
    assert finding.seeds == (0, 2, 4)
    assert finding.verdict == "provisional"


def test_mean_and_spread_over_seeds(all_records):
    assert TRAINED["copy-300-bmru"].measure(all_records).measured == "BMRU 0.003 ± 4.7e-06"
    assert TRAINED["copy-300-bmru"].measure(records([2])).measured == "BMRU 0.003"


@pytest.mark.parametrize("id", TRAINED)
def test_no_claim_holds_with_a_failed_run(id):
    finding = TRAINED[id].measure(with_failures(records(range(7)), "seed6"))
    assert (finding.verdict, finding.seeds) == ("not held", tuple(range(7)))
    assert ", but failed: " in finding.measured


def test_failed_runs_are_named():
    finding = TRAINED["copy-300-bmru"].measure(with_failures(records(range(7)), "bmru-T300-seed1"))
    assert finding.measured == "BMRU 0.003 ± 6.5e-06, but failed: bmru-T300-seed1"
    finding = TRAINED["copy-300-bmru"].measure(with_failures(records([0]), "bmru-T300-seed0"))
    assert finding.words == "provisional (not held so far)"
    assert finding.measured == "failed: bmru-T300-seed0"
    finding = TRAINED["copy-300-lru-best"].measure(with_failures(records(range(3)), "lru-T300-seed[12]"))
    assert "best epochs: 1; " in finding.note
    finding = TRAINED["copy-300-lru-best"].measure(with_failures(records([0]), "lru-T300-seed0"))
    assert "best epochs" not in finding.note


def test_a_failed_run_of_another_seed_does_not_count(all_records):
    [lonely] = (r for r in records([7]) if r.configuration == "bmru-T100")
    finding = TRAINED["copy-100-both"].measure([*all_records, *with_failures([lonely], "bmru")])
    assert (finding.verdict, finding.seeds) == ("held", (0, 1, 2, 3, 4))


def test_runs_without_best_weights(all_records):
    without = [replace(r, metrics={"last": r.metrics["last"]}) for r in all_records]
    finding = TRAINED["mnist-lru-better"].measure(without)
    assert finding.held
    assert "best on validation" not in finding.note
    assert TRAINED["copy-300-lru-best"].measure(without).verdict == "not measured"


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("id", TRAINED)
def test_non_finite_numbers_are_shown_and_confirm_nothing(id, value, all_records):
    """A run can have finite losses in training but not in its tests."""

    def with_value(record: Record) -> Record:
        metrics = {which: dict.fromkeys(found, value) | {"epoch": 1} for which, found in record.metrics.items()}
        groups = [{"least": 0, "most": 0, "sequences": 400, "mse": value}]
        tests = [test | {"mse": value, "overwrites": groups} for test in record.tests]
        return replace(record, metrics=metrics, tests=tests) if record.run.seed == 2 else record

    finding = TRAINED[id].measure([with_value(record) for record in all_records])
    assert "nan" in finding.measured or "inf" in finding.measured
    if math.isnan(value):
        assert finding.verdict == "not held"


def test_a_different_verdict_with_the_best_weights_is_noted():
    last_only = records(best={"lru-2-blocks": 92.0})
    finding = TRAINED["mnist-lru-better"].measure(last_only)
    assert finding.verdict == "held"
    assert "with the weights best on validation not held: -1.0" in finding.note


def test_tuned_units_are_noted(all_records):
    noted = {id for id, claim in TRAINED.items() if "timestep of its own" in claim.measure(all_records).note}
    assert noted == {id for id in TRAINED if id.startswith(("mnist", "pathfinder"))} - {
        "mnist-positions-help-bmru", "mnist-positions-impede-lru"
    }  # fmt: skip


def test_initial_thresholds_are_noted(all_records):
    noted = {id for id, claim in TRAINED.items() if "thresholds of 8" in claim.measure(all_records).note}
    assert noted == {
        "copy-100-both", "copy-300-bmru", "longer-bmru-resilient", "longer-bmru-loud", "longer-bmru-quiet",
        "longer-bmru-overwrites",
    }  # fmt: skip


def test_stored_results_can_be_measured():
    found = store.load(RESULTS)
    assert found
    assert store.outdated(found) == [], "README shows claims measured on all of them"
    for claim in TRAINED.values():
        claim.measure(found)

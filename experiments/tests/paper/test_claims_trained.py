"""Claims on trained models: each verdict comes out, from records that hold a claim, break it, or are too few."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from multistable.models import build_model
from multistable_experiments.cli.paper import claims as command
from multistable_experiments.paper import claims, store
from multistable_experiments.paper.claims import CLAIMS, table
from multistable_experiments.paper.experiments import plan
from multistable_experiments.paper.store import Record
from multistable_experiments.training.step import autocast
from paper_records import SCORES, STREAMS, pathfinder_score, records

TRAINED = {claim.id: claim for claim in CLAIMS if claim.trained}


def scores(**changes: float) -> dict[str, Any]:
    return {"scores": SCORES | {name.replace("_", "-"): value for name, value in changes.items()}}


def stream(cell: str, length: int, noise: float, error: float) -> dict[str, Any]:
    return {"streams": STREAMS | {(cell, length, noise): error}}


BREAKS: dict[str, dict[str, Any]] = {
    "copy-100-both": scores(lru_T100=0.2),
    "copy-300-bmru": scores(bmru_T300=0.2),
    "copy-300-lru": scores(lru_T300=0.4),
    "copy-300-lru-best": {"best": {"lru-T300": 0.0066}},
    "longer-lru-fails": stream("lru", 100_000, 1.0, 0.4),
    "longer-lru-fails-quiet": stream("lru", 100_000, 0.1, 0.4),
    "longer-bmru-resilient": stream("bmru", 10_000, 1.0, 0.6),
    "longer-bmru-loud": stream("bmru", 100_000, 1.0, 0.0015),
    "longer-bmru-quiet": stream("bmru", 100_000, 0.1, 0.0011),
    "longer-bmru-overwrites": {"restored": 0.011},
    "mnist-lru-better": scores(lru_3_blocks=95.1),
    "mnist-lru-combines": scores(lru_3_blocks=96),
    "mnist-bmru-maintains": scores(bmru_3_blocks_black=91),
    "mnist-most-when-shallow": scores(lru_3_blocks_black=70),
    "mnist-lru-needs-depth": scores(lru_3_blocks_black=81),
    "mnist-bmru-two-layers": scores(bmru_2_blocks_black=90),
    "mnist-hybrid-equals-lru": scores(hybrid_3_blocks=99),
    "mnist-hybrid-keeps": scores(hybrid_2_blocks_black=95),
    "mnist-hybrid-above-bmru": scores(hybrid_3_blocks_black=94),
    "mnist-hybrid-above-lru": scores(lru_3_blocks_black=98),
    "mnist-positions-help-bmru": scores(bmru_2_blocks_no_positions=90),
    "mnist-positions-impede-lru": scores(lru_2_blocks_positions=97),
    "pathfinder-one-layer": {"grid": lambda blocks, width: 52.0},
    "pathfinder-width-over-depth": {"grid": lambda blocks, width: 90.0 - 10 * blocks},
    "pathfinder-wider-is-better": {"grid": lambda blocks, width: 80 - width / 100},
    "pathfinder-depth-does-not-help": {"grid": lambda blocks, width: pathfinder_score(1, width) + 2 * blocks},
    "pathfinder-drop-with-layers": {"grid": lambda blocks, width: pathfinder_score(1, width)},
}


@pytest.fixture(scope="module")
def whole() -> list[Record]:
    return records()


def test_every_trained_claim_is_broken_below():
    assert set(BREAKS) == set(TRAINED)


@pytest.mark.parametrize("id", TRAINED)
def test_five_seeds_of_full_length_hold_a_claim(id, whole):
    measured = TRAINED[id].measure(whole)
    assert (measured.verdict, measured.words) == ("held", "held")
    assert measured.finding.evidence == "seeds 0, 1, 2, 3, 4; 100 epochs"


@pytest.mark.parametrize("id", TRAINED)
def test_other_results_break_it(id):
    measured = TRAINED[id].measure(records(**BREAKS[id]))
    assert (measured.verdict, measured.words) == ("not held", "not held"), measured.finding


@pytest.mark.parametrize("id", TRAINED)
def test_four_seeds_are_provisional_either_way(id):
    measured = TRAINED[id].measure(records(range(4)))
    assert (measured.verdict, measured.words) == ("provisional", "provisional (held so far)")
    assert measured.finding.evidence == "seeds 0, 1, 2, 3; 100 epochs"
    assert TRAINED[id].measure(records(range(4), **BREAKS[id])).words == "provisional (not held so far)"


@pytest.mark.parametrize("id", TRAINED)
def test_fewer_epochs_are_provisional(id, whole):
    short = [replace(record, run=replace(record.run, epochs=30)) for record in whole]
    measured = TRAINED[id].measure(short)
    assert measured.verdict == "provisional"
    assert measured.finding.evidence == "seeds 0, 1, 2, 3, 4; 30 epochs of 100"


@pytest.mark.parametrize("id", TRAINED)
def test_nothing_is_measured_without_results(id):
    measured = TRAINED[id].measure([])
    assert measured.verdict == "not measured"
    assert measured.finding.measured.startswith("missing: ")


def test_only_seeds_that_all_configurations_have_count(whole):
    some = [r for r in whole if not (r.configuration == "lru-T100" and r.run.seed in (1, 3))]
    measured = TRAINED["copy-100-both"].measure(some)
    assert measured.finding.seeds == (0, 2, 4)
    assert measured.verdict == "provisional"


def test_mean_and_spread_are_those_of_the_seeds(whole):
    assert TRAINED["copy-300-bmru"].measure(whole).finding.measured == "BMRU 0.003 ± 4.7e-06"
    assert TRAINED["copy-300-bmru"].measure(records([2])).finding.measured == "BMRU 0.003"


@pytest.mark.parametrize(
    ("id", "name", "other"), [("copy-300-lru", "lru-T300", 2e-4), ("copy-300-bmru", "bmru-T300", 0.3)]
)
def test_learning_is_a_matter_of_every_seed(id, name, other, whole):
    """The means of four runs as usual and of one that is not would still say that the claim holds."""
    one_differs = [r for r in whole if r.name != f"{name}-seed3"] + records([3], scores=SCORES | {name: other})
    measured = TRAINED[id].measure(one_differs)
    assert (measured.verdict, measured.finding.seeds) == ("not held", (0, 1, 2, 3, 4))


def with_failures(found: list[Record], names: str) -> list[Record]:
    """The same, but that the runs of these names failed."""
    return [replace(r, metrics={}, tests=[], failure="NaN") if re.search(names, r.name) else r for r in found]


@pytest.mark.parametrize("id", TRAINED)
def test_with_a_failed_run_no_claim_is_held_however_many_others_there_are(id):
    measured = TRAINED[id].measure(with_failures(records(range(7)), "seed6"))
    assert (measured.verdict, measured.finding.seeds) == ("not held", tuple(range(7)))
    assert ", but failed: " in measured.finding.measured


def test_a_failed_run_is_named_beside_the_numbers_of_the_others():
    measured = TRAINED["copy-300-bmru"].measure(with_failures(records(range(7)), "bmru-T300-seed1"))
    assert measured.finding.measured == "BMRU 0.003 ± 6.5e-06, but failed: bmru-T300-seed1"
    measured = TRAINED["copy-300-bmru"].measure(with_failures(records([0]), "bmru-T300-seed0"))
    assert measured.words == "provisional (not held so far)"
    assert measured.finding.measured == "failed: bmru-T300-seed0"
    measured = TRAINED["copy-300-lru-best"].measure(with_failures(records(range(3)), "lru-T300-seed[12]"))
    assert "best epochs: 1; " in measured.finding.note
    measured = TRAINED["copy-300-lru-best"].measure(with_failures(records([0]), "lru-T300-seed0"))
    assert "best epochs" not in measured.finding.note


def test_a_failed_run_of_a_seed_that_others_do_not_have_does_not_count(whole):
    [lonely] = (r for r in records([7]) if r.configuration == "bmru-T100")
    measured = TRAINED["copy-100-both"].measure([*whole, *with_failures([lonely], "bmru")])
    assert (measured.verdict, measured.finding.seeds) == ("held", (0, 1, 2, 3, 4))


def test_weights_that_no_validation_chose_say_nothing(whole):
    without = [replace(r, metrics={"last": r.metrics["last"]}) for r in whole]
    finding = TRAINED["mnist-lru-better"].measure(without).finding
    assert finding.held
    assert "best on validation" not in finding.note
    assert TRAINED["copy-300-lru-best"].measure(without).verdict == "not measured"


@pytest.mark.parametrize(("id", "noise"), [("longer-lru-fails", 1.0), ("longer-lru-fails-quiet", 0.1)])
def test_that_an_lru_does_not_generalise_is_a_matter_of_every_seed(id, noise, whole):
    [other] = (r for r in records([3], **stream("lru", 100_000, noise, 0.3)) if r.configuration == "lru-T100")
    measured = TRAINED[id].measure([other if r.name == other.name else r for r in whole])
    assert measured.verdict == "not held"
    assert "with every seed" in measured.claim.how


def test_counts_are_of_the_runs_that_have_them(whole):
    """A test of an earlier version at one length must not be taken for one that found nothing."""

    def older(record: Record) -> Record:
        tests = [
            {key: value for key, value in test.items() if test["length"] > 100 or key not in ("stored", "overwritten")}
            for test in record.tests
        ]
        return replace(record, tests=tests)

    some = [older(r) if r.run.seed > 1 else r for r in whole]
    assert "of 400 stored values 0.1 are" in TRAINED["longer-bmru-overwrites"].measure(some).finding.note
    note = TRAINED["longer-bmru-overwrites"].measure([older(r) for r in whole]).finding.note
    assert "stored values" not in note


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("id", TRAINED)
def test_a_number_that_is_not_finite_is_shown_and_holds_nothing(id, value, whole):
    """A run can end with finite losses in training and others in its tests."""

    def spoiled(record: Record) -> Record:
        metrics = {which: dict.fromkeys(found, value) | {"epoch": 1} for which, found in record.metrics.items()}
        groups = [{"least": 0, "most": 0, "sequences": 400, "mse": value}]
        tests = [test | {"mse": value, "overwrites": groups} for test in record.tests]
        return replace(record, metrics=metrics, tests=tests) if record.run.seed == 2 else record

    measured = TRAINED[id].measure([spoiled(record) for record in whole])
    assert "nan" in measured.finding.measured or "inf" in measured.finding.measured
    if math.isnan(value):
        assert measured.verdict == "not held"


def test_what_the_best_epoch_says_is_added_where_it_is_something_else():
    last_only = records(best={"lru-2-blocks": 92.0})
    measured = TRAINED["mnist-lru-better"].measure(last_only)
    assert measured.verdict == "held"
    assert "with the weights best on validation not held: -1.0" in measured.finding.note


def test_lru_at_300_says_what_it_depends_on(whole):
    for id in ("copy-300-lru", "copy-300-lru-best"):
        assert "the last epoch has 2e-05" in TRAINED[id].measure(whole).finding.note
    assert "best epochs: 1, 1, 1, 1, 1" in TRAINED["copy-300-lru-best"].measure(whole).finding.note


def test_quiet_noise_has_two_readings():
    spoiled = records(streams=STREAMS | {("bmru", 100_000, 0.1**0.5): 0.5})
    measured = TRAINED["longer-bmru-quiet"].measure(spoiled)
    assert measured.verdict == "held"
    assert "if N(0, 0.1) gives the variance, not held" in measured.finding.note


def test_what_is_put_back_is_compared_with_what_was_lost(whole):
    finding = TRAINED["longer-bmru-overwrites"].measure(whole).finding
    assert finding.measured == (
        "0.001 ± 0 at T = 100, 0.1 ± 0 at T = 100,000, 0.002 ± 0 with them put back: 99% of the loss, "
        "99% to 99% by seed"
    )
    assert "of 400 stored values 0.1 are overwritten at T = 100, 1e+02 at T = 100,000" in finding.note


def test_a_bmru_that_loses_nothing_loses_by_overwrites_only():
    measured = TRAINED["longer-bmru-overwrites"].measure(records(**stream("bmru", 100_000, 1.0, 0.001)))
    assert measured.verdict == "held"
    assert measured.finding.measured.endswith("nothing is lost")


def test_tests_that_put_nothing_back_do_not_count():
    measured = TRAINED["longer-bmru-overwrites"].measure(records(restored=None))
    assert (measured.verdict, measured.finding.measured) == ("not measured", "missing: restored")


def test_lru_at_300_says_with_which_seeds_it_learns(whole):
    spoiled = [
        replace(r, metrics={which: values | {"test_mse": 0.001} for which, values in r.metrics.items()})
        if r.configuration == "lru-T300" and r.run.seed in (1, 3) else r
        for r in whole
    ]  # fmt: skip
    for id in ("copy-300-lru", "copy-300-lru-best"):
        assert "it learns with" not in TRAINED[id].measure(whole).finding.note
        assert "it learns with seeds 1, 3" in TRAINED[id].measure(spoiled).finding.note


def test_pathfinder_falls_back_on_shortened_runs_until_the_grid_is_whole(whole):
    some = [r for r in whole if r.configuration != "hard-3-blocks-1024"]
    measured = TRAINED["pathfinder-wider-is-better"].measure(some)
    assert measured.verdict == "provisional"
    assert measured.finding.evidence.endswith("10 epochs of 100")
    assert TRAINED["pathfinder-one-layer"].measure(some).verdict == "held"  # one block is whole


def test_single_pathfinder_runs_of_full_length_are_said_until_all_are_there(whole):
    some = [r for r in whole if r.configuration != "hard-1-block-1024"]
    note = TRAINED["pathfinder-one-layer"].measure(some).finding.note
    assert "on hard images width 256 at full length: 68.0 ± 0.1, with the weights best on validation 68.0 ± 0.1" in note
    assert "width 1024 at full length" not in note
    assert "at full length" not in TRAINED["pathfinder-one-layer"].measure(whole).finding.note
    last_only = [replace(r, metrics={"last": r.metrics["last"]}) for r in some]
    assert "width 256 at full length: 68.0 ± 0.1;" in TRAINED["pathfinder-one-layer"].measure(last_only).finding.note


def test_the_outcome_on_easy_images_is_said_beside_that_on_hard_ones(whole):
    claim = TRAINED["pathfinder-one-layer"]
    assert "; on easy images held: " in claim.measure(whole).finding.note
    guessing = [
        replace(r, metrics={which: values | {"test_accuracy": 0.5} for which, values in r.metrics.items()})
        if r.configuration.startswith("easy") else r
        for r in whole
    ]  # fmt: skip
    measured = claim.measure(guessing)
    assert measured.verdict == "held"
    assert "; on easy images not held: 50.0 ± 0.0 on average" in measured.finding.note
    assert "easy" not in claim.measure([r for r in whole if r.configuration.startswith("hard")]).finding.note


def test_that_units_were_tuned_is_said_where_it_matters(whole):
    said = {id for id, claim in TRAINED.items() if "timestep of its own" in claim.measure(whole).finding.note}
    assert said == {id for id in TRAINED if id.startswith(("mnist", "pathfinder"))} - {
        "mnist-positions-help-bmru", "mnist-positions-impede-lru"
    }  # fmt: skip


def test_that_images_are_our_own_is_said_where_it_matters(whole):
    said = {id for id, claim in TRAINED.items() if "images of our own generator" in claim.measure(whole).finding.note}
    assert said == {id for id in TRAINED if id.startswith("pathfinder")}


def test_that_units_start_by_holding_is_said_where_it_matters(whole):
    said = {id for id, claim in TRAINED.items() if "thresholds of 8" in claim.measure(whole).finding.note}
    assert said == {
        "copy-100-both", "copy-300-bmru", "longer-bmru-resilient", "longer-bmru-loud", "longer-bmru-quiet",
        "longer-bmru-overwrites",
    }  # fmt: skip


def test_the_precision_is_said_where_a_fading_state_depends_on_it(whole):
    said = {id for id, claim in TRAINED.items() if "in bfloat16" in claim.measure(whole).finding.note}
    assert said == {
        "mnist-bmru-maintains", "mnist-most-when-shallow", "mnist-lru-needs-depth", "mnist-hybrid-above-lru",
    }  # fmt: skip
    wide = [replace(record, run=replace(record.run, precision="float32")) for record in whole]
    assert all("bfloat16" not in TRAINED[id].measure(wide).finding.note for id in said)


def test_behind_black_pixels_an_lru_starts_below_rounding():
    """What that note says: how far outputs are moved by the image, and by the precision."""
    [run] = [e.run for e in plan(["permuted-mnist"], "paper") if e.configuration == "lru-2-blocks-black"]
    assert run.precision == "bfloat16"
    torch.manual_seed(0)
    model = build_model(run.model)
    images = torch.randint(256, (4, 784), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    x, outputs = run.task.inputs(images), {}
    with torch.no_grad():
        for precision in ("float32", "bfloat16"):
            with autocast(torch.device("cpu"), precision):
                outputs[precision] = model(x)[0].double()
        exact = model.double()(x.double())[0]
    differing = {name: (y - y.mean(0)) - (exact - exact.mean(0)) for name, y in outputs.items()}
    ratio = {name: float(y.std() / (exact - exact.mean(0)).std()) for name, y in differing.items()}
    assert ratio["bfloat16"] > 1000
    assert 0.1 < ratio["float32"] < 10


def test_a_failed_run_of_full_length_is_not_passed_over_for_shortened_ones(whole):
    measured = TRAINED["pathfinder-one-layer"].measure(with_failures(whole, "hard-1-block-256-seed2"))
    assert measured.verdict == "not held"
    assert measured.finding.measured.endswith(" at the best width, but failed: hard-1-block-256-seed2")


def test_a_grid_of_full_length_is_whole_if_it_is_so_with_one_seed(whole):
    """Seed by seed something else is missing: then the shortened runs, which are whole, say more."""
    some = [r for r in whole if r.name.replace("hard-1-block-", "") not in ("128-seed0", "256-seed1", "512-seed2")]
    finding = TRAINED["pathfinder-one-layer"].measure(some).finding
    assert (finding.seeds, finding.evidence) == ((3, 4), "seeds 3, 4; 100 epochs")
    none = [r for r in some if r.name.replace("hard-1-block-", "") not in ("128-seed3", "256-seed4")]
    finding = TRAINED["pathfinder-one-layer"].measure(none).finding
    assert finding.evidence == "seeds 0, 1, 2, 3, 4; 10 epochs of 100"


def test_results_of_this_repository_can_be_measured():
    found = store.load(Path(__file__).parents[2] / "results")
    assert found
    assert store.outdated(found) == [], "README shows claims measured on all of them"
    for claim in TRAINED.values():
        claim.measure(found)


@pytest.fixture
def trained_only(monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", tuple(TRAINED.values()))


def save(folder: Path, found: list[Record]) -> Path:
    for record in found:
        store.write(folder, record)
    return folder


@pytest.mark.usefixtures("trained_only")
def test_strict_exits_with_1_on_a_broken_claim(tmp_path, capsys):
    folder = save(tmp_path, records(figures=["copy-first"], **BREAKS["copy-300-bmru"]))
    with pytest.raises(typer.Exit) as leave:
        command(folder, "paper", strict=True)
    assert leave.value.exit_code == 1
    command(folder, "paper", strict=False)
    printed = capsys.readouterr().out
    assert "27 claims: 3 held, 1 not held, 23 not measured" in printed


@pytest.mark.usefixtures("trained_only")
@pytest.mark.parametrize("seeds", [range(5), range(1)])
def test_strict_passes_what_is_held_provisional_or_missing(tmp_path, seeds, capsys):
    command(save(tmp_path, records(seeds, ["copy-first"])), "paper", strict=True)
    assert ("4 held" if len(seeds) == 5 else "4 provisional") in capsys.readouterr().out


@pytest.mark.usefixtures("trained_only")
def test_a_damaged_result_is_one_sentence(tmp_path, capsys):
    (tmp_path / "copy-first").mkdir()
    (tmp_path / "copy-first" / "bmru-T100-seed0.json").write_text("{}")
    with pytest.raises(typer.Exit) as leave:
        command(tmp_path, "paper", strict=False)
    assert leave.value.exit_code == 1
    assert "bmru-T100-seed0.json is no result" in capsys.readouterr().err


def test_markdown_has_a_row_per_claim(whole):
    measured = [claim.measure(whole) for claim in TRAINED.values()]
    text = table.markdown(measured)
    assert text.count(" | held |") == len(TRAINED)
    assert "On trained models: 27 held." in text

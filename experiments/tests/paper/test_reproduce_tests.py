"""``multistable reproduce``: tests of trained models are repeated if they lack something, and otherwise kept."""

import shutil
from dataclasses import replace

import pytest

from multistable_experiments.files import read_json, write_json
from multistable_experiments.paper import store
from multistable_experiments.training.checkpoint import alone_in
from multistable_experiments.training.results import folder_of
from reproduced import records, without_times


def test_new_tests_use_the_stored_model(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    before = records(reproduce_smoke)["bmru-T10-seed0"]
    reproduce_smoke(["generalisation"])
    after = records(reproduce_smoke)["bmru-T10-seed0"]
    assert (after.seconds, after.metrics) == (before.seconds, before.metrics), "not trained again"
    assert len(after.tests) == 6
    assert before.tests == []


def test_tests_are_not_measured_twice(reproduce_smoke):
    reproduce_smoke(["generalisation"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    store.path_of(reproduce_smoke.path / "here" / "results", "smoke", "tuned", "copy-first", record.name).unlink()
    path = folder_of(record.run, reproduce_smoke.path / "here" / "runs") / "tests.json"
    marked = [test | {"marked": True} for test in read_json(path)["tests"]]
    write_json(path, {"tests": marked})
    reproduce_smoke(["generalisation"])
    assert records(reproduce_smoke)["bmru-T10-seed0"].tests == marked


def without(name, tests):
    return [{key: value for key, value in test.items() if key != name} for test in tests]


def remove_measurement(reproduce_smoke, record, name, also_in_runs=True):
    """Make a result look as if an earlier version had not measured this in its tests."""
    old = replace(record, tests=without(name, record.tests))
    store.write(reproduce_smoke.path / "here" / "results", old)
    if also_in_runs:
        path = folder_of(record.run, reproduce_smoke.path / "here" / "runs") / "tests.json"
        write_json(path, {"tests": old.tests})


@pytest.mark.parametrize("name", ["restored", "stored", "overwritten", "intact", "mse"])
def test_tests_without_a_current_measurement_are_repeated(reproduce_smoke, name):
    reproduce_smoke(["generalisation"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    remove_measurement(reproduce_smoke, record, name)
    assert reproduce_smoke(["generalisation"]).exit_code == 0
    assert reproduce_smoke.lines[0] == "2 experiments at scale smoke: 1 are there, 1 to compute"
    assert reproduce_smoke.lines[2] == "  6 of its 6 tests are missing or lack what is measured today"
    again = records(reproduce_smoke)["bmru-T10-seed0"]
    assert without_times(again) == without_times(record)
    assert again.seconds == record.seconds, "not trained again"
    reproduce_smoke(["generalisation"])
    assert reproduce_smoke.lines[0] == "2 experiments at scale smoke: 2 are there, 0 to compute"


def test_an_lru_has_no_values_to_overwrite(reproduce_smoke):
    reproduce_smoke(["generalisation"])
    assert "restored" not in records(reproduce_smoke)["lru-T10-seed0"].tests[0]


def test_complete_tests_in_the_folder_of_a_run_are_reused(reproduce_smoke):
    reproduce_smoke(["generalisation"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    remove_measurement(reproduce_smoke, record, "restored", also_in_runs=False)
    reproduce_smoke(["generalisation"])
    assert records(reproduce_smoke)["bmru-T10-seed0"].tests == record.tests, "with their seconds: not measured again"


def test_a_missing_model_is_trained_again_and_announced(reproduce_smoke):
    reproduce_smoke(["generalisation"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    remove_measurement(reproduce_smoke, record, "restored")
    folder = folder_of(record.run, reproduce_smoke.path / "here" / "runs")
    shutil.rmtree(folder)
    assert reproduce_smoke(["generalisation"]).exit_code == 0
    assert reproduce_smoke.lines[2].endswith(f"; {folder} has no trained model, so it is trained again")
    assert without_times(records(reproduce_smoke)["bmru-T10-seed0"]) == without_times(record)


def test_tests_hold_the_lock_of_their_run(reproduce_smoke):
    """Otherwise two processes would overwrite each other's tests."""
    reproduce_smoke(["copy-first"])
    folder = folder_of(records(reproduce_smoke)["bmru-T10-seed0"].run, reproduce_smoke.path / "here" / "runs")
    with alone_in(folder):
        summary = reproduce_smoke(["generalisation"])
    assert f"  {folder} is in use: another process computes this run" in reproduce_smoke.lines
    assert summary.skipped == {"bmru-T10-seed0": "another process computes it"}
    assert not (folder / "tests.json").exists()
    assert (summary.done, summary.exit_code) == (1, 1)
    assert reproduce_smoke(["generalisation"]).exit_code == 0

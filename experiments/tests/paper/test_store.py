"""Stored results: round trip, small files, and errors for damage."""

import json
import os
from dataclasses import replace

import pytest

from multistable_experiments.files import read_json, write_json
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import Experiment, TestAt, plan
from training_runs import copy_first_run

RUN = copy_first_run()
TESTS = [
    {"length": 100, "noise": 0.1, "samples": 20, "mse": 0.5}
    | {"stored": 9.5, "overwritten": 1.5, "intact": 3, "restored": 0.4}
]


def result(epochs=100, best=64):
    """The parts of a result of ``train_run`` that matter here."""
    history = [
        {"epoch": n, "train_loss": 1 / n, "train_mse": 1 / n, "valid_loss": 2 / n, "valid_mse": 2 / n, "rate": 1e-3,
         "seconds": n / 3, "timesteps_per_second": 1000 + n}
        for n in range(1, epochs + 1)
    ]  # fmt: skip
    metrics = {which: {"epoch": n, "test_mse": 1.23456789e-3} for which, n in (("last", epochs), ("best", best))}
    machine = {"gpu": "a GPU", "processor": "a processor", "commit": "0123456789ab", "dirty": None}
    return {"parameters": 7, "metrics": metrics, "history": history, "seconds": 33.3, "machine": machine, "options": {}}


def record(**changes):
    return replace(store.summarise(Experiment("bmru-T8", RUN), "full", result(), TESTS), **changes)


@pytest.mark.parametrize("scale", ["full", "small"])
def test_records_round_trip(tmp_path, scale):
    kept = record(scale=scale)
    path = store.write(tmp_path, kept)
    folder = tmp_path if scale == "full" else tmp_path / "small"
    assert path == folder / "tuned" / "copy-first" / "bmru-T8-seed0.json"
    assert store.read(path) == kept
    assert store.load(tmp_path, scale) == [kept]
    assert store.load(tmp_path, "smoke") == []
    assert json.loads(path.read_text())["id"] == RUN.id


def test_files_are_small_and_metrics_exact(tmp_path):
    path = store.write(tmp_path, record())
    assert path.stat().st_size < 4_000
    assert store.read(path).metrics["best"]["test_mse"] == 1.23456789e-3


def test_histories_are_thinned_but_keep_the_best_and_the_last_epoch():
    history = record().history
    assert list(history) == ["epoch", "train_loss", "valid_loss"], "here the metric is the loss"
    assert {1, 64, 100} <= set(history["epoch"])
    assert history["epoch"] == sorted(set(history["epoch"]))
    assert len(history["epoch"]) <= 52
    at = history["epoch"].index(64)
    assert (history["train_loss"][at], history["valid_loss"][at]) == (0.01562, 0.03125)
    assert store.summarise(Experiment("a", RUN), "full", result(50, 7), []).history["epoch"] == list(range(1, 51))


@pytest.mark.parametrize(("epochs", "kept"), [(10, 10), (50, 50), (51, 26), (99, 50), (150, 51)])
def test_at_most_fifty_epochs_and_the_last_are_kept(epochs, kept):
    history = store.summarise(Experiment("a", RUN), "full", result(epochs, best=1), []).history
    assert len(history["epoch"]) == kept


def test_accuracies_are_in_percent_and_errors_are_not():
    mnist, *_ = plan(["permuted-mnist"], "full", [0], ("tuned",))
    half = record(run=mnist.run, metrics={"last": {"epoch": 1, "test_accuracy": 0.5}})
    assert (half.score("last"), half.score("best")) == (50.0, None)
    assert record().score("best") == 1.23456789e-3


def test_a_metric_that_is_not_the_loss_is_kept():
    values = result()
    for epoch in values["history"]:
        epoch["valid_mse"] = 0.25
    history = store.summarise(Experiment("a", RUN), "full", values, []).history
    assert set(history["valid_mse"]) == {0.25}


def test_one_slow_epoch_does_not_change_the_speed():
    values = result()
    values["history"][0]["timesteps_per_second"] = 1
    assert store.summarise(Experiment("a", RUN), "full", values, []).timesteps_per_second == 1050.5


def test_a_record_knows_what_is_missing():
    wanted = Experiment("bmru-T8", RUN, (TestAt(100, 0.1, 20),))
    assert record().has(wanted)
    assert not record(tests=[]).has(wanted)
    assert not record(tests=[TESTS[0] | {"samples": 10}]).has(wanted)
    assert record(tests=[], failure="NaN").has(wanted), "a failed run is not tried again"
    assert not record(metrics={}).has(wanted)
    for name in ("mse", "stored", "overwritten", "intact", "restored"):
        older = {key: value for key, value in TESTS[0].items() if key != name}
        assert not record(tests=[older]).has(wanted), name
    assert not record().has(Experiment("bmru-T8", replace(RUN, seed=1)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:100], "is truncated or corrupt"),
        (lambda text: "{}", "is truncated or corrupt: KeyError"),
        (lambda text: "[]", "is truncated or corrupt: "),
        (lambda text: "[" * 100_000, "is truncated or corrupt: RecursionError"),
        (lambda text: text.replace('"seconds": 33.3,', ""), "is corrupt or was edited"),
        (lambda text: text.replace('"seconds": 33.3', '"seconds": 33.4'), "is corrupt or was edited"),
        (lambda text: text.replace('"d_state": 8', '"d_state": 9'), "is corrupt or was edited"),
    ],
)
def test_damage_raises(tmp_path, spoil, message):
    path = store.write(tmp_path, record())
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ValueError, match=f"bmru-T8-seed0.json {message}.*; remove it, and `multistable reproduce`"):
        store.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda values: values | {"id": "0123456789ab"},
            "is from a version with other settings: its id is 0123456789ab",
        ),
        (lambda values: values | {"colour": "blue"}, "is not a result: .*colour"),
        (
            lambda values: {name: value for name, value in values.items() if name != "seconds"},
            "is not a result: .*seconds",
        ),
        (lambda values: values | {"run": values["run"] | {"speed": 1}}, "is not a result: .*speed"),
    ],
)
def test_results_of_another_version_raise(tmp_path, change, message):
    """The file is intact, but does not hold a current record."""
    path = store.write(tmp_path, record())
    write_json(path, change(read_json(path)))
    with pytest.raises(ValueError, match=f"bmru-T8-seed0.json {message}.*; remove it, and `multistable reproduce`"):
        store.load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_results_raise_and_are_not_missing(tmp_path):
    path = store.write(tmp_path, record())
    path.parent.chmod(0)
    with pytest.raises(PermissionError, match="copy-first"):
        store.load(tmp_path)
    path.parent.chmod(0o700)


def test_a_second_file_of_an_experiment_raises(tmp_path):
    path = store.write(tmp_path, record())
    copy = path.with_name("bmru-T8-seed0 (copy).json")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"\(copy\).json holds the result of .*bmru-T8-seed0.json"):
        store.load(tmp_path)


def test_a_result_in_the_folder_of_another_scale_raises(tmp_path):
    path = store.write(tmp_path, record(scale="small"))
    (tmp_path / "tuned" / "copy-first").mkdir(parents=True)
    path.rename(tmp_path / "tuned" / "copy-first" / path.name)
    with pytest.raises(ValueError, match=r"holds the result of .*small"):
        store.load(tmp_path)


def test_results_of_other_settings_are_outdated():
    now, *_ = plan(["copy-first"], "full", [7], ("tuned",))
    current = record(configuration=now.configuration, run=now.run)
    old = replace(current, run=replace(now.run, batch_size=now.run.batch_size // 2))
    unknown = record(configuration="of-somebody-else")
    assert store.outdated([current, unknown]) == []
    assert store.outdated([current, old, unknown]) == [old]
    assert store.outdated([current], "small") == [current], "each scale has its own settings"


HOSTILE = {
    "metrics that are no numbers": {"metrics": {"last": {"epoch": 1, "test_mse": "<b>"}}},
    "metrics without the metric": {"metrics": {"last": {"epoch": 1}}},
    "a history of words": {"history": {"epoch": ["x"]}},
    "a machine that is a list": {"machine": []},
    "a commit that is a number": {"machine": {"gpu": None, "processor": "x", "commit": 3, "dirty": None}},
    "tests without a length": {"tests": [{"noise": 1}]},
    "seconds that are true": {"seconds": True},
    "a failure that is a list": {"failure": []},
    "an unknown field": {"other": 1},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_results_of_strangers_with_other_types_are_refused(tmp_path, kind):
    path = store.write(tmp_path, record())
    values = read_json(path)
    write_json(path, values | HOSTILE[kind])  # with a right checksum
    with pytest.raises(ValueError, match=r"bmru-T8-seed0\.json is not a result: "):
        store.read(path)


def test_a_run_that_failed_at_once_says_nothing_about_the_speed():
    experiment = Experiment("bmru-T8", RUN)
    failed = store.summarise(experiment, "full", result(epochs=0) | {"metrics": {}}, [], "NaN")
    assert failed.timesteps_per_second == 0
    assert store.estimate_seconds(experiment, [failed]) == store.estimate_seconds(experiment, [])
    assert store.estimate_seconds(experiment, [failed, record()]) == store.estimate_seconds(experiment, [record()])

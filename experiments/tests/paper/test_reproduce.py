"""``multistable reproduce``: everything at scale smoke, budgets, resuming, missing data, failures."""

import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import typer
from typer.testing import CliRunner

from multistable_experiments.cli import paper as command
from multistable_experiments.files import read_json, write_json
from multistable_experiments.paper import compute as module
from multistable_experiments.paper import experiments, store
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.paper.reproduce import Clock, parse_duration, reproduce
from multistable_experiments.tasks import mnist
from multistable_experiments.training.checkpoint import alone_in
from multistable_experiments.training.loop import OutOfTimeError, Training, train_run
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.run import Schedule
from small_data import forget_pathfinder, write_mnist, write_pathfinder
from sources import environment
from training_runs import QUIET, copy_first_run, numbers

COPY = ["copy-first", "generalisation"]


@pytest.fixture
def reproduce_smoke(tmp_path, monkeypatch):
    """``reproduce`` at scale smoke with an empty data folder, no downloads, and its own runs and results."""
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mnist, "MIRRORS", ((tmp_path / "nowhere").as_uri() + "/",))
    forget_pathfinder()
    lines: list[str] = []

    def call(figures=None, place="here", **words):
        lines.clear()
        words = {"scale": "smoke", "recipes": ("tuned",), "options": QUIET, "say": lines.append} | words
        return reproduce(figures, out=tmp_path / place / "runs", results=tmp_path / place / "results", **words)

    call.lines, call.path = lines, tmp_path
    return call


def records(reproduce_smoke, place="here"):
    return {record.name: record for record in store.load(reproduce_smoke.path / place / "results", "smoke")}


def without_times(record):
    """The content of a record except its times."""
    tests = [{key: value for key, value in test.items() if key != "seconds"} for test in record.tests]
    return record.metrics, record.history, tests, record.run


@pytest.fixture
def few_images(monkeypatch):
    """Plan only every fourth experiment on images: 6 of 24 on Pathfinder, 4 of 15 on MNIST."""
    for figure in ("permuted-mnist", "pathfinder"):
        all_of = experiments.EXPERIMENTS[figure]
        monkeypatch.setitem(
            experiments.EXPERIMENTS, figure, lambda scale, seed, recipe, all_of=all_of: all_of(scale, seed, recipe)[::4]
        )


@pytest.mark.usefixtures("few_images")
def test_all_figures_end_to_end(reproduce_smoke, monkeypatch):
    monkeypatch.setattr(mnist, "FILES", write_mnist(reproduce_smoke.path / "data"))
    for level in ("hard", "easy"):
        write_pathfinder(level, 30)
    summary = reproduce_smoke()
    assert (summary.planned, summary.done, summary.exit_code) == (16, 16, 0), summary
    assert records(reproduce_smoke).keys() == {experiment.name for experiment in plan(scale="smoke", recipes=["tuned"])}
    for record in records(reproduce_smoke).values():
        assert record.metrics["last"]["epoch"] == record.run.epochs
        assert record.machine["device"] == "cpu"
        path = store.path_of(
            reproduce_smoke.path / "here" / "results", "smoke", "tuned", record.run.task.name, record.name
        )
        assert path.stat().st_size < 6_000
    assert not list((reproduce_smoke.path / "here" / "runs").glob("*/*.safetensors")), "checkpoints are removed"
    assert len(list((reproduce_smoke.path / "here" / "runs").glob("*/model"))) == 16, "models are kept"
    again = reproduce_smoke()
    assert reproduce_smoke.lines == ["16 experiments at scale smoke: 16 are there, 0 to compute", "16 of 16 are there"]
    assert again.exit_code == 0


def test_short_budgets_give_the_same_bits(reproduce_smoke):
    """Stopped and resumed again and again, also within runs."""
    assert reproduce_smoke(COPY, "whole").exit_code == 0
    stops, within = 0, set()
    while (summary := reproduce_smoke(COPY, "parts", budget=0.02 * 1.1**stops)).exit_code != 0:
        assert summary.exit_code == 3
        assert "out of time, the same call resumes" in reproduce_smoke.lines[-1]
        stops += 1
        within |= {line.split(",")[0] for line in reproduce_smoke.lines if "no time left in epoch" in line}
    assert stops > 5
    assert len(within) > 1, "must stop in the middle of a run at least twice"
    whole, parts = records(reproduce_smoke, "whole"), records(reproduce_smoke, "parts")
    assert whole.keys() == parts.keys()
    assert {name: without_times(record) for name, record in whole.items()} == {
        name: without_times(record) for name, record in parts.items()
    }


def test_a_run_that_needs_too_much_memory_is_named_and_skipped(reproduce_smoke, monkeypatch):
    first, *others = plan(["copy-first"], "smoke", None, ["tuned"])
    finish = Training.finish
    monkeypatch.setattr(
        Training, "finish", lambda self: torch.empty(1 << 50) if self.run == first.run else finish(self)
    )
    summary = reproduce_smoke(["copy-first"])
    assert (summary.done, list(summary.skipped), summary.exit_code) == (len(others), [first.name], 1)
    assert any(
        "cannot be computed: out of memory (CPU) in the run copy-first-" in line for line in reproduce_smoke.lines
    )


def test_a_budget_shorter_than_a_test_still_makes_progress(reproduce_smoke):
    """With a deadline that has always passed, each attempt completes a step of training or a test."""
    assert reproduce_smoke(["generalisation"], "whole").exit_code == 0
    experiment, *_ = plan(["generalisation"], "smoke", None, ["tuned"])
    out, results = reproduce_smoke.path / "parts" / "runs", reproduce_smoke.path / "parts" / "results"
    stops, record = [], None
    while record is None and len(stops) < 100:
        try:
            record, _ = module.compute(experiment, "smoke", out, results, replace(QUIET, deadline=0.0))
        except OutOfTimeError as stop:
            stops.append(str(stop))
    assert record is not None, stops
    assert [stop for stop in stops if "tests at other lengths" in stop] == [
        f"no time left for {left} of 6 tests at other lengths" for left in (5, 4, 3, 2, 1)
    ]
    assert without_times(record) == without_times(records(reproduce_smoke, "whole")[experiment.name])


def test_seeds_are_computed_in_order_and_each_run_is_announced(reproduce_smoke):
    assert reproduce_smoke(["copy-first"], seeds=2, budget=600).exit_code == 0
    begun = [line for line in reproduce_smoke.lines if " of 12: tuned/copy-first/" in line]
    assert [line.split(":")[0] for line in begun] == [f"{n} of 12" for n in range(1, 13)]
    assert [int(line.split("-seed")[1][0]) for line in begun] == [0] * 6 + [1] * 6
    assert all(line.endswith(" left") for line in begun)
    assert reproduce_smoke.lines[0] == "12 experiments at scale smoke: 0 are there, 12 to compute"


def test_a_budget_is_kept(reproduce_smoke):
    started = time.perf_counter()
    assert reproduce_smoke(["copy-first"], seeds=40, budget=3).out_of_time  # 240 runs of at least 0.1 s each
    assert 2.7 < time.perf_counter() - started < 6
    assert records(reproduce_smoke), "a busy machine may complete only one run"


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


def test_a_result_without_metrics_is_not_taken_for_complete(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    store.write(reproduce_smoke.path / "here" / "results", replace(record, metrics={}))
    reproduce_smoke(["copy-first"])
    assert records(reproduce_smoke)["bmru-T10-seed0"] == record


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


def test_two_processes_share_the_work(reproduce_smoke):
    """Each finds runs that the other computes or has computed; in the end all exist, and no number differs."""
    assert reproduce_smoke(COPY, "alone", seeds=1).exit_code == 0
    code = (
        "import sys; from multistable_experiments.paper.reproduce import reproduce;"
        "from multistable_experiments.training.loop import Options;"
        f"summary = reproduce({COPY!r}, 'smoke', ['tuned'], 1, out=sys.argv[1] + '/runs',"
        "results=sys.argv[1] + '/results', options=Options('cpu', show_progress=False)); print(summary.exit_code)"
    )
    words = [sys.executable, "-c", code, str(reproduce_smoke.path / "shared")]
    env = environment()
    env["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # the last digits of an LRU depend on it
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as other:
        for line in other.stdout:
            if line.startswith("1 of 6"):
                break
        summary = reproduce_smoke(COPY, "shared", seeds=1)
        other_output = other.stdout.read()
    assert summary.exit_code in (0, 1), reproduce_smoke.lines
    assert other_output.splitlines()[-1] in ("0", "1"), other_output
    assert summary.skipped.keys() <= {experiment.name for experiment in plan(COPY, "smoke", range(1), ["tuned"])}
    assert "cannot be computed" not in "".join(reproduce_smoke.lines) + other_output
    alone, shared = records(reproduce_smoke, "alone"), records(reproduce_smoke, "shared")
    assert {name: without_times(r) for name, r in shared.items()} == {
        name: without_times(r) for name, r in alone.items()
    }


def test_results_of_another_process_are_not_computed_again(reproduce_smoke, two_runs, monkeypatch):
    """A process plans when it starts; a second one starts while the first computes its first run."""
    compute, seen = module.compute, []

    def meanwhile(experiment, *rest):
        seen.append(experiment.name)
        if seen == ["bad-seed0"]:
            assert reproduce_smoke(["two"]).exit_code == 0
        return compute(experiment, *rest)

    monkeypatch.setattr(module, "compute", meanwhile)
    summary = reproduce_smoke(["two"])
    assert (summary.done, summary.exit_code) == (2, 0)
    assert seen == ["bad-seed0", "bad-seed0", "good-seed0"]
    assert reproduce_smoke.lines[-2] == "  another process has computed it"


def test_nothing_is_started_at_the_end_of_a_budget():
    clock = Clock(100)
    assert not clock.ending
    assert 98 < clock.deadline - time.perf_counter() < 99.5
    clock.end -= 98
    assert clock.ending
    assert str(clock) == ", 0:02 left"
    assert not Clock(None).ending


@pytest.mark.usefixtures("few_images")
def test_missing_data_is_named_and_does_not_stop_the_rest(reproduce_smoke):
    write_pathfinder("easy", 30)
    summary = reproduce_smoke(["permuted-mnist", "pathfinder", "copy-first"])
    assert summary.exit_code == 1
    assert summary.skipped.keys() == {"mnist", "pathfinder hard"}
    assert "set MULTISTABLE_DATA to the folder that holds mnist/" in summary.skipped["mnist"]
    assert "multistable data pathfinder --level hard" in summary.skipped["pathfinder hard"]
    assert summary.done == 6 + 3
    assert len([line for line in reproduce_smoke.lines if "no data for" in line]) == 2, "each is reported once"
    assert reproduce_smoke.lines[-1] == "9 of 16 are there; not computed: mnist, pathfinder hard"


def test_too_few_images_count_as_missing_data(reproduce_smoke):
    for level in ("hard", "easy"):
        write_pathfinder(level, 20)
    summary = reproduce_smoke(["pathfinder"])
    assert "easy32.npz holds 20 images" in summary.skipped["pathfinder easy"]
    assert summary.done == 0


@pytest.fixture
def two_runs(monkeypatch):
    """A figure with two runs; the loss of the first becomes NaN."""
    good = copy_first_run(("bmru",))
    bad = replace(copy_first_run(("lru", "bmru")), schedule=Schedule(1e30, 1e30, 1e30, 0))

    def figure(scale, seed, recipe):
        return [Experiment("bad", replace(bad, seed=seed)), Experiment("good", replace(good, seed=seed))]

    monkeypatch.setitem(experiments.EXPERIMENTS, "two", figure)


def test_a_failed_run_is_recorded_and_not_repeated(reproduce_smoke, two_runs):
    summary = reproduce_smoke(["two"])
    assert (summary.done, summary.failed, summary.exit_code) == (2, ["bad-seed0"], 0)
    bad, good = records(reproduce_smoke)["bad-seed0"], records(reproduce_smoke)["good-seed0"]
    assert "the loss is not finite in epoch 1, step 2: first in the layer" in bad.failure
    assert bad.metrics == {}
    assert bad.options == good.options == {"graph": False, "compiled": False}, "as computed, not as requested"
    assert (bad.machine["device"], bad.machine["processes"]) == ("cpu", 1)
    assert bad.parameters > good.parameters
    assert bad.seconds > 0
    assert good.failure is None
    reproduce_smoke(["two"])
    assert reproduce_smoke.lines[0] == "2 experiments at scale smoke: 2 are there, 0 to compute"


def test_a_damaged_checkpoint_is_named_and_kept(reproduce_smoke, two_runs):
    _, good = experiments.EXPERIMENTS["two"]("smoke", 0, "tuned")
    folder = folder_of(good.run, reproduce_smoke.path / "here" / "runs")
    with pytest.raises(OutOfTimeError):
        train_run(good.run, folder.parent, replace(QUIET, deadline=time.perf_counter()))
    path = folder / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    summary = reproduce_smoke(["two"], seeds=2)
    assert summary.exit_code == 1
    assert "last.safetensors is truncated" in summary.skipped["good-seed0"]
    assert summary.done == 3
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{"),
        ("result.json", "[]"),
        ("result.json", "{}"),
        ("tests.json", ""),
        ("tests.json", "3"),
        ("tests.json", '{"tests": []}'),
    ],
)
def test_a_damaged_file_of_a_run_is_named_and_kept(reproduce_smoke, name, content):
    reproduce_smoke(["generalisation"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    store.path_of(reproduce_smoke.path / "here" / "results", "smoke", "tuned", "copy-first", record.name).unlink()
    path = folder_of(record.run, reproduce_smoke.path / "here" / "runs") / name
    path.write_text(content)
    summary = reproduce_smoke(["generalisation"], seeds=2)
    assert summary.exit_code == 1
    assert f"{path} is truncated or corrupt: " in summary.skipped[record.name]
    assert summary.done == 3, "the other experiments continue"
    assert any(f"cannot be computed: {path}" in line for line in reproduce_smoke.lines)
    assert reproduce_smoke.lines[-1] == f"3 of 4 are there; not computed: {record.name}"
    assert path.read_text() == content
    path.unlink()
    assert reproduce_smoke(["generalisation"], seeds=2).exit_code == 0
    assert without_times(records(reproduce_smoke)[record.name]) == without_times(record)


def test_a_damaged_model_is_named(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    folder = folder_of(record.run, reproduce_smoke.path / "here" / "runs")
    (folder / "model" / "model.safetensors").write_bytes(b"")
    summary = reproduce_smoke(["generalisation"], seeds=2)
    assert summary.exit_code == 1
    assert "model.safetensors is truncated" in summary.skipped[record.name]
    assert f"remove {folder} to compute the run anew" in summary.skipped[record.name]
    assert summary.done == summary.planned - 1


def test_the_result_of_another_run_is_not_overwritten(reproduce_smoke, two_runs, monkeypatch):
    reproduce_smoke(["two"])
    known = records(reproduce_smoke)["good-seed0"]
    changed = replace(copy_first_run(("bmru",)), batch_size=10)
    monkeypatch.setitem(experiments.EXPERIMENTS, "two", lambda scale, seed, recipe: [Experiment("good", changed)])
    summary = reproduce_smoke(["two"])
    words = f"the file of its name holds the result of another run, {known.id}"
    assert summary.skipped == {"good-seed0": words}
    assert summary.exit_code == 1
    assert f"  {words}, which is not overwritten" in reproduce_smoke.lines
    assert records(reproduce_smoke)["good-seed0"] == known


def test_a_run_of_two_recipes_is_computed_once(reproduce_smoke):
    """The LRU on copy-first-input has the same settings by ``paper`` and by ``tuned``."""
    reproduce_smoke(["copy-first"])
    reproduce_smoke(["copy-first"], recipes=["paper"])
    found = store.load(reproduce_smoke.path / "here" / "results", "smoke")
    by_paper = {record.name: record for record in found if record.recipe == "paper"}
    tuned = {record.name: record for record in found if record.recipe == "tuned"}
    assert len([line for line in reproduce_smoke.lines if "the same run as by tuned" in line]) == 2
    assert by_paper["lru-T10-seed0"] == replace(tuned["lru-T10-seed0"], recipe="paper")
    assert by_paper["bmru-T10-seed0"].id != tuned["bmru-T10-seed0"].id


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"scale": "huge"}, "scale must be one of smoke, small, full, got 'huge'"),
        ({"budget": -1}, "budget must be a positive number of seconds, got -1"),
        ({"figures": ["mnist"]}, "figure must be one of .* got 'mnist'"),
        ({"seeds": 0}, "seeds must be a positive integer, got 0"),
    ],
)
def test_bad_arguments_raise(reproduce_smoke, words, message):
    with pytest.raises(ValueError, match=message):
        reproduce_smoke(**words)


def test_damaged_results_are_not_overwritten(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    path = store.path_of(reproduce_smoke.path / "here" / "results", "smoke", "tuned", "copy-first", "bmru-T10-seed0")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"bmru-T10-seed0\.json is truncated or corrupt"):
        reproduce_smoke(["copy-first"])
    assert path.read_text() == "{"


def test_runs_of_one_process_do_not_affect_each_other(reproduce_smoke):
    """One process computes many runs, and none may leak into the next."""
    reproduce_smoke(["copy-first"])
    experiment = plan(["copy-first"], "smoke")[4]
    alone = train_run(experiment.run, reproduce_smoke.path / "alone", QUIET)
    among_others = train_run(experiment.run, reproduce_smoke.path / "here" / "runs", QUIET)
    assert numbers(among_others) == numbers(alone)
    assert records(reproduce_smoke)[experiment.name].metrics == alone["metrics"]


@pytest.mark.parametrize("text", ["", "soon", "9x", "m", "-3m", "1.5h"])
def test_bad_durations_raise(text):
    with pytest.raises(ValueError, match=f"budget must be a duration such as 9m, 90s or 1h30m, got {text!r}"):
        parse_duration(text)


def test_exit_codes_of_the_command(reproduce_smoke):
    app = typer.Typer()
    app.command()(command.reproduce)

    def call(*words):
        folders = (
            "--out",
            reproduce_smoke.path / "runs",
            "--results",
            reproduce_smoke.path / "results",
            "--device",
            "cpu",
        )
        words = ("--scale", "smoke", *words, *folders)
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})

    assert call("copy-first", "--seeds", 99, "--budget", "1s").exit_code == 3
    done = call("copy-first")
    assert done.exit_code == 0, done.output
    assert "4 of 4 are there" in done.output
    assert call("pathfinder").exit_code == 1
    wrong = call("figures")
    assert wrong.exit_code == 2
    assert "figure must be one of" in wrong.output
    assert "budget must be a positive number" in call("copy-first", "--budget", "0s").output


def test_reproduce_works_without_typer():
    code = "import sys; sys.modules['typer'] = None; from multistable_experiments.paper import reproduce"
    env = environment()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr

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
from multistable_experiments.paper import experiments, store
from multistable_experiments.paper import reproduce as module
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
def here(tmp_path, monkeypatch):
    """An empty data folder, no way to download, and folders for runs and results: ``here(...)`` reproduces in them."""
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mnist, "MIRRORS", ((tmp_path / "nowhere").as_uri() + "/",))
    forget_pathfinder()
    lines: list[str] = []

    def call(figures=None, place="here", **words):
        lines.clear()
        words = {"scale": "smoke", "options": QUIET, "say": lines.append} | words
        return reproduce(figures, out=tmp_path / place / "runs", results=tmp_path / place / "results", **words)

    call.lines, call.path = lines, tmp_path
    return call


def records(here, place="here"):
    return {record.name: record for record in store.load(here.path / place / "results", "smoke")}


def facts(record):
    """All but the times."""
    tests = [{key: value for key, value in test.items() if key != "seconds"} for test in record.tests]
    return record.metrics, record.history, tests, record.run


@pytest.fixture
def few_images(monkeypatch):
    """Every fourth experiment on images: 6 of 24 on Pathfinder, 4 of 15 on MNIST."""
    for figure in ("permuted-mnist", "pathfinder"):
        all_of = experiments.EXPERIMENTS[figure]
        monkeypatch.setitem(
            experiments.EXPERIMENTS, figure, lambda scale, seed, all_of=all_of: all_of(scale, seed)[::4]
        )


@pytest.mark.usefixtures("few_images")
def test_all_figures_end_to_end(here, monkeypatch):
    monkeypatch.setattr(mnist, "FILES", write_mnist(here.path / "data"))
    for level in ("hard", "easy"):
        write_pathfinder(level, 30)
    summary = here()
    assert (summary.planned, summary.done, summary.exit_code) == (16, 16, 0), summary
    assert records(here).keys() == {experiment.name for experiment in plan(scale="smoke")}
    for record in records(here).values():
        assert record.metrics["last"]["epoch"] == record.run.epochs
        assert record.machine["device"] == "cpu"
        path = store.path_of(here.path / "here" / "results", "smoke", record.run.task.name, record.name)
        assert path.stat().st_size < 6_000
    assert not list((here.path / "here" / "runs").glob("*/*.safetensors")), "checkpoints go"
    assert len(list((here.path / "here" / "runs").glob("*/model"))) == 16, "models stay"
    again = here()
    assert here.lines == ["16 experiments at scale smoke: 16 are there, 0 to compute", "16 of 16 are there"]
    assert again.exit_code == 0


def test_short_budgets_give_the_same_bits(here):
    """Stopped again and again, within runs too, and resumed."""
    assert here(COPY, "whole").exit_code == 0
    stops, within = 0, set()
    while (summary := here(COPY, "parts", budget=0.02 * 1.1**stops)).exit_code != 0:
        assert summary.exit_code == 3
        assert "out of time, the same call resumes" in here.lines[-1]
        stops += 1
        within |= {line.split(",")[0] for line in here.lines if "no time left in epoch" in line}
    assert stops > 5
    assert len(within) > 1, "in the middle of a run at least twice"
    whole, parts = records(here, "whole"), records(here, "parts")
    assert whole.keys() == parts.keys()
    assert {name: facts(record) for name, record in whole.items()} == {
        name: facts(record) for name, record in parts.items()
    }


def test_a_run_that_needs_too_much_memory_is_named_and_skipped(here, monkeypatch):
    first, *others = plan(["copy-first"], "smoke")
    finish = Training.finish
    monkeypatch.setattr(
        Training, "finish", lambda self: torch.empty(1 << 50) if self.run == first.run else finish(self)
    )
    summary = here(["copy-first"])
    assert (summary.done, list(summary.skipped), summary.exit_code) == (len(others), [first.name], 1)
    assert any("cannot be computed: out of memory (CPU) in the run copy-first-" in line for line in here.lines)


def test_a_budget_shorter_than_a_test_gets_past_it(here):
    """With a deadline that has always passed, each attempt completes a step of training or a test."""
    assert here(["generalisation"], "whole").exit_code == 0
    experiment, *_ = plan(["generalisation"], "smoke")
    out, results = here.path / "parts" / "runs", here.path / "parts" / "results"
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
    assert facts(record) == facts(records(here, "whole")[experiment.name])


def test_seeds_follow_each_other_and_each_run_is_announced(here):
    assert here(["copy-first"], seeds=2, budget=600).exit_code == 0
    begun = [line for line in here.lines if " of 12: copy-first/" in line]
    assert [line.split(":")[0] for line in begun] == [f"{n} of 12" for n in range(1, 13)]
    assert [int(line.split("-seed")[1][0]) for line in begun] == [0] * 6 + [1] * 6
    assert all(line.endswith(" left") for line in begun)
    assert here.lines[0] == "12 experiments at scale smoke: 0 are there, 12 to compute"


def test_a_budget_is_kept(here):
    started = time.perf_counter()
    assert here(["copy-first"], seeds=40, budget=3).out_of_time  # 240 runs, of at least some 0.1 s each
    assert 2.7 < time.perf_counter() - started < 6
    assert records(here), "on a busy machine one run may be all that is done"


def test_new_tests_use_the_stored_model(here):
    here(["copy-first"])
    before = records(here)["bmru-T10-seed0"]
    here(["generalisation"])
    after = records(here)["bmru-T10-seed0"]
    assert (after.seconds, after.metrics) == (before.seconds, before.metrics), "not trained again"
    assert len(after.tests) == 6
    assert before.tests == []


def test_tests_are_not_measured_twice(here):
    here(["generalisation"])
    record = records(here)["bmru-T10-seed0"]
    store.path_of(here.path / "here" / "results", "smoke", "copy-first", record.name).unlink()
    path = folder_of(record.run, here.path / "here" / "runs") / "tests.json"
    marked = [test | {"marked": True} for test in read_json(path)["tests"]]
    write_json(path, {"tests": marked})
    here(["generalisation"])
    assert records(here)["bmru-T10-seed0"].tests == marked


def without(name, tests):
    return [{key: value for key, value in test.items() if key != name} for test in tests]


def forget(here, record, name, also_in_runs=True):
    """Make a result one of a version that did not measure this in its tests."""
    old = replace(record, tests=without(name, record.tests))
    store.write(here.path / "here" / "results", old)
    if also_in_runs:
        path = folder_of(record.run, here.path / "here" / "runs") / "tests.json"
        write_json(path, {"tests": old.tests})


@pytest.mark.parametrize("name", ["restored", "stored", "overwritten", "intact", "mse"])
def test_tests_that_lack_what_is_measured_today_are_measured_again(here, name):
    here(["generalisation"])
    record = records(here)["bmru-T10-seed0"]
    forget(here, record, name)
    assert here(["generalisation"]).exit_code == 0
    assert here.lines[0] == "2 experiments at scale smoke: 1 are there, 1 to compute"
    assert here.lines[2] == "  6 of its 6 tests are missing or lack what is measured today"
    again = records(here)["bmru-T10-seed0"]
    assert facts(again) == facts(record)
    assert again.seconds == record.seconds, "not trained again"
    here(["generalisation"])
    assert here.lines[0] == "2 experiments at scale smoke: 2 are there, 0 to compute"


def test_an_lru_has_no_values_to_overwrite(here):
    here(["generalisation"])
    assert "restored" not in records(here)["lru-T10-seed0"].tests[0]


def test_complete_tests_in_the_folder_of_a_run_are_reused(here):
    here(["generalisation"])
    record = records(here)["bmru-T10-seed0"]
    forget(here, record, "restored", also_in_runs=False)
    here(["generalisation"])
    assert records(here)["bmru-T10-seed0"].tests == record.tests, "with their seconds: not measured again"


def test_a_missing_model_is_trained_again_with_a_message(here):
    here(["generalisation"])
    record = records(here)["bmru-T10-seed0"]
    forget(here, record, "restored")
    folder = folder_of(record.run, here.path / "here" / "runs")
    shutil.rmtree(folder)
    assert here(["generalisation"]).exit_code == 0
    assert here.lines[2].endswith(f"; {folder} has no trained model, so it is trained again")
    assert facts(records(here)["bmru-T10-seed0"]) == facts(record)


def test_a_result_without_metrics_is_not_taken_for_complete(here):
    here(["copy-first"])
    record = records(here)["bmru-T10-seed0"]
    store.write(here.path / "here" / "results", replace(record, metrics={}))
    here(["copy-first"])
    assert records(here)["bmru-T10-seed0"] == record


def test_tests_are_under_the_lock_of_their_run(here):
    """Two processes would overwrite each other's."""
    here(["copy-first"])
    folder = folder_of(records(here)["bmru-T10-seed0"].run, here.path / "here" / "runs")
    with alone_in(folder):
        summary = here(["generalisation"])
    assert f"  {folder} is in use: another process computes this run" in here.lines
    assert summary.skipped == {"bmru-T10-seed0": "another process computes it"}
    assert not (folder / "tests.json").exists()
    assert (summary.done, summary.exit_code) == (1, 1)
    assert here(["generalisation"]).exit_code == 0


def test_two_processes_share_the_work(here):
    """This one finds runs that the other computes, or has computed: in the end all are there, and no number differs."""
    assert here(COPY, "alone", seeds=1).exit_code == 0
    code = (
        "import sys; from multistable_experiments.paper.reproduce import reproduce;"
        "from multistable_experiments.training.loop import Options;"
        f"summary = reproduce({COPY!r}, 'smoke', 1, out=sys.argv[1] + '/runs', results=sys.argv[1] + '/results',"
        "options=Options('cpu', show_progress=False)); print(summary.exit_code)"
    )
    words = [sys.executable, "-c", code, str(here.path / "shared")]
    env = environment()
    env["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # an LRU's last digits depend on it
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as other:
        for line in other.stdout:
            if line.startswith("1 of 6"):
                break
        summary = here(COPY, "shared", seeds=1)
        said = other.stdout.read()
    assert summary.exit_code in (0, 1), here.lines
    assert said.splitlines()[-1] in ("0", "1"), said
    assert summary.skipped.keys() <= {experiment.name for experiment in plan(COPY, "smoke", range(1))}
    assert "cannot be computed" not in "".join(here.lines) + said
    alone, shared = records(here, "alone"), records(here, "shared")
    assert {name: facts(r) for name, r in shared.items()} == {name: facts(r) for name, r in alone.items()}


def test_results_of_another_process_are_not_computed_again(here, two_runs, monkeypatch):
    """A process plans when it starts; a second one starts while the first run of the first is computed."""
    compute, seen = module.compute, []

    def meanwhile(experiment, *rest):
        seen.append(experiment.name)
        if seen == ["bad-seed0"]:
            assert here(["two"]).exit_code == 0
        return compute(experiment, *rest)

    monkeypatch.setattr(module, "compute", meanwhile)
    summary = here(["two"])
    assert (summary.done, summary.exit_code) == (2, 0)
    assert seen == ["bad-seed0", "bad-seed0", "good-seed0"]
    assert here.lines[-2] == "  another process has computed it"


def test_nothing_is_started_at_the_end_of_a_budget():
    clock = Clock(100)
    assert not clock.ending
    assert 98 < clock.deadline - time.perf_counter() < 99.5
    clock.end -= 98
    assert clock.ending
    assert str(clock) == ", 0:02 left"
    assert not Clock(None).ending


@pytest.mark.usefixtures("few_images")
def test_missing_data_are_named_and_do_not_stop_the_rest(here):
    write_pathfinder("easy", 30)
    summary = here(["permuted-mnist", "pathfinder", "copy-first"])
    assert summary.exit_code == 1
    assert summary.skipped.keys() == {"mnist", "pathfinder hard"}
    assert "set MULTISTABLE_DATA to the folder that holds mnist/" in summary.skipped["mnist"]
    assert "multistable data pathfinder --level hard" in summary.skipped["pathfinder hard"]
    assert summary.done == 6 + 3
    assert len([line for line in here.lines if "no data for" in line]) == 2, "each is said once"
    assert here.lines[-1] == "9 of 16 are there; not computed: mnist, pathfinder hard"


def test_too_few_images_are_missing_data(here):
    for level in ("hard", "easy"):
        write_pathfinder(level, 20)
    summary = here(["pathfinder"])
    assert "easy32.npz holds 20 images" in summary.skipped["pathfinder easy"]
    assert summary.done == 0


@pytest.fixture
def two_runs(monkeypatch):
    """A figure of two runs, of which the first one's loss becomes NaN."""
    good = copy_first_run(("bmru",))
    bad = replace(copy_first_run(("lru", "bmru")), schedule=Schedule(1e30, 1e30, 1e30, 0))

    def figure(scale, seed):
        return [Experiment("bad", replace(bad, seed=seed)), Experiment("good", replace(good, seed=seed))]

    monkeypatch.setitem(experiments.EXPERIMENTS, "two", figure)


def test_a_failed_run_is_recorded_and_not_repeated(here, two_runs):
    summary = here(["two"])
    assert (summary.done, summary.failed, summary.exit_code) == (2, ["bad-seed0"], 0)
    bad, good = records(here)["bad-seed0"], records(here)["good-seed0"]
    assert "the loss is not finite in epoch 1, step 2: first in the layer" in bad.failure
    assert bad.metrics == {}
    assert bad.options == good.options == {"graph": False, "compiled": False}, "as computed, not as asked for"
    assert (bad.machine["device"], bad.machine["processes"]) == ("cpu", 1)
    assert bad.parameters > good.parameters
    assert bad.seconds > 0
    assert good.failure is None
    here(["two"])
    assert here.lines[0] == "2 experiments at scale smoke: 2 are there, 0 to compute"


def test_a_damaged_checkpoint_is_named_and_kept(here, two_runs):
    _, good = experiments.EXPERIMENTS["two"]("smoke", 0)
    folder = folder_of(good.run, here.path / "here" / "runs")
    with pytest.raises(OutOfTimeError):
        train_run(good.run, folder.parent, replace(QUIET, deadline=time.perf_counter()))
    path = folder / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    summary = here(["two"], seeds=2)
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
def test_a_damaged_file_of_a_run_is_named_and_kept(here, name, content):
    here(["generalisation"])
    record = records(here)["bmru-T10-seed0"]
    store.path_of(here.path / "here" / "results", "smoke", "copy-first", record.name).unlink()
    path = folder_of(record.run, here.path / "here" / "runs") / name
    path.write_text(content)
    summary = here(["generalisation"], seeds=2)
    assert summary.exit_code == 1
    assert f"{path} is truncated or corrupt: " in summary.skipped[record.name]
    assert summary.done == 3, "the other experiments go on"
    assert any(f"cannot be computed: {path}" in line for line in here.lines)
    assert here.lines[-1] == f"3 of 4 are there; not computed: {record.name}"
    assert path.read_text() == content
    path.unlink()
    assert here(["generalisation"], seeds=2).exit_code == 0
    assert facts(records(here)[record.name]) == facts(record)


def test_a_damaged_model_is_named(here):
    here(["copy-first"])
    record = records(here)["bmru-T10-seed0"]
    folder = folder_of(record.run, here.path / "here" / "runs")
    (folder / "model" / "model.safetensors").write_bytes(b"")
    summary = here(["generalisation"], seeds=2)
    assert summary.exit_code == 1
    assert "model.safetensors is truncated" in summary.skipped[record.name]
    assert f"remove {folder} to compute the run anew" in summary.skipped[record.name]
    assert summary.done == summary.planned - 1


def test_replacing_the_result_of_another_run_is_announced(here, two_runs, monkeypatch):
    here(["two"])
    known = records(here)["good-seed0"].id
    changed = replace(copy_first_run(("bmru",)), batch_size=10)
    monkeypatch.setitem(experiments.EXPERIMENTS, "two", lambda scale, seed: [Experiment("good", changed)])
    here(["two"])
    assert f"  will replace the result of another run, {known}" in here.lines
    assert records(here)["good-seed0"].run == changed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"scale": "huge"}, "scale must be one of smoke, small, paper, got 'huge'"),
        ({"budget": -1}, "budget must be a positive number of seconds, got -1"),
        ({"figures": ["mnist"]}, "figure must be one of .* got 'mnist'"),
        ({"seeds": 0}, "seeds must be a positive integer, got 0"),
    ],
)
def test_bad_arguments_are_refused(here, words, message):
    with pytest.raises(ValueError, match=message):
        here(**words)


def test_damaged_results_are_not_overwritten(here):
    here(["copy-first"])
    path = store.path_of(here.path / "here" / "results", "smoke", "copy-first", "bmru-T10-seed0")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"bmru-T10-seed0\.json is truncated or corrupt"):
        here(["copy-first"])
    assert path.read_text() == "{"


def test_runs_of_one_process_do_not_affect_each_other(here):
    """One process computes many runs: nothing of one may leak into the next."""
    here(["copy-first"])
    experiment = plan(["copy-first"], "smoke")[4]
    alone = train_run(experiment.run, here.path / "alone", QUIET)
    among_others = train_run(experiment.run, here.path / "here" / "runs", QUIET)
    assert numbers(among_others) == numbers(alone)
    assert records(here)[experiment.name].metrics == alone["metrics"]


@pytest.mark.parametrize("text", ["", "soon", "9x", "m", "-3m", "1.5h"])
def test_bad_durations_are_refused(text):
    with pytest.raises(ValueError, match=f"budget must be a duration such as 9m, 90s or 1h30m, got {text!r}"):
        parse_duration(text)


def test_exit_codes_of_the_command(here):
    app = typer.Typer()
    app.command()(command.reproduce)

    def call(*words):
        folders = ("--out", here.path / "runs", "--results", here.path / "results", "--device", "cpu")
        words = ("--scale", "smoke", *words, *folders)
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})

    assert call("copy-first", "--seeds", 99, "--budget", "1s").exit_code == 3
    done = call("copy-first")
    assert done.exit_code == 0, done.output
    assert "6 of 6 are there" in done.output
    assert call("pathfinder").exit_code == 1
    wrong = call("figures")
    assert wrong.exit_code == 1
    assert "figure must be one of" in wrong.output
    assert "budget must be a positive number" in call("copy-first", "--budget", "0s").output


def test_no_typer_is_needed():
    code = "import sys; sys.modules['typer'] = None; from multistable_experiments.paper import reproduce"
    env = environment()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr

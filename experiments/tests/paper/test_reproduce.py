"""``multistable reproduce``: everything at scale smoke, budgets, resuming, several processes."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import typer
from typer.testing import CliRunner

from multistable_experiments.cli import paper as command
from multistable_experiments.paper import compute as module
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import plan
from multistable_experiments.paper.reproduce import Clock, parse_duration
from multistable_experiments.tasks import mnist
from multistable_experiments.training.loop import OutOfTimeError, train_run
from reproduced import records, without_times
from small_data import write_mnist, write_pathfinder
from sources import environment
from training_runs import QUIET, numbers

COPY = ["copy-first", "generalisation"]


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


@pytest.mark.extra
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
        ({"figures": COPY, "recipes": ["best"]}, "recipe must be one that has runs for these figures, got best"),
    ],
)
def test_bad_arguments_raise(reproduce_smoke, words, message):
    with pytest.raises(ValueError, match=message):
        reproduce_smoke(**words)


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
    assert "rl must be the only figure, got copy-first rl" in call("copy-first", "rl").output
    assert "budget must be a positive number" in call("copy-first", "--budget", "0s").output


def test_reproduce_works_without_typer():
    code = "import sys; sys.modules['typer'] = None; from multistable_experiments.paper import reproduce"
    env = environment()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr

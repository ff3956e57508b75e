"""Several processes compute what is missing; nothing is computed twice."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from typer.testing import CliRunner

from multistable_experiments.cli import app
from multistable_experiments.files import read_json
from multistable_experiments.state_machines import plan, store
from multistable_experiments.state_machines.training import Training
from multistable_experiments.state_machines.workers import compute_long, compute_missing
from sources import environment

TINY = Training("flip-flop", length=8, batch=8, updates=50)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(plan.STUDIES, "every", [TINY])


def test_missing_results_are_computed(tiny, tmp_path):
    said = []
    assert compute_missing(tmp_path, ["every"], 2, 120, seeds=3, say=said.append) == (3, [])
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert sorted(first) == [f"flip-flop-softmax-seed{seed}.json" for seed in range(3)]
    assert len(said) == 3
    assert compute_missing(tmp_path, ["every"], 1, 120, seeds=3, say=said.append) == (0, [])
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json")} == first


def test_a_result_of_other_settings_is_not_taken_for_that_of_a_study(tiny, tmp_path):
    """Names do not say how long a training was: ``multistable machines --updates 1`` may have written it."""
    store.record(replace(TINY, updates=1), tmp_path, longest=100, sequences=2)
    for compute in (lambda: compute_missing(tmp_path, ["every"], 1, 60, seeds=1),
                    lambda: compute_long(tmp_path, ["every"], 60, "cpu", seeds=1)):  # fmt: skip
        with pytest.raises(ValueError, match=r"the result of other settings \(updates\)"):
            compute()
    assert [path.name for path in tmp_path.glob("*.json")] == [f"{TINY.name}.json"]


def test_time_is_over_before_the_first_run(tiny, tmp_path):
    assert compute_missing(tmp_path, ["every"], 1, 0) == (0, [])
    assert not list(tmp_path.glob("*.json"))


def test_a_run_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    monkeypatch.setitem(plan.STUDIES, "every", [replace(TINY, machine="S5"), TINY])
    done = CliRunner().invoke(app, ["machines", "--study", "every", "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[0].startswith("S5-softmax-seed0: ValueError")
    assert lines[1].startswith("flip-flop-softmax-seed0: stored")
    assert lines[2:] == [f"1 new results in {tmp_path}", "not computed: S5-softmax-seed0"]


@pytest.mark.parametrize("words", ["flip-flop", "--study every"])
def test_a_folder_that_cannot_be_written_is_named_before_the_first_run(words, monkeypatch, tmp_path):
    monkeypatch.setattr(store, "train", lambda _: pytest.fail("it has begun"))
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["machines", *words.split(), "--out", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert done.output == f"error: {tmp_path / 'file'} must be a folder, but is a file\n"


@dataclass(frozen=True)
class Deadly(Training):
    """Ends the process that unpickles it, as too little memory would."""

    def __reduce__(self):
        return os._exit, (7,)


@pytest.mark.extra
def test_a_worker_that_dies_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(plan.STUDIES, "every", [Deadly("S3"), TINY])
    words = ["machines", "--study", "every", "--seeds", "1", "--processes", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "error: a worker process died with exit code 7"


@pytest.mark.extra
def test_workers_end_with_a_command_that_is_killed(tmp_path):
    words = f"-m multistable_experiments machines --study every --processes 2 --out {tmp_path}".split()
    with subprocess.Popen(
        [sys.executable, *words], env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as command:
        try:
            assert "stored" in command.stdout.readline()
            command.kill()
            command.communicate(timeout=20)  # until the last process that has this output ends
        finally:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)


def test_long_tests_of_stored_models(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(store.LONG, "longest", 300)
    monkeypatch.setitem(store.LONG, "sequences", 4)
    store.record(TINY, tmp_path, longest=100, sequences=2)
    assert compute_long(tmp_path, ["every"], 60, "cpu", say=lambda _: None) == 1
    found = read_json(tmp_path / f"long-{TINY.name}.json")
    assert found["test"]["longest"] == 300
    assert found["model"]["name"] == TINY.name
    assert compute_long(tmp_path, ["every"], 60, "cpu") == 0


@pytest.mark.parametrize(
    ("study", "device", "message"),
    [
        ("rivals", "cpu", "study must be one of every, .*, noise, got 'rivals'"),
        ("every", "gpu", "device must be auto or a device of torch"),
    ],
)
def test_bad_long_tests(study, device, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        compute_long(tmp_path, [study], 60, device)

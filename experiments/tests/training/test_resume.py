"""Killed at any moment (SIGKILL) a run resumes, and its numbers are those of a run that was never killed."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sources
from multistable_experiments.training import NonFiniteLossError, OutOfTimeError, Schedule, checkpoint, train_run
from multistable_experiments.training.interrupts import remember_interrupts
from multistable_experiments.training.loop import Training
from multistable_experiments.training.results import folder_of
from training_runs import QUIET, copy_first_run, numbers

NO_GPU = {"condition": not torch.cuda.is_available(), "reason": "there is no GPU"}
SCRIPT = """
import json, sys
import torch
from multistable_experiments.training import Options, Run, train_run
torch.set_num_threads(1)
run = Run.from_dict(json.loads(sys.argv[1]))
train_run(run, sys.argv[2], Options(device=sys.argv[3], checkpoint_seconds=0))
"""


def start(run, out, device) -> subprocess.Popen:
    environment = sources.environment(OMP_NUM_THREADS="1")
    words = [sys.executable, "-c", SCRIPT, json.dumps(run.to_dict()), str(out), device]
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def kill_after(process: subprocess.Popen, path: Path, checkpoints: int) -> None:
    """SIGKILL when the checkpoint has been written so many times, at some moment of the step that follows."""
    seen, before = 0, path.stat().st_mtime_ns if path.exists() else 0
    deadline = time.monotonic() + 60
    while seen < checkpoints:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint came"
        now = path.stat().st_mtime_ns if path.exists() else 0
        seen, before = seen + (now != before), now
        time.sleep(0.0005)
    time.sleep(random.uniform(0, 0.005))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(**NO_GPU))])
def test_killed_runs_come_to_the_same_bits(tmp_path, device):
    run = copy_first_run(("hybrid", "bmru"), samples=800, dropout=0.1, epochs=3, batch_size=20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = train_run(run, tmp_path / "whole", replace(QUIET, device=device))
    torch.set_num_threads(threads)

    folder = folder_of(run, tmp_path / "killed")
    path, positions = folder / "last.safetensors", []
    for checkpoints in (1, 29, 40):
        kill_after(start(run, tmp_path / "killed", device), path, checkpoints)
        assert not (folder / "result.json").exists()
        info = checkpoint.load(path)[1]
        positions.append((info["epoch"], info["step"]))
    assert positions == sorted(positions)
    assert len(set(positions)) == 3, "each attempt got further"
    assert any(step > 0 for _, step in positions), "at least once within an epoch"

    process = start(run, tmp_path / "killed", device)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == "", "silent when standard error is no terminal"
    assert numbers(json.loads((folder / "result.json").read_text())) == numbers(whole)
    lines = [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3]
    for name in ("last", "best"):
        killed, _ = checkpoint.load(folder / f"{name}.safetensors")
        expected, _ = checkpoint.load(folder_of(run, tmp_path / "whole") / f"{name}.safetensors")
        assert all(torch.equal(killed[key], expected[key]) for key in expected)


def test_a_run_killed_while_testing_tests_again(tmp_path):
    """The two checkpoints are enough."""
    run = copy_first_run(epochs=6, seed=0, schedule=Schedule(5e-2, 5e-2, 5e-2, 0))
    result = train_run(run, tmp_path, QUIET)
    assert result["metrics"]["best"]["epoch"] != 6, "best and last differ"
    folder = folder_of(run, tmp_path)
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            path.unlink()
    assert numbers(train_run(run, tmp_path, QUIET)) == numbers(result)


def test_killed_between_its_two_files_a_run_comes_to_the_same_bits(tmp_path):
    """The best weights are those of an epoch that the other file does not know yet."""
    run = copy_first_run(epochs=6)
    whole = train_run(run, tmp_path / "whole", QUIET)
    folder, saved = folder_of(run, tmp_path / "killed"), []
    write = checkpoint.save

    class KilledError(Exception):
        pass

    def save(path, tensors, info):
        if path.name == "last.safetensors" and len(saved) == 2:
            raise KilledError
        write(path, tensors, info)
        if path.name == "best.safetensors":
            saved.append(info["best"]["epoch"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with pytest.raises(KilledError):
            train_run(run, tmp_path / "killed", replace(QUIET, checkpoint_seconds=0))
    assert checkpoint.load(folder / "last.safetensors")[1]["best"]["epoch"] < saved[-1]
    assert numbers(train_run(run, tmp_path / "killed", QUIET)) == numbers(whole)


def test_a_missing_file_of_a_checkpoint_is_named(tmp_path):
    run = copy_first_run()
    train_run(run, tmp_path, QUIET)
    for name in ("result.json", "best.safetensors"):
        (folder_of(run, tmp_path) / name).unlink()
    with pytest.raises(checkpoint.CheckpointError, match=r"best\.safetensors is missing beside last\.safetensors"):
        train_run(run, tmp_path, QUIET)


def test_a_run_stopped_by_deadlines_comes_to_the_same_bits(tmp_path):
    run = copy_first_run(("hybrid", "bmru"), dropout=0.1, epochs=3)
    whole = train_run(run, tmp_path / "whole", QUIET)
    folder, positions = folder_of(run, tmp_path / "stopped"), []
    with pytest.raises(OutOfTimeError, match="no time left in epoch 1 of 3, step 1"):
        train_run(run, tmp_path / "stopped", replace(QUIET, deadline=time.perf_counter()))
    while not (folder / "result.json").exists():
        try:
            found = train_run(run, tmp_path / "stopped", replace(QUIET, deadline=time.perf_counter() + 0.03))
        except OutOfTimeError:
            info = checkpoint.load(folder / "last.safetensors")[1]
            positions.append((info["epoch"], info["step"]))
    assert len(positions) > 2
    assert positions == sorted(set(positions)), "each attempt got further"
    assert numbers(found) == numbers(whole)


def test_a_result_names_the_commits_at_which_parts_of_it_were_computed(tmp_path, monkeypatch):
    run = copy_first_run()
    for commit in ("first", "first", "second"):
        monkeypatch.setenv("MULTISTABLE_COMMIT", commit)
        with pytest.raises(OutOfTimeError):
            train_run(run, tmp_path, replace(QUIET, deadline=time.perf_counter()))
    monkeypatch.setenv("MULTISTABLE_COMMIT", "third")
    machine = train_run(run, tmp_path, QUIET)["machine"]
    assert (machine["commit"], machine["earlier_commits"]) == ("third", ["first", "second"])
    assert train_run(run, tmp_path / "whole", QUIET)["machine"]["earlier_commits"] == []


@pytest.fixture
def usual_interrupts():
    """Workers of xdist look after them in their own way."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("step", [3, 19])
def test_an_interrupted_run_loses_no_step(tmp_path, monkeypatch, usual_interrupts, step):
    """Two epochs of ten steps; no checkpoint is due by itself. The last step is followed by a validation."""
    run = copy_first_run(("bmru",), samples=222, epochs=2, batch_size=20, dropout=0.1)
    whole = train_run(run, tmp_path / "whole", QUIET)
    count, seed_step = 0, Training.seed_step

    def interrupted(self):
        nonlocal count
        count += 1
        seed_step(self)
        if count == step + 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "seed_step", interrupted)
    options = replace(QUIET, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, tmp_path, options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _, info = checkpoint.load(folder_of(run, tmp_path) / "last.safetensors")
    assert info["epoch"] * 10 + info["step"] == step + 1
    assert numbers(train_run(run, tmp_path, options)) == numbers(whole)
    assert count == 20, "no step was computed twice"


def test_a_second_interrupt_comes_at_once(usual_interrupts):
    with remember_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_interrupts_of_others_and_in_other_threads_are_left_alone(usual_interrupts):
    def inside(wanted: bool = True) -> None:
        with remember_interrupts(wanted):
            found.append(signal.getsignal(signal.SIGINT))

    found = []
    inside(wanted=False)
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inside()
    assert found == [signal.default_int_handler, signal.default_int_handler, signal.SIG_IGN]


def test_a_deadline_does_not_hide_a_bad_loss(tmp_path):
    run = copy_first_run(("lru", "bmru"), schedule=Schedule(1e30, 1e30, 1e30, 0))
    with pytest.raises(OutOfTimeError):
        train_run(run, tmp_path, replace(QUIET, deadline=time.perf_counter()))
    with pytest.raises(NonFiniteLossError, match="in epoch 1, step 2"):
        train_run(run, tmp_path, replace(QUIET, deadline=time.perf_counter()))

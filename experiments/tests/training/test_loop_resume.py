"""Killed (SIGKILL), interrupted or stopped runs resume, and end with the numbers of an undisturbed run."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sources
from full_disk import full_disk
from multistable_experiments.training import checkpoint
from multistable_experiments.training.loop import NonFiniteLossError, OutOfTimeError, Training, train_run
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.run import Schedule
from training_runs import QUIET, copy_first_run, numbers

NO_GPU = {"condition": not torch.cuda.is_available(), "reason": "there is no GPU"}
SCRIPT = """
import json, sys
import torch
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.run import Run
torch.set_num_threads(1)
run = Run.from_dict(json.loads(sys.argv[1]))
train_run(run, sys.argv[2], Options(device=sys.argv[3], checkpoint_seconds=0))
"""


def start(run, out, device) -> subprocess.Popen:
    environment = sources.environment(OMP_NUM_THREADS="1")
    words = [sys.executable, "-c", SCRIPT, json.dumps(run.to_dict()), str(out), device]
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def kill_after(process: subprocess.Popen, path: Path, checkpoints: int) -> None:
    """Send SIGKILL after this many checkpoints, at a random moment of the next step."""
    seen, before = 0, path.stat().st_mtime_ns if path.exists() else 0
    deadline = time.monotonic() + 60
    while seen < checkpoints:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint was written"
        now = path.stat().st_mtime_ns if path.exists() else 0
        seen, before = seen + (now != before), now
        time.sleep(0.0005)
    time.sleep(random.uniform(0, 0.005))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    lines = process.communicate()[1].splitlines()
    assert all(line.startswith("epoch ") for line in lines), "nothing else if standard error is not a terminal"


@pytest.mark.extra
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(**NO_GPU))])
def test_killed_runs_resume_to_the_same_bits(tmp_path, device):
    run = copy_first_run(("hybrid", "bmru"), samples=400, dropout=0.1, epochs=3, batch_size=20)
    options = replace(QUIET, device=device, checkpoint_seconds=0)
    whole = train_run(run, tmp_path / "whole", replace(options, checkpoint_seconds=20))

    folder = folder_of(run, tmp_path / "killed")
    path, positions = folder / "last.safetensors", []
    for checkpoints in (1, 24):
        kill_after(start(run, tmp_path / "killed", device), path, checkpoints)
        assert not (folder / "result.json").exists()
        info = checkpoint.load(path)[1]
        positions.append((info["epoch"], info["step"]))
    assert positions == sorted(set(positions)), "each attempt got further"
    assert any(step > 0 for _, step in positions), "must be killed within an epoch at least once"

    assert numbers(train_run(run, tmp_path / "killed", options)) == numbers(whole)
    lines = [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3]
    for name in ("last", "best"):
        killed, _ = checkpoint.load(folder / f"{name}.safetensors")
        expected, _ = checkpoint.load(folder_of(run, tmp_path / "whole") / f"{name}.safetensors")
        assert all(torch.equal(killed[key], expected[key]) for key in expected)


def test_a_run_killed_while_testing_repeats_its_tests(tmp_path):
    """The two checkpoints suffice."""
    run = copy_first_run(epochs=6, seed=0, schedule=Schedule(5e-2, 5e-2, 5e-2, 0))
    result = train_run(run, tmp_path, QUIET)
    assert result["metrics"]["best"]["epoch"] != 6, "best and last differ"
    folder = folder_of(run, tmp_path)
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            path.unlink()
    assert numbers(train_run(run, tmp_path, QUIET)) == numbers(result)


def test_a_run_killed_between_its_two_files_resumes_to_the_same_bits(tmp_path):
    """The best weights belong to an epoch that the other file does not contain yet."""
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


def test_a_run_that_another_process_finishes_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    """Between the look for a result and the lock; ``reproduce`` has removed the checkpoints."""
    run, alone_in, trained = copy_first_run(), checkpoint.alone_in, []
    finish = Training.finish
    monkeypatch.setattr(Training, "finish", lambda self: trained.append(1) or finish(self))

    def late(folder, mirror):
        monkeypatch.setattr(checkpoint, "alone_in", alone_in)
        train_run(run, tmp_path, QUIET)
        for name in ("last", "best"):
            (folder / f"{name}.safetensors").unlink()
        return alone_in(folder, mirror)

    monkeypatch.setattr(checkpoint, "alone_in", late)
    assert train_run(run, tmp_path, QUIET)["metrics"]
    assert len(trained) == 1


def test_a_missing_file_of_a_checkpoint_raises(tmp_path):
    run = copy_first_run()
    train_run(run, tmp_path, QUIET)
    for name in ("result.json", "best.safetensors"):
        (folder_of(run, tmp_path) / name).unlink()
    with pytest.raises(checkpoint.CheckpointError, match=r"best\.safetensors is missing beside last\.safetensors"):
        train_run(run, tmp_path, QUIET)


def test_a_run_stopped_by_deadlines_resumes_to_the_same_bits(tmp_path, monkeypatch):
    """27 steps, with a deadline that passes during the fifth of each attempt."""
    run = copy_first_run(("hybrid", "bmru"), dropout=0.1, epochs=3)
    whole = train_run(run, tmp_path / "whole", QUIET)
    folder, done, seed_step = folder_of(run, tmp_path / "stopped"), 0, Training.seed_step

    def until_the_deadline(self):
        nonlocal done
        done += 1
        seed_step(self)
        if done % 5 == 0:
            self.options = replace(self.options, deadline=time.perf_counter())

    monkeypatch.setattr(Training, "seed_step", until_the_deadline)
    for epoch, step in [(1, 5), (2, 1), (2, 6), (3, 2), (3, 7)]:
        with pytest.raises(OutOfTimeError, match=f"no time left in epoch {epoch} of 3, step {step}$"):
            train_run(run, tmp_path / "stopped", QUIET)
        info = checkpoint.load(folder / "last.safetensors")[1]
        assert (info["epoch"] + 1, info["step"]) == (epoch, step)
    assert numbers(train_run(run, tmp_path / "stopped", QUIET)) == numbers(whole)
    assert done == 27, "no step was computed twice"


def test_a_result_lists_the_commits_at_which_it_was_computed(tmp_path, monkeypatch):
    run = copy_first_run()
    for commit in ("first", "first", "second"):
        monkeypatch.setenv("MULTISTABLE_COMMIT", commit)
        with pytest.raises(OutOfTimeError):
            train_run(run, tmp_path, replace(QUIET, deadline=time.perf_counter()))
    monkeypatch.setenv("MULTISTABLE_COMMIT", "third")
    machine = train_run(run, tmp_path, QUIET)["machine"]
    assert (machine["commit"], machine["earlier_commits"]) == ("third", ["first", "second"])
    assert train_run(run, tmp_path / "whole", QUIET)["machine"]["earlier_commits"] == []


def test_a_run_with_a_damaged_checkpoint_does_not_start_over(tmp_path):
    run = copy_first_run()
    train_run(run, tmp_path, QUIET)
    folder = folder_of(run, tmp_path)
    (folder / "result.json").unlink()
    path = folder / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(checkpoint.CheckpointError, match=r"last\.safetensors"):
        train_run(run, tmp_path, QUIET)


def test_a_checkpoint_of_another_run_raises(tmp_path):
    run, other = copy_first_run(), copy_first_run(seed=1)
    train_run(run, tmp_path, replace(QUIET, checkpoint_seconds=0))
    folder_of(run, tmp_path).rename(folder_of(other, tmp_path))
    (folder_of(other, tmp_path) / "result.json").unlink()
    with pytest.raises(checkpoint.CheckpointError, match="belongs to another run"):
        train_run(other, tmp_path, QUIET)


@pytest.fixture
def default_interrupts():
    """Use Python's own handler; workers of xdist have another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [3, 19])
def test_an_interrupted_run_loses_no_step(tmp_path, monkeypatch, default_interrupts, step, number):
    """Two epochs of ten steps, and no checkpoint due otherwise. Validation follows the last step."""
    run = copy_first_run(("bmru",), samples=222, epochs=2, batch_size=20, dropout=0.1)
    whole = train_run(run, tmp_path / "whole", QUIET)
    count, seed_step = 0, Training.seed_step

    def interrupted(self):
        nonlocal count
        count += 1
        seed_step(self)
        if count == step + 1:
            signal.raise_signal(number)

    monkeypatch.setattr(Training, "seed_step", interrupted)
    options = replace(QUIET, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, tmp_path, options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _, info = checkpoint.load(folder_of(run, tmp_path) / "last.safetensors")
    assert info["epoch"] * 10 + info["step"] == step + 1
    assert numbers(train_run(run, tmp_path, options)) == numbers(whole)
    assert count == 20, "no step was computed twice"


def test_a_deadline_does_not_hide_a_bad_loss(tmp_path):
    run = copy_first_run(("lru", "bmru"), schedule=Schedule(1e30, 1e30, 1e30, 0))
    with pytest.raises(OutOfTimeError):
        train_run(run, tmp_path, replace(QUIET, deadline=time.perf_counter()))
    with pytest.raises(NonFiniteLossError, match="in epoch 1, step 2"):
        train_run(run, tmp_path, replace(QUIET, deadline=time.perf_counter()))


RUN = copy_first_run()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run stopped during its tests: it has checkpoints and metrics but no result."""
    train_run(RUN, tmp_path, QUIET)
    folder = folder_of(RUN, tmp_path)
    (folder / "result.json").unlink()
    return folder


LINES_DAMAGE = {
    "a flipped bit": lambda lines: [lines[0].replace(b"train_loss", b"train_lnss"), *lines[1:]],
    "a flipped digit": lambda lines: [lines[0], lines[1].replace(b'"epoch": 2', b'"epoch": 3'), lines[2]],
    "a lost line": lambda lines: lines[1:],
    "a line that is not a record": lambda lines: [*lines, b"[]"],
    "a line that is not JSON": lambda lines: [*lines, b"{"],
    "nested without end": lambda lines: [*lines, b"[" * 100_000],
    "another encoding": lambda lines: [line.decode().encode("utf-16") for line in lines],
    "a line of an epoch that is not the next": lambda lines: [*lines, lines[0]],
}


@pytest.mark.parametrize("kind", LINES_DAMAGE)
def test_damaged_metrics_are_not_overwritten(folder, kind):
    path = folder / "metrics.jsonl"
    damaged = b"".join(line + b"\n" for line in LINES_DAMAGE[kind](path.read_bytes().splitlines()))
    path.write_bytes(damaged)
    with pytest.raises(
        checkpoint.CheckpointError, match=f"^{path} is corrupt or disagrees with last.safetensors; remove it to "
    ):
        train_run(RUN, folder.parent, QUIET)
    assert path.read_bytes() == damaged
    path.unlink()
    train_run(RUN, folder.parent, QUIET)
    assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("left", [0, 1, 50, -30, -1])
def test_incomplete_metrics_are_not_damage(folder, left):
    """The last line may be cut off, and lines may not have reached the disk before a power cut."""
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:left])
    train_run(RUN, folder.parent, QUIET)
    assert [json.loads(line)["epoch"] for line in path.read_bytes().splitlines()] == [1, 2, 3]


def test_metrics_may_be_nan(folder):
    """The validation loss may be NaN, which is not equal to itself."""
    path = folder / "last.safetensors"
    tensors, info = checkpoint.load(path)
    info["history"][0]["valid_loss"] = math.nan
    checkpoint.save(path, tensors, info)
    (folder / "metrics.jsonl").unlink()
    train_run(RUN, folder.parent, QUIET)
    (folder / "result.json").unlink()
    assert "NaN" in (folder / "metrics.jsonl").read_text()
    train_run(RUN, folder.parent, QUIET)


def test_a_full_disk_raises_an_error_that_names_the_metrics(tmp_path):
    """The truncated line does not count as damage."""
    run = copy_first_run(epochs=8)
    whole = train_run(run, tmp_path / "whole", QUIET)
    with full_disk(1000), pytest.raises(OSError, match=r"metrics\.jsonl"):
        train_run(run, tmp_path, QUIET)
    assert not (folder_of(run, tmp_path) / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert numbers(train_run(run, tmp_path, QUIET)) == numbers(whole)


@pytest.mark.parametrize(
    "change", [{"epoch": "1"}, {"step": None}, {"history": 3}, {"history": [[]]}, {"seconds": {}}, {"best": 2}], ids=str
)
def test_a_checkpoint_with_other_types_is_refused(tmp_path, change):
    """Its checksum is right: whoever wrote it computed that, too."""
    run = copy_first_run(samples=40)
    with pytest.raises(OutOfTimeError):
        train_run(run, tmp_path, replace(QUIET, deadline=0))
    path = folder_of(run, tmp_path) / "last.safetensors"
    tensors, info = checkpoint.load(path)
    checkpoint.save(path, tensors, info | change)
    with pytest.raises(checkpoint.CheckpointError, match=f"is not a checkpoint of this run: {next(iter(change))} must"):
        train_run(run, tmp_path, QUIET)


def test_a_checkpoint_with_another_dtype_is_refused(tmp_path):
    run = copy_first_run(samples=40)
    with pytest.raises(OutOfTimeError):
        train_run(run, tmp_path, replace(QUIET, deadline=0))
    path = folder_of(run, tmp_path) / "last.safetensors"
    tensors, info = checkpoint.load(path)
    tensors["model.encoder.weight"] = tensors["model.encoder.weight"].double()
    checkpoint.save(path, tensors, info)
    with pytest.raises(checkpoint.CheckpointError, match=r"encoder\.weight must be torch.float32, got torch.float64"):
        train_run(run, tmp_path, QUIET)

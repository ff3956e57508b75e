"""Checkpoints: round trip, errors for damage, and one process per folder."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

from multistable_experiments.files import write_atomically
from multistable_experiments.training import checkpoint
from multistable_experiments.training.checkpoint import Attempt, CheckpointError, InUseError
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.resume import METRICS
from sources import environment
from training_runs import QUIET, copy_first_run

TENSORS = {"w": torch.randn(3, 4), "n": torch.tensor(7), "bytes": torch.arange(5, dtype=torch.uint8)}
INFO = {"epoch": 3, "history": [{"loss": 0.1 + 0.2}], "best": None}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, TENSORS, INFO)
    return path


def test_round_trip(path):
    tensors, info = checkpoint.load(path)
    assert info == INFO
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_truncation_anywhere_raises(path):
    content = path.read_bytes()
    for size in (0, 5, 8, 100, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(
            checkpoint.CheckpointError, match=r"last\.safetensors is truncated or not a .*; remove its folder to"
        ):
            checkpoint.load(path)


def test_every_flipped_byte_of_data_raises(path):
    content = path.read_bytes()
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    for position in range(len(content) - size, len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with pytest.raises(checkpoint.CheckpointError, match=r"last\.safetensors is corrupt: .* the checksum"):
            checkpoint.load(path)


def test_changed_info_raises(path):
    path.write_bytes(path.read_bytes().replace(b'epoch\\": 3', b'epoch\\": 4'))
    with pytest.raises(checkpoint.CheckpointError, match="checksum"):
        checkpoint.load(path)


def test_a_crash_while_writing_keeps_the_old_file(path):
    with pytest.raises(TypeError):
        write_atomically(path, "text instead of bytes")  # pyright: ignore
    assert checkpoint.load(path)[1] == INFO
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_restore_raises_on_a_mismatch():
    live = {"w": torch.zeros(2)}
    with pytest.raises(checkpoint.CheckpointError, match=r"here does not fit: it differs in \['v', 'w'\]"):
        checkpoint.restore(live, {"v": torch.zeros(2)}, "here")
    with pytest.raises(checkpoint.CheckpointError, match=r"here does not fit: it differs in \['v'\]"):
        checkpoint.restore(live, {"v": torch.zeros(2), "w": torch.zeros(2)}, "here")
    with pytest.raises(checkpoint.CheckpointError, match=r"w must have shape \[2\], got \[3\]"):
        checkpoint.restore(live, {"w": torch.zeros(3)}, "here")
    with pytest.raises(checkpoint.CheckpointError, match=r"w must have shape \[2, 3\], got \[3, 2\]"):
        checkpoint.restore({"w": torch.zeros(2, 3)}, {"w": torch.zeros(3, 2)}, "here")
    with pytest.raises(checkpoint.CheckpointError, match=r"w must be torch.float32, got torch.int64"):
        checkpoint.restore(live, {"w": torch.zeros(2, dtype=torch.int64)}, "here")


def test_a_file_of_another_program_raises(path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"last\.safetensors has no record of a run; remove its folder"
    ):
        checkpoint.load(path)


def test_checkpoints_hold_no_pickle(tmp_path):
    """The file consists of a JSON header followed by exactly the tensors' bytes."""
    run = copy_first_run()
    train_run(run, tmp_path, QUIET)
    paths = sorted(folder_of(run, tmp_path).glob("*.safetensors"))
    assert [path.name for path in paths] == ["best.safetensors", "last.safetensors"]
    for path in paths:
        with safe_open(path, framework="pt") as file:
            info = json.loads(file.metadata()["multistable"])["info"]
            size = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
        assert info["run"] == run.to_dict()
        content = path.read_bytes()
        header = int.from_bytes(content[:8], "little")
        json.loads(content[8 : 8 + header])
        assert len(content) == 8 + header + size


HOLD = """
import sys, time
from pathlib import Path
from multistable_experiments.training.checkpoint import alone_in
with alone_in(Path(sys.argv[1])):
    print("here", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked on Windows")
def test_a_run_in_use_by_another_process_raises(tmp_path):
    run = copy_first_run()
    folder = folder_of(run, tmp_path)
    folder.mkdir()
    env = environment()
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, env=env) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"here\n"
        with pytest.raises(checkpoint.CheckpointError, match=f"{folder.name} is in use: another process computes"):
            train_run(run, tmp_path, QUIET)
        other.kill()
    assert {path.name for path in folder.iterdir()} == {".lock", "attempt.json"}, "nothing else was written"
    assert train_run(run, tmp_path, QUIET)["metrics"]


def test_a_full_disk_raises_an_error_that_names_the_file(tmp_path):
    """Simulated by a limit on file sizes: both fail when bytes are written, not when the file is opened."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "file"
    write_atomically(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011
            write_atomically(path, bytes(1_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(path)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]


def test_an_attempt_with_a_successor_writes_nothing(tmp_path):
    """Two machines of which one was cut off and has lost its lock without a word."""
    run = copy_first_run()
    folder = folder_of(run, tmp_path)
    folder.mkdir()
    attempts = []

    def take_over(_line):
        attempts.append(Attempt(folder))
        (folder / METRICS).write_text("of the successor")

    with pytest.raises(InUseError, match="another process has taken over"):
        train_run(run, tmp_path, replace(QUIET, after_epoch=take_over))
    assert [attempt.number for attempt in attempts] == [2]
    assert (folder / METRICS).read_text() == "of the successor"
    attempts[0].check()


def test_a_damaged_number_of_an_attempt_is_named(tmp_path):
    (tmp_path / "attempt.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"attempt\.json is truncated or corrupt.*remove"):
        Attempt(tmp_path)

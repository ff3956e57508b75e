"""A damaged file in the folder of a run is named, stays as it is, and the command says one sentence."""

import json
import math
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from multistable_experiments.cli.train import train
from multistable_experiments.training import checkpoint, train_run
from multistable_experiments.training.results import folder_of
from test_files import full_disk
from training_runs import QUIET, copy_first_run, numbers

RUN = copy_first_run()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that was stopped while it was tested: two checkpoints and what describes them, no result."""
    train_run(RUN, tmp_path, QUIET)
    folder = folder_of(RUN, tmp_path)
    (folder / "result.json").unlink()
    return folder


def go_on(folder: Path) -> dict:
    return train_run(RUN, folder.parent, QUIET)


JSON_DAMAGE = {
    "empty": lambda text: b"",
    "cut off": lambda text: text[: len(text) // 2],
    "a list": lambda text: b"[]",
    "a number": lambda text: b"3",
    "nested without end": lambda text: b"[" * 100_000,
    "another encoding": lambda text: text.decode().encode("utf-16"),
    "zeros": lambda text: bytes(len(text)),
    "a field less": lambda text: json.dumps(dict(list(json.loads(text).items())[1:])).encode(),
    "a flipped bit": lambda text: text.replace(b'"epochs": 3', b'"epochs": 1'),
}


@pytest.mark.parametrize("kind", JSON_DAMAGE)
def test_a_damaged_run_json_is_not_overwritten(folder, kind):
    path = folder / "run.json"
    whole = path.read_bytes()
    damaged = JSON_DAMAGE[kind](whole)
    assert damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(checkpoint.CheckpointError, match=f"^{path} .*corrupt.*; remove it to "):
        go_on(folder)
    assert path.read_bytes() == damaged
    path.unlink()
    go_on(folder)
    assert path.read_bytes() == whole


LINES_DAMAGE = {
    "a flipped bit": lambda lines: [lines[0].replace(b"train_loss", b"train_lnss"), *lines[1:]],
    "a flipped digit": lambda lines: [lines[0], lines[1].replace(b'"epoch": 2', b'"epoch": 3'), lines[2]],
    "a lost line": lambda lines: lines[1:],
    "a line that is no record": lambda lines: [*lines, b"[]"],
    "a line that is no JSON": lambda lines: [*lines, b"{"],
    "nested without end": lambda lines: [*lines, b"[" * 100_000],
    "another encoding": lambda lines: [line.decode().encode("utf-16") for line in lines],
    "a line of an epoch that is not the next": lambda lines: [*lines, lines[0]],
}


@pytest.mark.parametrize("kind", LINES_DAMAGE)
def test_damaged_metrics_are_not_overwritten(folder, kind):
    path = folder / "metrics.jsonl"
    damaged = b"".join(line + b"\n" for line in LINES_DAMAGE[kind](path.read_bytes().splitlines()))
    path.write_bytes(damaged)
    with pytest.raises(checkpoint.CheckpointError, match=f"^{path} is truncated or corrupt: .*; remove it to "):
        go_on(folder)
    assert path.read_bytes() == damaged
    path.unlink()
    go_on(folder)
    assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("left", [0, 1, 50, -30, -1])
def test_what_a_killed_writer_left_of_the_metrics_is_no_damage(folder, left):
    """The last line may lack its end, and lines may not have reached the disk before a power cut."""
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:left])
    go_on(folder)
    assert [json.loads(line)["epoch"] for line in path.read_bytes().splitlines()] == [1, 2, 3]


def test_metrics_that_are_no_numbers_are_no_damage(folder):
    """The loss of a validation may be NaN, which is not equal to itself."""
    path = folder / "last.safetensors"
    tensors, info = checkpoint.load(path)
    info["history"][0]["valid_loss"] = math.nan
    checkpoint.save(path, tensors, info)
    (folder / "metrics.jsonl").unlink()
    go_on(folder)
    (folder / "result.json").unlink()
    assert "NaN" in (folder / "metrics.jsonl").read_text()
    go_on(folder)


def damaged_result(*keys, value):
    def harm(result: dict) -> None:
        for key in keys[:-1]:
            result = result[key]
        if value is None:
            del result[keys[-1]]
        else:
            result[keys[-1]] = value

    return harm


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (damaged_result("id", value="x"), f"it must hold the run {RUN.id}"),
        (damaged_result("run", "seed", value=7), f"it must hold the run {RUN.id}"),
        (damaged_result("metrics", value=[]), "metrics has no last"),
        (damaged_result("metrics", value=3), ""),
        (damaged_result("metrics", "last", value=None), "metrics has no last"),
        (damaged_result("metrics", "best", value="x"), "metrics.best has no epoch"),
        (damaged_result("metrics", "last", "test_mse", value=None), "metrics.last has no test_mse"),
        (damaged_result("metrics", "last", "test_mse", value="0.1"), "test_mse in metrics.last must be a number"),
        (damaged_result("seconds", value="long"), "seconds in it must be a number, got 'long'"),
        (damaged_result("parameters", value=True), "parameters in it must be a number, got True"),
        (damaged_result("history", 1, "valid_loss", value=None), r"history\[1\] has no valid_loss"),
        (damaged_result("machine", value=[]), ""),
        (damaged_result("machine", "gpu", value=None), "machine has no gpu"),
        (damaged_result("machine", "commit", value=7), "machine must name its parts and commits in words, got 7"),
    ],
)
def test_a_result_of_another_shape_is_named(folder, harm, words):
    """Its numbers are shown and summed up; before, most of these were a traceback there."""
    result = go_on(folder)
    path = folder / "result.json"
    harm(result)
    path.write_text(json.dumps(result))
    before = path.read_bytes()
    with pytest.raises(checkpoint.CheckpointError, match=f"^{path} is truncated or corrupt: {words}.*; remove it to "):
        go_on(folder)
    assert path.read_bytes() == before
    path.unlink()
    assert numbers(go_on(folder))


@pytest.mark.parametrize("name", ["last.safetensors", "metrics.jsonl", "result.json", "run.json"])
def test_a_folder_in_the_place_of_a_file_is_found_before_anything_is_computed(tmp_path, name):
    (folder_of(RUN, tmp_path) / name).mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=name):
        train_run(RUN, tmp_path, QUIET)
    assert not list(tmp_path.rglob("best.safetensors"))


def test_a_full_disk_names_the_metrics(tmp_path):
    """A line that was cut off by it is no damage."""
    run = copy_first_run(epochs=8)
    whole = train_run(run, tmp_path / "whole", QUIET)
    with full_disk(1000), pytest.raises(OSError, match=r"metrics\.jsonl"):
        train_run(run, tmp_path, QUIET)
    assert not (folder_of(run, tmp_path) / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert numbers(train_run(run, tmp_path, QUIET)) == numbers(whole)


def test_the_command_says_one_sentence(tmp_path):
    app = typer.Typer()
    app.command()(train)
    words = ["hold-bit", "--scale", "smoke", "--device", "cpu", "--epochs", "1", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    [path] = tmp_path.glob("*/result.json")
    path.write_text("[")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), "no traceback"
    assert done.output.startswith(f"error: {path} is truncated or corrupt: ")
    assert done.output.count("\n") == 1

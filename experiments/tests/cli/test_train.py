"""``multistable train``: options reach the run, a table is printed, and mistakes are reported in one line."""

import json

import pytest
from typer.testing import CliRunner

from multistable.dynamics import FIELDS
from multistable.layers import LAYERS
from multistable_experiments.cli import app
from multistable_experiments.cli.options import Scale
from multistable_experiments.paper import settings
from multistable_experiments.tasks import TASKS
from small_data import forget_pathfinder, write_release


def call(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)], env={"COLUMNS": "120"})


def only_result(out):
    [path] = out.glob("*/result.json")
    return json.loads(path.read_text())


def test_smoke_prints_a_table_and_writes_a_result(tmp_path):
    options = ["copy-first", "--scale", "smoke", "--out", tmp_path, "--device", "cpu", "--longer", "30,60"]
    done = call(*options)
    assert done.exit_code == 0, done.output
    result = only_result(tmp_path)
    for word in ("copy-first", "validation mse", "test mse", "best on validation", "60 timesteps", str(tmp_path)):
        assert word in done.output.replace("\n", "")
    assert f"{result['metrics']['last']['test_mse']:.5f}" in done.output
    epochs = [line for line in done.output.splitlines() if line.startswith("epoch ")]
    assert len(epochs) == 2
    table = "".join(line for line in done.output.splitlines(keepends=True) if not line.startswith("epoch "))
    assert call(*options).output == table, "a finished run prints its table again"


def test_options_reach_the_run(tmp_path):
    words = "copy-first --scale smoke --cell lru,bmru --d-model 8 --d-state 6 --epochs 1 --batch-size 50 --seed 7"
    words += " --learning-rate 0.01 --decay usual --length 5 --noise 0.5 --dropout 0.1 --precision bfloat16"
    done = call(*words.split(), "--device", "cpu", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    run = only_result(tmp_path)["run"]
    model, task = run["model"], run["task"]
    assert (model["cells"], model["d_model"], model["d_state"], model["dropout"]) == (["lru", "bmru"], 8, 6, 0.1)
    assert (task["name"], task["length"], task["noise"]) == ("copy-first", 5, 0.5)
    assert (run["epochs"], run["batch_size"], run["seed"], run["precision"]) == (1, 50, 7, "bfloat16")
    assert run["decay"]["reading"] == "usual"
    assert run["schedule"] == {"start": 0.0025, "peak": 0.01, "end": 2.5e-5, "warmup_epochs": 0.1}


def test_missing_data_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path / "data"))
    forget_pathfinder()
    done = call("pathfinder", "--scale", "smoke", "--out", tmp_path / "runs")
    assert done.exit_code == 1
    assert "does not exist: write it with" in done.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("adding", "task must be one of copy-first, hold-bit, mnist, pathfinder, got 'adding'"),
        ("hold-bit --learning-rate=-1", "--learning-rate must be a positive number, got -1.0"),
        ("hold-bit --learning-rate nan", "--learning-rate must be a positive number, got nan"),
        ("hold-bit --noise 0.1", "the task hold-bit has no --noise"),
        ("hold-bit --source release --rule s4", "the task hold-bit has no --rule, --source"),
        ("pathfinder --source web", "source must be one of generated, release, got 'web'"),
        ("mnist --length 5", "the task mnist has no --length"),
        ("hold-bit --cell lru,bmru --blocks 3", "--cell names 2 blocks, but --blocks is 3"),
        ("hold-bit --cell transformer", "cells must be names out of"),
        ("hold-bit --longer 10,many", "--longer must be positive whole numbers separated by commas, got '10,many'"),
        ("hold-bit --scale smoke --longer=-5", "--longer must be positive whole numbers separated by commas, got '-5'"),
        ("mnist --longer 1000", "other lengths need a task that streams and whose last output counts, got MNIST("),
        ("hold-bit --device gpu", "device must be auto or a device of torch (cpu, cuda, cuda:1), got 'gpu'"),
        ("hold-bit --device meta", "device is 'meta', but this torch cannot compute on it"),
        ("copy-first --batch-size 100000", "batch_size must not exceed the 7200 training samples, got 100000"),
    ],
)
def test_a_mistake_is_reported_in_one_line(tmp_path, words, message):
    done = call(*words.split(), "--out", tmp_path)
    assert done.exit_code == 2
    assert message in done.output
    assert isinstance(done.exception, SystemExit), "no traceback"
    assert not list(tmp_path.rglob("*.safetensors")), "nothing was trained"


def test_blocks_must_be_positive(tmp_path):
    done = call("hold-bit", "--blocks", 0, "--out", tmp_path)
    assert done.exit_code == 2
    assert "--blocks" in done.output
    assert not list(tmp_path.iterdir())


def test_trains_on_the_pathfinder_release(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    forget_pathfinder()
    write_release("intermediate", 60)
    words = "pathfinder --scale smoke --level intermediate --source release --rule s4 --images 60 --batch-size 8"
    done = call(*words.split(), "--epochs", 1, "--out", tmp_path / "runs", "--device", "cpu")
    assert done.exit_code == 0, done.output
    task = only_result(tmp_path / "runs")["run"]["task"]
    assert (task["source"], task["rule"], task["images"]) == ("release", "s4", 60)


def test_missing_data_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    forget_pathfinder()
    done = call("pathfinder", "--scale", "smoke", "--out", tmp_path / "runs", "--device", "cpu")
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert line.startswith("error: ")
    assert "easy32.npz does not exist: write it with `multistable data pathfinder" in line


def test_a_damaged_result_is_reported(tmp_path):
    words = ("hold-bit", "--scale", "smoke", "--out", tmp_path, "--device", "cpu")
    assert call(*words).exit_code == 0
    [path] = tmp_path.glob("*/result.json")
    path.write_text("{")
    done = call(*words)
    assert done.exit_code == 1
    assert done.output.startswith(f"error: {path} is truncated or corrupt: JSONDecodeError(")


def test_an_impossible_folder_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    done = call("hold-bit", "--scale", "smoke", "--out", tmp_path / "file" / "runs", "--device", "cpu")
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert line.startswith(f"error: {tmp_path / 'file' / 'runs'}")
    assert line.endswith(": part of this path is a file, not a folder")


def test_help_names_every_task_layer_field_and_scale():
    text = " ".join(call("--help").output.replace("│", "").split())
    for word in (*TASKS, *LAYERS, *FIELDS, *settings.SCALES, "accelerate launch", "--black-pixels", "--d-state"):
        assert word in text
    assert Scale == settings.Scale

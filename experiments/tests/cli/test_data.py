"""``multistable data pathfinder``: writes images where training looks for them, resumes, reports mistakes."""

import pytest
from typer.testing import CliRunner

from multistable_experiments.cli import app
from multistable_experiments.tasks.pathfinder import task
from multistable_experiments.tasks.pathfinder.compact import read
from small_data import forget_pathfinder


@pytest.fixture(autouse=True)
def forget():
    forget_pathfinder()


def call(*words):
    return CliRunner().invoke(app, ["data", "pathfinder", *map(str, words)])


def test_writes_images_for_training(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    done = call("--level", "easy", "--count", 40, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert str(task.compact_file("easy")) in done.output.replace("\n", "")
    assert "train / valid / test: 32 / 4 / 4 images; pixels of the training set: mean 1" in done.output
    again = call("--level", "easy", "--count", 40, "--jobs", 1, "--out", tmp_path / "other.npz")
    assert again.exit_code == 0, again.output
    images, labels = read(task.compact_file("easy"))
    other_images, other_labels = read(tmp_path / "other.npz")
    assert (images == other_images).all()
    assert (labels == other_labels).all()


def test_an_interrupt_says_how_to_resume(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        yield 1
        raise KeyboardInterrupt

    monkeypatch.setattr("multistable_experiments.tasks.pathfinder.produce.produce", interrupted)
    done = call("--count", 20, "--out", tmp_path / "a.npz")
    assert done.exit_code == 130
    assert f"stopped; the same command resumes from {tmp_path}" in done.output


def test_a_mistake_is_reported_in_one_line(tmp_path):
    done = call("--level", "harder", "--out", tmp_path / "a.npz")
    assert done.exit_code == 1
    assert done.stderr == "error: level must be one of easy, intermediate, hard, got 'harder'\n"

"""``multistable data pathfinder`` writes images where training looks for them, and reports mistakes."""

import pytest
from typer.testing import CliRunner

from multistable_experiments.cli import app
from multistable_experiments.tasks.pathfinder.generated import generated_file, read
from small_data import forget_pathfinder


@pytest.fixture(autouse=True)
def clear_cache():
    forget_pathfinder()


def call(*words):
    return CliRunner().invoke(app, ["data", "pathfinder", *map(str, words)])


def test_writes_images_for_training(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    done = call("--level", "easy", "--count", 40, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert str(generated_file("easy")) in done.output.replace("\n", "")
    assert "train / valid / test: 32 / 4 / 4 images; pixels of the training set: mean 1" in done.output
    again = call("--level", "easy", "--count", 40, "--jobs", 1, "--out", tmp_path / "other.npz")
    assert again.exit_code == 0, again.output
    images, other = read(generated_file("easy")), read(tmp_path / "other.npz")
    assert (images.images == other.images).all()
    assert (images.labels == other.labels).all()


def test_an_interrupt_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("multistable_experiments.tasks.pathfinder.generator.draw", interrupted)
    assert call("--count", 20, "--out", tmp_path / "a.npz").exit_code == 130
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_reported_in_one_line(tmp_path):
    done = call("--level", "harder", "--out", tmp_path / "a.npz")
    assert done.exit_code == 2
    assert done.stderr == "error: level must be one of easy, intermediate, hard, got 'harder'\n"

"""The file of generated images: round trip, threads, kills, damage."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from multistable_experiments.tasks.pathfinder import generated
from multistable_experiments.tasks.pathfinder.generated import generate, read
from multistable_experiments.tasks.pathfinder.generator import draw
from multistable_experiments.tasks.pathfinder.settings import settings
from sources import environment


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("multistable_experiments.tasks.pathfinder.generated.BATCH", 20)


@pytest.mark.parametrize("jobs", [1, 2])
def test_read_returns_the_images_of_the_seed(tmp_path, small_batches, jobs):
    path = tmp_path / "deep" / "easy.npz"
    assert list(generate(path, "easy", seed=5, count=50, jobs=jobs)) == [20, 20, 10]
    parts = [draw(settings("easy"), 5, batch, count) for batch, count in ((0, 20), (1, 20), (2, 10))]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    found = read(path)
    assert (found.level, found.seed) == ("easy", 5)
    assert np.array_equal(found.images, images)
    assert np.array_equal(found.labels, labels)
    assert found.images.dtype == found.labels.dtype == np.uint8
    assert [p.name for p in path.parent.iterdir()] == ["easy.npz"]


def test_a_finished_file_is_kept_and_different_settings_raise(tmp_path):
    path = tmp_path / "easy.npz"
    list(generate(path, "easy", seed=5, count=30))
    before = path.stat().st_mtime_ns
    assert list(generate(path, "easy", seed=5, count=30)) == [30]
    for level, seed, count in (("easy", 6, 30), ("easy", 5, 40), ("hard", 5, 30)):
        expected = f"{count} {level} images of seed {seed}"
        with pytest.raises(ValueError, match=f"^{path} holds 30 easy images of seed 5, expected {expected}"):
            list(generate(path, level, seed=seed, count=count))
    assert path.stat().st_mtime_ns == before


def test_reading_needs_neither_generator_nor_numba(tmp_path):
    path = tmp_path / "easy.npz"
    list(generate(path, "easy", count=50))
    code = (
        "import sys; from pathlib import Path; from multistable_experiments.tasks.pathfinder.generated import read;"
        f"assert read(Path({str(path)!r})).images.shape == (50, 32, 32);"
        "bad = {'numba', 'PIL', 'multistable_experiments.tasks.pathfinder.generator'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_file_is_small(tmp_path):
    """200,000 hard images must stay below 64 MB."""
    path = tmp_path / "hard.npz"
    list(generate(path, "hard", count=1000))
    assert path.stat().st_size < 64e6 / 200


@pytest.mark.parametrize(("seed", "count", "jobs"), [(0, 0, 1), (0, 5, 0), (-1, 5, 1)])
def test_bad_numbers_raise(tmp_path, seed, count, jobs):
    with pytest.raises(ValueError, match=r"^(count|jobs|seed) must be at least (0|1), got (0|-1)"):
        list(generate(tmp_path / "a.npz", "easy", seed, count, jobs))
    assert not list(tmp_path.iterdir())


def test_an_abandoned_generator_leaves_nothing(tmp_path, small_batches):
    steps = generate(tmp_path / "a.npz", "easy", count=50, jobs=2)
    assert next(steps) == 20
    steps.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_leaves_no_file(tmp_path):
    code = f"""if True:
        from pathlib import Path
        from multistable_experiments.tasks.pathfinder.generated import generate
        for _ in generate(Path({str(tmp_path / "a.npz")!r}), "easy", count=200_000, jobs=2):
            print("batch", flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"batch\n"
        process.send_signal(signal.SIGKILL)
    assert not list(tmp_path.iterdir())


DAMAGE = {
    "cut off": lambda content: content[:60],
    "not a zip file": lambda content: b"PK not",
    "a flipped bit": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_raises(tmp_path, kind):
    path = tmp_path / "easy.npz"
    list(generate(path, "easy", count=50))
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    for use in (read, lambda path: list(generate(path, "easy", count=50))):
        with pytest.raises(ValueError, match=f"^{path} is damaged or not a Pathfinder file: .*; remove it and run"):
            use(path)


def test_an_unrelated_npz_file_raises(tmp_path):
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ValueError, match=r"other\.npz is damaged or not a Pathfinder file"):
        read(tmp_path / "other.npz")


WRONG = {
    "a label of 2": {"labels": np.full(3, 2, np.uint8)},
    "labels of text": {"labels": np.array(["0", "1", "0"])},
    "labels of 64 bits": {"labels": np.zeros(3, np.int64)},
    "labels for other images": {"labels": np.zeros(2, np.uint8)},
    "images of floats": {"images": np.zeros((3, 32, 32))},
    "images of another size": {"images": np.zeros((3, 16, 64), np.uint8)},
    "another level": {"level": np.array("simple")},
    "a seed of text": {"seed": np.array("x")},
    "objects": {"images": np.array([None, {}, []], dtype=object)},
}


@pytest.mark.parametrize("kind", WRONG)
def test_values_out_of_range_are_refused(tmp_path, kind):
    good = {"level": np.array("easy"), "seed": np.array(0), "labels": np.zeros(3, np.uint8)}
    good |= {"images": np.zeros((3, 32, 32), np.uint8)}
    path = tmp_path / "a.npz"
    np.savez(path, **good)
    assert len(read(path).labels) == 3
    np.savez(path, **good | WRONG[kind])
    with pytest.raises(ValueError, match=f"^{path} is damaged or not a Pathfinder file"):
        read(path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(generated, "LARGEST", 1 << 20)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, images=np.zeros(1 << 20, np.uint8))
    assert path.stat().st_size < 1 << 14
    with pytest.raises(ValueError, match="it would unpack to 1,048,704 bytes"):
        read(path)


def test_a_folder_in_place_of_the_file_raises(tmp_path):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read(tmp_path)

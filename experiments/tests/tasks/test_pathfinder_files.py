"""The two file formats: round trips, damage, kills, any number of processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from multistable_experiments.files import whole_file, whole_folder
from multistable_experiments.tasks.pathfinder import compact, lra
from multistable_experiments.tasks.pathfinder.compact import Origin
from multistable_experiments.tasks.pathfinder.generator import draw, glyphs
from multistable_experiments.tasks.pathfinder.produce import CompactStore, FolderStore, produce, store_for
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.strokes import join, render

ORIGIN = Origin(settings("easy"), seed=5, count=50, batch=20)


def expected() -> tuple[np.ndarray, np.ndarray]:
    strokes = join([draw(ORIGIN.settings, 5, batch, count) for batch, count in ((0, 20), (1, 20), (2, 10))])
    return render(glyphs(ORIGIN.settings), strokes), strokes.label


def run(store, origin: Origin = ORIGIN, jobs: int = 1) -> list[int]:
    return list(produce(store, origin, jobs=jobs))


@pytest.fixture
def release(tmp_path) -> Path:
    """A folder as of the release."""
    run(FolderStore(tmp_path / "pathfinder32"))
    return tmp_path / "pathfinder32"


def test_compact_round_trip(tmp_path):
    path = tmp_path / "deep" / "easy.npz"
    assert run(store_for(path)) == [0, 20, 20, 10]
    for found, wanted in zip(compact.read(path), expected(), strict=True):
        assert np.array_equal(found, wanted)
        assert found.dtype == np.uint8
    assert compact.read_strokes(path)[0] == ORIGIN
    assert [p.name for p in path.parent.iterdir()] == ["easy.npz"]


def test_compact_file_is_small(tmp_path):
    """200,000 hard images must stay below 45 MB; 1,000 carry the glyphs, too."""
    run(CompactStore(tmp_path / "hard.npz"), Origin(settings("hard"), seed=0, count=1000))
    assert (tmp_path / "hard.npz").stat().st_size < 45e6 / 200


def test_reading_a_compact_file_needs_neither_generator_nor_numba(tmp_path):
    run(CompactStore(tmp_path / "easy.npz"))
    code = (
        "import sys; from pathlib import Path; from multistable_experiments.tasks.pathfinder import compact;"
        f"images, labels = compact.read(Path({str(tmp_path / 'easy.npz')!r})); assert images.shape == (50, 32, 32);"
        "bad = {'numba', 'PIL', 'multistable_experiments.tasks.pathfinder.generator'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_any_number_of_processes_writes_the_same_bytes(tmp_path):
    for jobs in (1, 2):
        run(CompactStore(tmp_path / f"{jobs}.npz"), jobs=jobs)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_folder_has_the_files_of_the_release(release):
    level = release / "curv_baseline"
    lines = (level / "metadata" / "1.npy").read_text().splitlines()
    labels = expected()[1]
    assert lines[3] == f"imgs/1 sample_3.png 3 {labels[23]} 1.0 6 2 2 0.5 1 1"
    assert [len((level / "metadata" / f"{b}.npy").read_text().splitlines()) for b in range(3)] == [20, 20, 10]
    with Image.open(level / "imgs" / "0" / "sample_0.png") as image:
        assert (image.mode, image.size, image.format) == ("L", (32, 32), "PNG")
    hidden = [p for p in release.rglob("*") if p.name.startswith(".")]
    assert {path.name for path in hidden} <= {".lock"}


@pytest.mark.parametrize(
    ("level", "columns"), [("hard", "1.0 14 4.666666666666667 2 0.5 1 1"), ("intermediate", "1.0 9 3.0 2 0.5 1 1")]
)
def test_metadata_print_numbers_as_the_release_does(tmp_path, level, columns):
    run(FolderStore(tmp_path), Origin(settings(level), seed=0, count=1))
    text = (tmp_path / lra.FOLDERS[level] / "metadata" / "0.npy").read_text()
    assert text.endswith(f"{columns}\n")


def test_read_returns_what_was_written(release):
    for found, wanted in zip(lra.read(release, "easy"), expected(), strict=True):
        assert np.array_equal(found, wanted)


def test_a_loader_in_the_manner_of_s4_reads_the_folder(release):
    """Metadata opened as text, sorted by number, columns 0, 1 and 3."""
    level = release / "curv_baseline"
    images, labels = expected()
    seen = 0
    for path in sorted((level / "metadata").glob("*.npy"), key=lambda path: int(path.stem)):
        for line in path.read_text().splitlines():
            words = line.split()
            with Image.open(level / words[0] / words[1]) as image:
                assert np.array_equal(np.asarray(image.convert("L")), images[seen])
            assert int(words[3]) == labels[seen]
            seen += 1
    assert seen == len(images)


def test_the_empty_file_of_the_release_is_left_out(tmp_path):
    run(FolderStore(tmp_path), Origin(settings("easy"), seed=0, count=180))
    (tmp_path / "curv_baseline" / "imgs" / "0" / "sample_172.png").write_bytes(b"")
    images, labels = lra.read(tmp_path, "easy")
    assert len(images) == len(labels) == 179


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-14] ^= 1  # of the pixels' checksum: what they were cannot be told any more
    path.write_bytes(content)


DAMAGE = {
    "flipped bit in an image": ("imgs/1/sample_4.png", flip),
    "truncated image": ("imgs/1/sample_4.png", cut),
    "empty image": ("imgs/1/sample_4.png", lambda path: path.write_bytes(b"")),
    "missing image": ("imgs/1/sample_4.png", Path.unlink),
    "image of another size": ("imgs/1/sample_4.png", lambda path: Image.new("L", (8, 8)).save(path)),
    "missing batch": ("metadata/1.npy", Path.unlink),
    "missing images of a batch": ("imgs/1", lambda path: path.rename(path.with_name("elsewhere"))),
    "missing column": ("metadata/1.npy", lambda path: path.write_text("imgs/1 sample_0.png 0\n")),
    "bad label": ("metadata/1.npy", lambda path: path.write_text(path.read_text().replace(" 1 1.0", " x 1.0"))),
    "missing line": ("metadata/1.npy", lambda path: path.write_text(path.read_text().rsplit("\n", 2)[0] + "\n")),
    "empty metadata": ("metadata/1.npy", lambda path: path.write_text("")),
    "metadata that are no text": ("metadata/1.npy", lambda path: path.write_bytes(b"\x93NUMPY\xff\xfe")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(release, kind):
    name, harm = DAMAGE[kind]
    path = release / "curv_baseline" / name
    harm(path)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        lra.read(release, "easy")
    assert str(path) in str(caught.value)


def test_a_folder_without_the_level_is_named(release):
    with pytest.raises(FileNotFoundError, match="curv_contour_length_14"):
        lra.read(release, "hard")
    with pytest.raises(ValueError, match="level must be one of easy, intermediate, hard, got 'simple'"):
        lra.read(release, "simple")


@pytest.mark.parametrize("harm", [cut, lambda path: path.write_bytes(b"PK not"), lambda path: np.savez(path, a=1)])
def test_a_damaged_compact_file_is_named(tmp_path, harm):
    path = tmp_path / "easy.npz"
    with pytest.raises(FileNotFoundError, match=r"easy\.npz does not exist"):
        compact.read(path)
    run(CompactStore(path))
    harm(path)
    with pytest.raises(ValueError, match=f"^{path} is damaged.*; if it was one, remove it to have it drawn anew"):
        compact.read(path)


def test_no_flipped_bit_of_a_compact_file_is_a_traceback(tmp_path):
    """numpy, zipfile and zlib have many kinds of errors for them; bits that nobody reads, as times, do not matter."""
    path = tmp_path / "easy.npz"
    run(CompactStore(path), Origin(settings("easy"), seed=5, count=3))
    content, images = path.read_bytes(), compact.read(path)[0]
    tables = content.index(b"PK\x01\x02")
    errors = []
    for position in (*range(200), *range(tables, len(content))):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        try:
            assert np.array_equal(compact.read(path)[0], images)
        except ValueError as error:
            errors.append(error)
    assert all(str(error).startswith(f"{path} is damaged") for error in errors)
    assert len({type(error.__cause__) for error in errors}) > 4


NOTES = [b"", b"{", b"[]", b"{}", b"3", b"[" * 100_000, b"\xff\xfe{", b'{"format": 1, "settings": 3}']


@pytest.mark.parametrize("note", NOTES, ids=[str(note[:30]) for note in NOTES])
@pytest.mark.parametrize("store", [CompactStore, FolderStore])
def test_a_damaged_note_is_named_and_nothing_is_drawn(tmp_path, store, note):
    steps = produce(store(tmp_path / "data.npz"), ORIGIN)
    assert [next(steps), next(steps)] == [0, 20]
    steps.close()
    [path] = tmp_path.rglob("origin.json")
    path.write_bytes(note)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"^{path} is damaged: .*; remove {path.parent} to begin anew"):
        run(store(tmp_path / "data.npz"))
    assert sorted(tmp_path.rglob("*")) == before
    assert path.read_bytes() == note


def test_a_damaged_part_is_named_and_drawn_anew_when_it_is_gone(tmp_path):
    path = tmp_path / "easy.npz"
    steps = produce(CompactStore(path), ORIGIN)
    assert [next(steps), next(steps)] == [0, 20]
    steps.close()
    part = tmp_path / "easy.npz.parts" / "0.npz"
    cut(part)
    with pytest.raises(ValueError, match=f"^{part} is damaged.*; if it was one, remove it to have it drawn anew"):
        run(CompactStore(path))
    part.unlink()
    run(CompactStore(path))
    assert np.array_equal(compact.read(path)[0], expected()[0])


def test_a_folder_in_the_place_of_a_compact_file_is_named(tmp_path):
    (tmp_path / "easy.npz").mkdir()
    for use in (compact.read, lambda path: run(CompactStore(path))):
        with pytest.raises(IsADirectoryError, match=r"easy\.npz"):
            use(tmp_path / "easy.npz")


def test_produce_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "easy.npz"
    steps = produce(CompactStore(path), ORIGIN)
    assert [next(steps), next(steps)] == [0, 20]
    steps.close()
    assert not path.exists()
    first = (tmp_path / "easy.npz.parts" / "0.npz").stat().st_mtime_ns
    steps = produce(CompactStore(path), ORIGIN)
    assert next(steps) == 20
    assert (tmp_path / "easy.npz.parts" / "0.npz").stat().st_mtime_ns == first
    assert list(steps) == [20, 10]
    assert np.array_equal(compact.read(path)[0], expected()[0])
    assert run(CompactStore(path)) == [50]


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked on Windows")
@pytest.mark.parametrize("store", [CompactStore, FolderStore])
def test_two_at_once_are_refused(tmp_path, store):
    """They would write the same parts under the same names, and the first would remove those of the second."""
    steps = produce(store(tmp_path / "data.npz"), ORIGIN)
    assert [next(steps), next(steps)] == [0, 20]
    with pytest.raises(ValueError, match=f"^{tmp_path}.* is in use: another process draws these images"):
        run(store(tmp_path / "data.npz"))
    assert list(steps) == [20, 10]
    assert run(store(tmp_path / "data.npz")) == [50]


@pytest.mark.parametrize("store", [CompactStore, FolderStore])
def test_produce_does_not_mix_two_data_sets(tmp_path, store):
    place = store(tmp_path / "data.npz")
    run(place)
    with pytest.raises(ValueError, match=r"data\.npz.* holds .*50 easy images.*seed 5, expected .*seed 6"):
        run(place, Origin(settings("easy"), seed=6, count=50, batch=20))


def test_produce_leaves_other_folders_alone(tmp_path):
    (tmp_path / "curv_baseline" / "metadata").mkdir(parents=True)
    with pytest.raises(ValueError, match="curv_baseline holds other files, expected"):
        run(FolderStore(tmp_path))


@pytest.mark.parametrize(("seed", "count", "jobs"), [(0, 0, 1), (0, 5, 0), (-1, 5, 1)])
def test_produce_names_what_is_wrong(tmp_path, seed, count, jobs):
    """And leaves nothing behind that would stop the right command."""
    with pytest.raises(ValueError, match=r"^(count|jobs|seed) must be at least (0|1), got (0|-1)"):
        run(CompactStore(tmp_path / "a.npz"), Origin(settings("easy"), seed, count), jobs=jobs)
    assert not list(tmp_path.iterdir())


def test_what_is_half_written_keeps_another_name(tmp_path):
    with contextlib.suppress(RuntimeError), whole_file(tmp_path / "file") as part:
        part.write_text("half")
        assert not (tmp_path / "file").exists()
        raise RuntimeError
    with contextlib.suppress(RuntimeError), whole_folder(tmp_path / "folder") as part:
        (part / "file").write_text("half")
        assert not (tmp_path / "folder").exists()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "jobs"), [("easy.npz", 2), ("pathfinder32", 1)])
def test_a_killed_run_leaves_whole_batches_only(tmp_path, name, jobs):
    """SIGKILL while batches are written; what has a final name is whole, and the next run completes the rest."""
    code = f"""if True:
        from pathlib import Path
        from multistable_experiments.tasks.pathfinder.compact import Origin
        from multistable_experiments.tasks.pathfinder.produce import produce, store_for
        from multistable_experiments.tasks.pathfinder.settings import settings
        origin = Origin(settings("easy"), 0, 2000, batch=50)
        for _ in produce(store_for(Path({str(tmp_path / name)!r})), origin, jobs={jobs}):
            print("batch", flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    workers = children(process.pid)
    time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_for_end(workers)
    origin = Origin(settings("easy"), 0, 2000, batch=50)
    store = store_for(tmp_path / name)
    done = [batch for batch in range(40) if store.has(origin, batch)]
    assert 3 <= len(done) < 40
    steps = run(store, origin)
    assert steps[0] == 50 * len(done)
    images, labels = compact.read(tmp_path / name) if name.endswith(".npz") else lra.read(tmp_path / name, "easy")
    whole = join([draw(origin.settings, 0, batch, 50) for batch in range(40)])
    assert np.array_equal(images, render(glyphs(origin.settings), whole))
    assert np.array_equal(labels, whole.label)
    assert {p.name for p in tmp_path.rglob("*") if p.name.startswith(".")} <= {".lock"}


def children(pid: int) -> list[Path]:
    """Folders of the child processes in /proc; none where there is no /proc."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [Path("/proc") / child for child in listed.read_text().split()] if listed.exists() else []


def running(process: Path) -> bool:
    try:
        return ") Z " not in (process / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(processes: list[Path], seconds: float = 20) -> None:
    """Workers of a killed run end by themselves; otherwise they would wait for work for ever."""
    end = time.monotonic() + seconds
    while left := [p for p in processes if running(p)]:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.05)


def test_origin_survives_json():
    for size in (32, 128):
        origin = Origin(settings("hard", size=size), seed=1, count=2)
        assert Origin.from_json(origin.to_json()) == origin
    with pytest.raises(ValueError, match="format"):
        Origin.from_json(json.dumps({**json.loads(ORIGIN.to_json()), "format": 0}))


def environment() -> dict[str, str]:
    """Of a process that finds the package as this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}


def test_torch_sees_the_images(tmp_path):
    run(CompactStore(tmp_path / "easy.npz"))
    images, _ = compact.read(tmp_path / "easy.npz")
    assert torch.from_numpy(images).dtype == torch.uint8

"""Files are written completely or not at all, and errors name the file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from full_disk import full_disk
from multistable.models.atomic import file_named, part_of, whole_file, write_atomically


def test_new_content_replaces_the_old(tmp_path):
    path = tmp_path / "numbers"
    for content in (b"old and long", b"new"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("old")
    with whole_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.parent == path.parent, "a rename is only atomic within a file system"
    assert path.read_text() == "new"


def test_content_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    """After a power cut, the name must not refer to a file without its content."""
    calls = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(("fsync", os.fstat(handle).st_size)), fsync(handle)))
    monkeypatch.setattr(Path, "replace", lambda part, path: (calls.append(("replace", path.name)), replace(part, path)))
    write_atomically(tmp_path / "numbers", bytes(1000))
    assert calls == [("fsync", 1000), ("replace", "numbers")]


def test_an_error_in_the_block_keeps_the_old_content(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as part:
            part.write_text("ne")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_keeps_the_old_content_and_the_next_cleans_up(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("old")
    source = Path(sys.modules[write_atomically.__module__].__file__)  # by itself: importing torch takes seconds
    code = f"""if True:
        import importlib.util, os, signal, pathlib
        spec = importlib.util.spec_from_file_location("atomic", {str(source)!r})
        atomic = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(atomic)
        with atomic.whole_file(pathlib.Path({str(path)!r})) as part:
            part.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert part_of(path).read_text() == "half"
    write_atomically(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_loses_nothing_and_the_error_names_the_file(tmp_path):
    path = tmp_path / "numbers"
    write_atomically(path, b"old")
    with full_disk(1000), pytest.raises(OSError, match="File too large") as caught:
        write_atomically(path, bytes(5000))
    assert (caught.value.filename, caught.value.filename2) == (str(path), None)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_place_of_the_file_raises(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path, b"new")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path), None)
    assert not part_of(tmp_path).exists()


def test_a_missing_folder_raises(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "missing" / "file", b"new")
    assert caught.value.filename == str(tmp_path / "missing" / "file")


def test_an_error_about_another_file_names_that_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, file_named(tmp_path / "numbers"):
        (tmp_path / "other").read_bytes()
    assert caught.value.filename == str(tmp_path / "other")

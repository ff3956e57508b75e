"""Files are written completely or not at all, and errors name the file."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from full_disk import full_disk
from multistable.models import atomic
from multistable.models.atomic import file_named, whole_file, write_atomically

LOADED = f"""
import importlib.util, os, pathlib, signal, sys
spec = importlib.util.spec_from_file_location("atomic", {sys.modules[write_atomically.__module__].__file__!r})
atomic = importlib.util.module_from_spec(spec)
spec.loader.exec_module(atomic)
path = pathlib.Path(sys.argv[1])
"""  # the module alone: importing torch would take seconds


def other_process(code: str, path: Path, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", LOADED + code, str(path)], **options)


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(".*.part"))


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
    fsync, replace, folder = os.fsync, Path.replace, tmp_path.stat().st_ino

    def record_fsync(handle: int) -> None:
        found = os.fstat(handle)
        calls.append("folder" if found.st_ino == folder else found.st_size)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", lambda part, path: (calls.append(path.name), replace(part, path)))
    write_atomically(tmp_path / "numbers", bytes(1000))
    assert calls == [1000, "numbers", "folder"]


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
    code = """if True:
        with atomic.whole_file(path) as part:
            part.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    assert other_process(code, path).wait() == -signal.SIGKILL
    assert path.read_text() == "old"
    assert [part.read_text() for part in parts(tmp_path)] == ["half"]
    write_atomically(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_write_one_file_and_a_reader_sees_whole_ones(tmp_path):
    """With one name for all temporary files, 97 of 200 writes raised and readers saw half of a file."""
    path = tmp_path / "numbers"
    contents = [bytes([i]) * 300_000 for i in (1, 2)]
    write_atomically(path, contents[0])
    code = "for _ in range(100): atomic.write_atomically(path, bytes([int(sys.argv[2])]) * 300_000)"
    command = [sys.executable, "-c", LOADED + code, str(path)]
    writers = [subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE, text=True) for i in (1, 2)]
    while any(writer.poll() is None for writer in writers):
        assert path.read_bytes() in contents
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert list(tmp_path.iterdir()) == [path]


def test_a_live_writer_keeps_its_temporary_file(tmp_path):
    path = tmp_path / "numbers"
    with whole_file(path) as part:
        part.write_text("first")
        write_atomically(path, b"second")
        assert path.read_text() == "second"
        assert part.exists()
    assert path.read_text() == "first", "the last one wins"


def test_a_planted_link_is_not_followed(tmp_path):
    """Nobody can guess the name of the temporary file, and a file of that name would not be opened."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / ".numbers.part").symlink_to(precious)
    (tmp_path / ".numbers.planted.part").symlink_to(precious)
    write_atomically(tmp_path / "numbers", b"new")
    assert precious.read_text() == "kept"


def test_a_link_with_the_very_name_is_refused(tmp_path, monkeypatch):
    """If somebody did guess it, and the link leads to a file that would be created."""
    monkeypatch.setattr(secrets, "token_hex", lambda count: "guessed")
    (tmp_path / ".numbers.guessed.part").symlink_to(tmp_path / "created")
    with pytest.raises(FileExistsError) as caught:
        write_atomically(tmp_path / "numbers", b"new")
    assert caught.value.filename == str(tmp_path / "numbers")
    assert not (tmp_path / "created").exists()


def test_a_part_that_is_removed_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    """Another writer takes it for that of a killed one."""
    lock, made = atomic._lock, []

    def late(file) -> bool:
        made.append(Path(file.name))
        if len(made) == 1:
            made[0].unlink()
        return lock(file)

    monkeypatch.setattr(atomic, "_lock", late)
    write_atomically(tmp_path / "numbers", b"new")
    assert (tmp_path / "numbers").read_bytes() == b"new"
    assert len(set(made)) == 2


def test_a_planted_pipe_does_not_stop_a_writer(tmp_path):
    """Whether it is a leftover cannot be seen by opening it: that would wait for somebody who writes to it."""
    os.mkfifo(tmp_path / ".numbers.0.part")
    (tmp_path / ".numbers.1.part").symlink_to(tmp_path / ".numbers.0.part")
    writer = other_process("atomic.write_atomically(path, b'new')", tmp_path / "numbers")
    try:
        assert writer.wait(timeout=20) == 0
    finally:
        writer.kill()
    assert (tmp_path / "numbers").read_bytes() == b"new"


def test_permissions_stay(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("private")
    path.chmod(0o600)
    with whole_file(path) as part:
        assert part.stat().st_mode & 0o777 == 0o600
        part.write_text("new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_to_itself_raises(tmp_path):
    path = tmp_path / "numbers"
    path.symlink_to(path)
    with pytest.raises(OSError, match=r"symbolic links.*numbers'$"):
        write_atomically(path, b"new")


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"new", b"newer"):  # the target does not exist at first
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert not parts(tmp_path)


def test_a_pipe_is_written_to_and_stays(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    write_atomically(path, b"new")
    reader.join(timeout=10)
    assert received == [b"new"]
    assert path.is_fifo()


def test_a_device_is_written_to_and_stays():
    """As root, a file in place of /dev/null would break the machine; in place of a terminal none can be made."""
    reader, device = os.openpty()
    write_atomically(Path(os.ttyname(device)), b"new")
    assert os.read(reader, 3) == b"new"
    assert Path(os.ttyname(device)).is_char_device()
    os.close(reader)
    os.close(device)


def test_standard_output_can_be_a_pipe(tmp_path):
    code = "atomic.write_atomically(path, b'new')"
    with other_process(code, Path("/dev/stdout"), stdout=subprocess.PIPE) as other:
        assert other.communicate() == (b"new", None)


def test_a_socket_is_refused(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with pytest.raises(OSError, match="is neither a file nor a pipe") as caught:
            write_atomically(path, b"new")
    assert caught.value.filename == str(path)
    assert path.is_socket()


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
    assert str(caught.value).endswith(f"directory: '{tmp_path}'")
    assert not parts(tmp_path.parent)


def test_a_missing_folder_raises(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "missing" / "file", b"new")
    assert caught.value.filename == str(tmp_path / "missing" / "file")


def test_an_error_about_another_file_names_that_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, file_named(tmp_path / "numbers"):
        (tmp_path / "other").read_bytes()
    assert caught.value.filename == str(tmp_path / "other")

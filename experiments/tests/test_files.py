"""Files appear whole or not at all, and what cannot be written is named."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from multistable_experiments.files import check_writable, write_atomically

pytest.importorskip("typer")
from multistable_experiments.errors import message_of


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """As if it were: no file may grow beyond ``room`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_with_the_file_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    write_atomically(path, b"old")
    with full_disk(1000), pytest.raises(OSError, match="numbers") as caught:
        write_atomically(path, bytes(5000))
    assert message_of(caught.value) == f"{path}: File too large"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_place_of_a_file_is_named_by_the_name_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path, b"new")
    assert message_of(caught.value) == f"{tmp_path}: Is a directory"
    assert not list(tmp_path.parent.glob(".*.part"))


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "gone" / "file", b"new")
    assert message_of(caught.value) == f"{tmp_path / 'gone' / 'file'}: No such file or directory"


def test_an_error_without_a_file_has_no_numbers_and_brackets() -> None:
    assert message_of(OSError(28, "No space left on device")) == "No space left on device"


def test_what_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "new" / "page.html")
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(ValueError, match=r"--out must be a file, but .* is a folder"):
        check_writable("--out", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        check_writable("--out", tmp_path / "file" / "page.html")

"""Files are written completely or not at all, errors name the file, locks hold, and damaged JSON raises."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from full_disk import full_disk
from multistable_experiments.errors import message_of
from multistable_experiments.files import (
    DamagedFileError,
    check_writable,
    locked,
    read_json,
    stored_result,
    write_atomically,
    write_json,
)
from sources import environment


def test_a_full_disk_loses_nothing_and_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    write_atomically(path, b"old")
    with full_disk(1000), pytest.raises(OSError, match="numbers") as caught:
        write_atomically(path, bytes(5000))
    assert message_of(caught.value) == f"{path}: File too large"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_place_of_the_file_raises(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path, b"new")
    assert message_of(caught.value) == f"{tmp_path}: Is a directory"
    assert not list(tmp_path.parent.glob(".*.part"))


def test_a_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "gone" / "file", b"new")
    assert message_of(caught.value) == f"{tmp_path / 'gone' / 'file'}: No such file or directory"


def test_an_error_without_a_file_has_no_error_number() -> None:
    assert message_of(OSError(28, "No space left on device")) == "No space left on device"


def test_an_impossible_file_is_rejected_before_any_work(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "new" / "page.html")
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(ValueError, match=r"--out must be a file, but .* is a folder"):
        check_writable("--out", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        check_writable("--out", tmp_path / "file" / "page.html")


def test_two_processes_check_one_file(tmp_path: Path) -> None:
    """With one name for the temporary file, 42 of 4,000 checks failed."""
    code = (
        "import sys; from pathlib import Path; from multistable_experiments.files import check_writable\n"
        "for _ in range(2000): check_writable('--out', Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "page.html")]
    checkers = [subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [checker.communicate()[1] for checker in checkers] == ["", ""]
    assert not list(tmp_path.iterdir())


def test_a_pipe_and_a_device_can_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        check_writable("--out", path)
    assert (tmp_path / "pipe").is_fifo()


def test_a_lock_holds_until_it_is_released(tmp_path: Path) -> None:
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path) as third:
        assert third


def test_a_lock_of_another_process_holds_until_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from multistable_experiments.files import locked\n"
        "with locked(Path(sys.argv[1])) as alone: print(alone, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with locked(tmp_path) as alone:
            assert not alone
        os.kill(other.pid, signal.SIGKILL)
    with locked(tmp_path) as alone:
        assert alone


def test_json_round_trips_and_damage_raises(tmp_path: Path) -> None:
    path, values = tmp_path / "values.json", {"b": [0.1, None], "a": {"x": "\u00e9"}}
    write_json(path, values)
    assert read_json(path) == values
    text = path.read_text()
    for damaged in (text[:20], text.replace("0.1", "0.2"), "[]", "", '{"a": 1}'):
        path.write_text(damaged)
        with pytest.raises(DamagedFileError, match=r"values\.json is (truncated or )?corrupt"):
            read_json(path)


def test_a_result_of_other_settings_is_named_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert stored_result(path, "run", {"seed": 0}) is None
    write_json(path, {"run": {"seed": 0, "lengths": [1, 2]}, "score": 0.5})
    found = stored_result(path, "run", {"seed": 0, "lengths": (1, 2)})
    assert found is not None
    assert found["score"] == 0.5
    with pytest.raises(ValueError, match=r"result\.json holds the result of other settings \(seed\)"):
        stored_result(path, "run", {"seed": 1, "lengths": (1, 2)})
    with pytest.raises(ValueError, match="entries that no longer exist"):
        stored_result(path, "run", {"seed": 0})

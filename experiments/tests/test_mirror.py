"""Folders that are kept at an address as well (``mirror.py``): a run goes on elsewhere, and who was cut off stops."""

from dataclasses import replace

import pytest

from multistable_experiments.mirror import Mirror
from multistable_experiments.paper import store
from multistable_experiments.paper.reproduce import reproduce
from multistable_experiments.training.checkpoint import Attempt, InUseError, alone_in
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.resume import LAST
from training_runs import QUIET, copy_first_run, numbers

pytest.importorskip("fsspec")
RUN = copy_first_run(epochs=5)


class CutOffError(Exception):
    pass


@pytest.fixture(params=["file", "memory"])
def address(request, tmp_path):
    return f"file://{tmp_path}/mirror" if request.param == "file" else f"memory://{tmp_path.name}"


def options_for(address, stop_after=None, seen=None):
    """Options with a checkpoint at every step; the process dies after an epoch."""

    def after_epoch(record):
        if seen is not None:
            seen.append(record["epoch"])
        if record["epoch"] == stop_after:
            raise CutOffError

    return replace(QUIET, checkpoint_seconds=0, mirror=address, after_epoch=after_epoch)


def test_files_are_copied_there_and_back(address, tmp_path):
    mirror, folder = Mirror(address), tmp_path / "here"
    (folder / "model").mkdir(parents=True)
    for name in ("a", "model/b"):
        (folder / name).write_text(name)
    mirror.put("runs/x", folder, ["a", "model/b"])
    assert mirror.names("runs/x") == ["a", "model/b"]
    assert mirror.names("runs/y") == []
    mirror.get("runs/x", tmp_path / "there")
    assert (tmp_path / "there" / "model" / "b").read_text() == "model/b"
    mirror.remove("runs/x", ["a"])
    assert mirror.names("runs/x") == ["model/b"]


def test_claims_are_numbered_and_are_no_files(address):
    mirror = Mirror(address)
    assert mirror.newest("runs/x") == 0
    assert [mirror.claim("runs/x") for _ in range(3)] == [1, 2, 3]
    assert mirror.newest("runs/x") == 3
    assert mirror.names("runs/x") == []


def test_two_processes_never_get_the_same_claim(address, monkeypatch):
    """Another one is created between reading the newest number and creating the next."""
    mirror, other = Mirror(address), Mirror(address)
    newest, others = Mirror.newest, []

    def late(self, place):
        number = newest(self, place)
        if self is mirror and not others:
            others.append(None)
            others.append(other.claim(place))
        return number

    monkeypatch.setattr(Mirror, "newest", late)
    assert (mirror.claim("runs/x"), others[1]) == (2, 1)


def test_half_a_file_is_not_seen(tmp_path):
    mirror = Mirror(f"file://{tmp_path}")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "last.part-123").write_text("of a process that was killed")
    assert mirror.names("runs/x") == []


def test_an_unknown_address_is_named():
    with pytest.raises(ValueError, match="mirror must be an address that fsspec knows, got 'nowhere://x'"):
        Mirror("nowhere://x")


def test_a_run_goes_on_on_another_machine(address, tmp_path):
    seen = []
    with pytest.raises(CutOffError):
        train_run(RUN, tmp_path / "first", options_for(address, stop_after=2, seen=seen))
    with pytest.raises(CutOffError):
        train_run(RUN, tmp_path / "second", options_for(address, stop_after=4, seen=seen))
    # Back on the first machine, whose own files are older.
    result = train_run(RUN, tmp_path / "first", options_for(address, seen=seen))
    assert seen == [1, 2, 3, 4, 5]
    assert numbers(result) == numbers(train_run(RUN, tmp_path / "alone", QUIET))
    again = train_run(RUN, tmp_path / "third", options_for(address, seen=seen))
    assert again == result
    assert len(seen) == 5, "a finished run is not computed again"


def test_a_machine_that_was_cut_off_does_not_overwrite_its_successor(address, tmp_path):
    mirror, place = Mirror(address), f"runs/{folder_of(RUN, tmp_path).name}"
    kept = []

    def take_over(record):
        if record["epoch"] == 2:
            folder = folder_of(RUN, tmp_path / "second")
            folder.mkdir(parents=True)
            Attempt(folder, mirror)
            kept.append((folder / LAST).read_bytes())

    with pytest.raises(InUseError, match="another process has taken over"):
        train_run(RUN, tmp_path / "first", replace(options_for(address), after_epoch=take_over))
    mirror.get(place, tmp_path / "now")
    assert [(tmp_path / "now" / LAST).read_bytes()] == kept


def test_the_machine_of_the_last_attempt_keeps_its_files(address, tmp_path):
    """They may be newer than those of the mirror."""
    folder = tmp_path / "run"
    folder.mkdir()
    for text in ("published", "newer"):
        with alone_in(folder, Mirror(address)) as attempt:
            (folder / LAST).write_text(text)
            if text == "published":
                attempt.publish()
    with alone_in(folder, Mirror(address)) as attempt:
        assert (folder / LAST).read_text() == "newer"
        (folder / LAST).unlink()
        attempt.publish()
    assert Mirror(address).names(attempt.place) == []


@pytest.mark.extra
def test_results_reach_other_machines(address, tmp_path):
    lines = []

    def compute(machine, **options):
        folders = {"out": tmp_path / machine / "runs", "results": tmp_path / machine / "results"}
        words = {"scale": "smoke", "recipes": ("tuned",), "say": lines.append}
        return reproduce(["copy-first"], **folders, **words, options=replace(QUIET, **options))

    compute("alone")
    summary = compute("first", mirror=address)
    lines.clear()
    assert compute("second", mirror=address).exit_code == 0
    assert lines[0].endswith(f"{summary.planned} are there, 0 to compute")
    found = [
        {record.name: record.metrics for record in store.load(tmp_path / machine / "results", "smoke")}
        for machine in ("alone", "first", "second")
    ]
    assert found[0] == found[1] == found[2]
    mirror = Mirror(address)
    kept = {name.rpartition("/")[2] for name in mirror.names("runs")}
    assert "model.safetensors" in kept
    assert LAST not in kept


def test_a_mirror_is_not_the_folder_itself(tmp_path):
    """It would be emptied before the files are copied back."""
    with pytest.raises(CutOffError):
        train_run(RUN, tmp_path / "runs", replace(options_for(None, 2), mirror=None))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"mirror must be another place than .* itself"):
        train_run(RUN, tmp_path / "runs", options_for(str(tmp_path)))
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ValueError, match="mirror must be an address, got ''"):
        train_run(RUN, tmp_path / "runs", options_for(""))

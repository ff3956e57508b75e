"""The search: the same budget for every layer, validation data alone, all trials stored, resumable."""

import dataclasses
import math
from dataclasses import replace

import pytest

from multistable_experiments.files import read_json
from multistable_experiments.paper import search as module
from multistable_experiments.paper.recipes import BEST, Choice, apply_choice
from multistable_experiments.paper.search import base_run, best, best_choice, path_of, search
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.checkpoint import CheckpointError, InUseError
from multistable_experiments.training.loop import Options, Training
from paper_records import RESULTS
from training_runs import copy_first_run

optuna = pytest.importorskip("optuna")
OPTIONS = Options("cpu", show_progress=False)
end_epoch = Training.end_epoch


@pytest.fixture
def tiny(monkeypatch):
    """Make trials take seconds."""

    def run(task, layer):
        small = copy_first_run(length=5, d_model=4, d_state=4)
        return dataclasses.replace(small, model=dataclasses.replace(small.model, cells=(layer,)), epochs=2)

    monkeypatch.setattr(module, "base_run", run)


def test_all_trials_are_stored_and_the_best_is_chosen(tiny, tmp_path):
    said = []
    choice = search("copy-first", "bmru", 6, tmp_path, tmp_path / "runs", OPTIONS, say=said.append)
    found = read_json(path_of(tmp_path, "copy-first", "bmru"))
    scores = [trial["score"] for trial in found["trials"]]
    assert len(said) == len(scores) == 6
    assert found["best"] == scores.index(min(scores))
    assert choice == best_choice(path_of(tmp_path, "copy-first", "bmru"))
    assert dataclasses.asdict(choice) == found["trials"][found["best"]]["choice"]
    assert len({tuple(trial["parameters"].values()) for trial in found["trials"]}) == 6
    assert not list((tmp_path / "runs").iterdir())


def test_an_interrupted_search_resumes(tiny, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    search("copy-first", "lru", 7, whole, tmp_path / "runs", OPTIONS, say=str)
    for trials in (3, 6, 7):
        search("copy-first", "lru", trials, parts, tmp_path / "runs", OPTIONS, say=str)
    a, b = (read_json(path_of(folder, "copy-first", "lru"))["trials"] for folder in (whole, parts))
    assert [trial["choice"] for trial in a] == [trial["choice"] for trial in b]
    assert [trial["scores"] for trial in a] == [trial["scores"] for trial in b]


def test_a_search_of_other_settings_is_not_continued(tiny, tmp_path, monkeypatch):
    """Such as that of another version, or of another layer whose file was renamed."""
    search("copy-first", "bmru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    path, tiny_run = path_of(tmp_path, "copy-first", "bmru"), module.base_run
    before = path.read_bytes()
    monkeypatch.setattr(module, "base_run", lambda *words: replace(tiny_run(*words), epochs=3))
    with pytest.raises(CheckpointError, match=r"copy-first-bmru\.json belongs to another run"):
        search("copy-first", "bmru", 2, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    assert path.read_bytes() == before


def test_trials_of_another_process_are_not_overwritten(tiny, tmp_path, monkeypatch):
    """It has a folder of runs of its own, so that no lock keeps it away."""
    words, path, run_trial = ("copy-first", "bmru"), path_of(tmp_path, "copy-first", "bmru"), module.run_trial

    def meanwhile(*arguments):
        monkeypatch.setattr(module, "run_trial", run_trial)
        search(*words, 2, tmp_path, tmp_path / "other", OPTIONS, say=str)
        return run_trial(*arguments)

    monkeypatch.setattr(module, "run_trial", meanwhile)
    with pytest.raises(InUseError, match=r"copy-first-bmru\.json is in use: another process has added trials"):
        search(*words, 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    assert len(read_json(path)["trials"]) == 2


@pytest.mark.parametrize("moment", ["in the last epoch", "after the last epoch"])
def test_an_interrupted_trial_keeps_its_earlier_scores(tiny, tmp_path, monkeypatch, moment):
    search("copy-first", "lru", 1, tmp_path / "whole", tmp_path / "runs", OPTIONS, say=str)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    options = replace(OPTIONS, checkpoint_seconds=0)
    with monkeypatch.context() as context:
        if moment == "in the last epoch":
            context.setattr(Training, "end_epoch", lambda self: interrupt() if self.epoch == 1 else end_epoch(self))
        else:
            context.setattr(module.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            search("copy-first", "lru", 1, tmp_path, tmp_path / "runs", options, say=str)
    search("copy-first", "lru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    a, b = (read_json(path_of(folder, "copy-first", "lru"))["trials"] for folder in (tmp_path / "whole", tmp_path))
    assert a[0]["scores"] == b[0]["scores"]
    assert a[0]["score"] == b[0]["score"]


def test_a_trial_that_cannot_be_stored_is_not_trained_again(tiny, tmp_path, monkeypatch):
    """Such as on a full disk."""

    def full(*words):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(module, "write_search", full)
        with pytest.raises(OSError, match="No space left"):
            search("copy-first", "lru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    monkeypatch.setattr(Training, "train_epoch", lambda _: pytest.fail("it is trained again"))
    search("copy-first", "lru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    assert len(read_json(path_of(tmp_path, "copy-first", "lru"))["trials"]) == 1
    assert not list((tmp_path / "runs").iterdir())


def test_a_folder_that_cannot_be_written_is_named_before_the_first_trial(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run_trial", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "search").write_text("")
    with pytest.raises(FileExistsError, match="search"):
        search("copy-first", "lru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)


def test_no_trial_starts_after_the_deadline(tiny, tmp_path):
    assert search("copy-first", "bmru", 3, tmp_path, tmp_path / "runs", OPTIONS, deadline=1e-9, say=str) is None


def test_the_test_set_is_not_used(tiny, tmp_path, monkeypatch):
    asked = []
    samples = CopyFirst.samples

    def watched(self, split, *words):
        asked.append(split)
        return samples(self, split, *words)

    monkeypatch.setattr(CopyFirst, "samples", watched)
    search("copy-first", "bmru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    assert set(asked) == {"train", "valid"}


def test_a_trial_that_diverges_counts_as_the_worst(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "suggest", lambda trial, run: Choice(peak=trial.suggest_float("peak", 1e30, 1e31)))
    search("copy-first", "lru", 1, tmp_path, tmp_path / "runs", OPTIONS, say=str)
    [trial] = read_json(path_of(tmp_path, "copy-first", "lru"))["trials"]
    assert trial["score"] == 10
    assert trial["end"].startswith("the loss is not finite")


@pytest.mark.parametrize("layer", ["bmru", "lru", "hybrid", "mingru", "gru"])
@pytest.mark.parametrize("task", ["mnist", "copy-first"])
def test_the_space_of_a_layer(task, layer):
    """Every layer searches learning rate, dropout and decay; the rest where it applies."""
    run = base_run(task, layer)
    for seed in range(20):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        trial = study.ask()
        choice = module.suggest(trial, run)
        names = set(trial.params)
        assert {"peak", "dropout", "decay"} <= names
        assert ("bmru_decay" in names) == (layer in ("bmru", "hybrid"))
        assert ("slowest" in names) == (layer in ("lru", "hybrid"))
        assert ("everywhere" in names) == (task == "mnist" and layer != "bmru")
        assert 0 <= choice.r_min < choice.r_max <= 1 - 1e-6
        assert choice.r_min <= 0.9999
        apply_choice(run, choice)


def test_best_score_so_far():
    assert best([0.5, math.nan, 0.7, 0.6], larger=True) == 0.7
    assert best([0.5, 0.2, 0.3], larger=False) == 0.2
    assert best([], larger=True) == 0


@pytest.mark.parametrize("path", sorted((RESULTS / "search").glob("*.json")), ids=lambda path: path.stem)
def test_recipes_use_the_settings_found_by_the_search(path):
    found = read_json(path)
    assert BEST[found["task"], found["layer"]] == best_choice(path)
    assert len(found["trials"]) == module.TRIALS

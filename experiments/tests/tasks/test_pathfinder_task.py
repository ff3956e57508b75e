"""The task: sets, normalisation, splits."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch.utils.data import random_split

from multistable_experiments.tasks.base import Task
from multistable_experiments.tasks.pathfinder import Pathfinder, settings, task
from multistable_experiments.tasks.pathfinder.compact import Origin, read
from multistable_experiments.tasks.pathfinder.produce import CompactStore, FolderStore, produce
from multistable_experiments.tasks.pathfinder.splits import lra_split, paper_split, s4_split
from small_data import forget_pathfinder, write_pathfinder

RULES = {"lra": lra_split, "s4": s4_split, "paper": paper_split}
SMALL = Pathfinder(level="intermediate", images=300)


@pytest.fixture(autouse=True)
def forget():
    forget_pathfinder()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with 300 generated images, and the same as a release."""
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    write_pathfinder("intermediate", 300)
    list(produce(FolderStore(task.release_folder()), Origin(settings("intermediate"), seed=0, count=300)))
    return tmp_path


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [10, 999, 200_000])
def test_splits_are_parts_of_the_whole(rule, n):
    parts = RULES[rule](n)
    assert torch.cat(parts).sort().values.equal(torch.arange(n))
    assert all(len(part) > 0 for part in parts)


def test_split_sizes():
    assert [len(part) for part in lra_split(200_000)] == [160_000, 20_000, 20_000]
    assert [len(part) for part in s4_split(200_000)] == [160_000, 20_000, 20_000]
    assert [len(part) for part in paper_split(200_000)] == [162_000, 18_000, 20_000]
    assert [len(part) for part in s4_split(199_999)] == [160_001, 19_999, 19_999]


def test_s4_split_is_that_of_random_split():
    wanted = random_split(range(1003), [803, 100, 100], generator=torch.Generator().manual_seed(42))  # type: ignore[arg-type]
    for found, part in zip(s4_split(1003), wanted, strict=True):
        assert found.tolist() == list(part.indices)


def test_samples_are_parts_of_the_file(data):
    images, labels = read(task.compact_file("intermediate"))
    sets = {split: SMALL.samples(split, seed=0) for split in ("train", "valid", "test")}
    assert [len(s) for s in sets.values()] == [243, 27, 30]
    assert torch.cat([s.stored for s in sets.values()]).numpy().tobytes() == images.tobytes()
    assert torch.cat([s.target for s in sets.values()]).tolist() == labels.tolist()
    assert sets["train"].stored.dtype == torch.uint8
    assert sets["train"].target.dtype == torch.int64
    assert SMALL.samples("train", seed=1).stored.equal(sets["train"].stored)


def test_inputs_have_mean_0_and_deviation_1(data):
    train = SMALL.samples("train", 0)
    x = SMALL.inputs(train.stored)
    assert x.shape == (243, 1024, 1)
    assert x.dtype == torch.float32
    assert abs(float(x.double().mean())) < 1e-6
    assert abs(float(x.double().std(correction=0)) - 1) < 1e-6
    mean, std, pixels = *SMALL.statistics(), train.stored.numpy()
    assert (mean, std) == pytest.approx((np.mean(pixels), np.std(pixels)))
    assert f"mean {mean:.2f}, standard deviation {std:.2f} (the paper: 10.94, 38.51)" in SMALL.report()


def test_the_release_gives_the_same_images(data):
    release = replace(SMALL, source="release")
    assert release.samples("test", 0).stored.equal(SMALL.samples("test", 0).stored)
    assert release.samples("test", 0).target.equal(SMALL.samples("test", 0).target)


def test_a_task_is_plain_data():
    assert Pathfinder(**json.loads(json.dumps(asdict(SMALL)))) == SMALL
    assert isinstance(SMALL, Task)
    assert (SMALL.length, SMALL.pooling, SMALL.d_input, SMALL.d_output) == (1024, "mean", 1, 2)
    output, target = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    assert SMALL.scores(output, target).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"level": "harder"}, "level must be one of easy, intermediate, hard, got 'harder'"),
        ({"size": 48}, "size must be one of 32, 64, 128, got 48"),
        ({"source": "web"}, "source must be one of generated, release, got 'web'"),
        ({"rule": "half"}, "rule must be one of paper, lra, s4, got 'half'"),
        ({"images": 3}, "images must be an integer of at least 10, got 3"),
    ],
)
def test_a_task_names_what_is_wrong(words, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        Pathfinder(**words)


def test_missing_images_are_named(data):
    with pytest.raises(
        FileNotFoundError, match=r"hard32\.npz does not exist: write it with .* --level hard --size 32`"
    ):
        Pathfinder().samples("train", 0)
    with pytest.raises(ValueError, match=r"intermediate32\.npz holds 300 images .* expected 400"):
        replace(SMALL, images=400).samples("train", 0)


def test_images_of_other_settings_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    few = Origin(settings("intermediate", distractors=3), seed=0, count=300)
    list(produce(CompactStore(task.compact_file("intermediate")), few))
    with pytest.raises(
        ValueError, match="3 distractors, seed 0, expected intermediate images with the settings of LRA"
    ):
        SMALL.samples("train", 0)

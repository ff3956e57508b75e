"""The task: sets, normalisation, splits."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch.utils.data import random_split

from multistable_experiments.tasks import Pathfinder, Task
from multistable_experiments.tasks.pathfinder.generated import generated_file, read
from multistable_experiments.tasks.pathfinder.task import split_rows
from small_data import forget_pathfinder, write_pathfinder, write_release

SMALL = Pathfinder(level="intermediate", images=300)


@pytest.fixture(autouse=True)
def clear_cache():
    forget_pathfinder()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with 300 generated images."""
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    write_pathfinder("intermediate", 300)
    return tmp_path


@pytest.mark.parametrize("rule", ["paper", "lra", "s4"])
@pytest.mark.parametrize("n", [10, 999, 200_000])
def test_splits_partition_the_samples(rule, n):
    parts = split_rows(n, rule)
    assert torch.cat(parts).sort().values.equal(torch.arange(n))
    assert all(len(part) > 0 for part in parts)
    if rule != "s4":
        assert torch.cat(parts).equal(torch.arange(n))


def test_split_sizes():
    assert [len(part) for part in split_rows(200_000, "lra")] == [160_000, 20_000, 20_000]
    assert [len(part) for part in split_rows(200_000, "s4")] == [160_000, 20_000, 20_000]
    assert [len(part) for part in split_rows(200_000, "paper")] == [162_000, 18_000, 20_000]
    assert [len(part) for part in split_rows(199_999, "s4")] == [160_001, 19_999, 19_999]


def test_s4_split_matches_random_split():
    expected = random_split(range(1003), [803, 100, 100], generator=torch.Generator().manual_seed(42))  # type: ignore[arg-type]
    for rows, part in zip(split_rows(1003, "s4"), expected, strict=True):
        assert rows.tolist() == list(part.indices)


def test_more_images_train_and_leave_the_other_sets_alone(data):
    few, more = replace(SMALL, images=200), replace(SMALL, images=200, more_images=100)
    stored = torch.from_numpy(read(generated_file("intermediate")).images).flatten(1)
    for split in ("valid", "test"):
        assert torch.equal(more.samples(split, 0).stored, few.samples(split, 0).stored)
    assert torch.equal(more.samples("train", 0).stored, torch.cat([few.samples("train", 0).stored, stored[200:]]))
    with pytest.raises(ValueError, match="holds 300 images of the level intermediate, expected 301"):
        replace(SMALL, images=200, more_images=101).samples("train", 0)


def test_augmented_images_are_rotated_and_mirrored(data):
    images = SMALL.samples("train", 0).stored
    assert torch.equal(SMALL.augment(images), images)
    torch.manual_seed(0)
    changed = replace(SMALL, augmented=True).augment(images)
    seen = set()
    for before, after in zip(images.view(-1, 32, 32), changed.view(-1, 32, 32), strict=True):
        ways = [before.rot90(k).flip(1) if mirrored else before.rot90(k) for k in range(4) for mirrored in (0, 1)]
        [way] = [i for i, x in enumerate(ways) if torch.equal(x, after)]
        seen.add(way)
    assert seen == set(range(8))


def test_samples_come_from_the_file(data):
    stored = read(generated_file("intermediate"))
    sets = {split: SMALL.samples(split, seed=0) for split in ("train", "valid", "test")}
    assert [len(s) for s in sets.values()] == [243, 27, 30]
    assert torch.cat([s.stored for s in sets.values()]).numpy().tobytes() == stored.images.tobytes()
    assert torch.cat([s.target for s in sets.values()]).tolist() == stored.labels.tolist()
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
    write_release("intermediate", 300)
    release = replace(SMALL, source="release")
    assert release.samples("test", 0).stored.equal(SMALL.samples("test", 0).stored)
    assert release.samples("test", 0).target.equal(SMALL.samples("test", 0).target)


def test_an_incomplete_release_raises(data):
    """A missing batch, or a missing line of metadata."""
    root = write_release("intermediate", 300, batch_size=100)
    (root / "metadata" / "1.npy").unlink()
    with pytest.raises(ValueError, match="pathfinder32 holds 200 images of the level intermediate, expected 300"):
        replace(SMALL, source="release").samples("train", 0)


def test_a_task_is_plain_data():
    assert Pathfinder(**json.loads(json.dumps(asdict(SMALL)))) == SMALL
    assert isinstance(SMALL, Task)
    assert (SMALL.length, SMALL.pooling, SMALL.d_input, SMALL.d_output) == (1024, "mean", 1, 2)
    output, target = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    assert SMALL.scores(output, target).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"level": "harder"}, "level must be one of easy, intermediate, hard, got 'harder'"),
        ({"size": 64}, "size must be one of 32, got 64"),
        ({"source": "web"}, "source must be one of generated, release, got 'web'"),
        ({"rule": "half"}, "rule must be one of paper, lra, s4, got 'half'"),
        ({"images": 3}, "images must be an integer of at least 10, got 3"),
    ],
)
def test_bad_values_raise(values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Pathfinder(**values)


def test_missing_images_raise(data):
    with pytest.raises(FileNotFoundError, match=r"hard32\.npz does not exist: write it with .* --level hard`"):
        Pathfinder().samples("train", 0)
    with pytest.raises(ValueError, match=r"intermediate32\.npz holds 300 images .* expected 400: write it with"):
        replace(SMALL, images=400).samples("train", 0)
    with pytest.raises(FileNotFoundError, match="--level hard --count 1000000`"):
        Pathfinder(more_images=800_000).samples("train", 0)


def test_images_of_another_level_raise(data):
    generated_file("intermediate").rename(generated_file("easy"))
    with pytest.raises(ValueError, match=r"easy32\.npz must hold easy images, got intermediate ones"):
        Pathfinder("easy", images=300).samples("train", 0)

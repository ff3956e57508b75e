"""Tasks: the inputs are what the paper describes, sets are reproducible and disjoint, streams equal whole sequences."""

import dataclasses
import json
import math

import pytest
import torch

from multistable_experiments.tasks import TASKS, CopyFirst, HoldBit, Streamed
from multistable_experiments.tasks.seeds import derive

STREAMED = [HoldBit(length=7, train_samples=40), CopyFirst(length=7, train_samples=100, test_samples=30)]
SPLITS = ("train", "valid", "test")


@pytest.mark.parametrize("task", STREAMED, ids=lambda task: task.name)
def test_samples_have_the_announced_shape(task):
    for split in SPLITS:
        samples = task.samples(split, seed=0)
        x = task.inputs(samples.stored)
        assert x.shape == (len(samples), task.length, task.d_input)
        assert x.dtype == torch.float32
        assert samples.target.shape == (len(samples),)
        output = torch.zeros(len(samples), task.d_output)
        assert task.losses(output, samples.target).shape == task.scores(output, samples.target).shape == (len(samples),)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_survives_json(task):
    values = json.loads(json.dumps(dataclasses.asdict(task())))
    assert task(**values) == task()


def test_hold_bit_is_the_bit_then_zeros():
    task = HoldBit(length=5, train_samples=8)
    samples = task.samples("train", seed=0)
    x = task.inputs(samples.stored)
    assert torch.equal(x[:, 0, 0], samples.target)
    assert not x[:, 1:].any()
    assert sorted(samples.target.unique().tolist()) == [-1, 1]
    assert task.samples("test", seed=0).target.tolist() == [1, -1]


def test_copy_first_is_the_paper_s():
    """r_1 from N(0, 1), later ones from N(0, noise^2), a flag at the first timestep only, target r_1."""
    task = CopyFirst(length=50, noise=0.1, train_samples=4000)
    samples = task.samples("train", seed=0)
    r, flag = task.inputs(samples.stored).unbind(-1)
    assert torch.equal(r[:, 0], samples.target)
    assert torch.equal(flag[:, 0], torch.ones(3600))
    assert not flag[:, 1:].any()
    assert r[:, 0].std() == pytest.approx(1, rel=0.05)
    assert r[:, 1:].std() == pytest.approx(0.1, rel=0.02)
    assert r.mean().abs() < 0.01
    assert task.losses(torch.zeros(3600, 1), samples.target).mean() == pytest.approx(1, rel=0.1)


def test_copy_first_sizes():
    task = CopyFirst(length=2)
    assert [len(task.samples(split, seed=0)) for split in SPLITS] == [54_000, 6_000, 60_000]


def test_same_seed_same_samples_and_no_sample_twice():
    task = STREAMED[1]
    sets = {split: task.samples(split, seed=3) for split in SPLITS}
    for split, samples in sets.items():
        assert torch.equal(samples.stored, task.samples(split, seed=3).stored)
        assert not torch.equal(samples.stored, task.samples(split, seed=4).stored)
    rows = torch.cat([samples.stored for samples in sets.values()])
    assert len(rows.unique(dim=0)) == len(rows) == 130


def test_streams_of_other_lengths_seeds_and_sizes_are_other_streams():
    words = (10, 4, 0), (11, 4, 0), (10, 5, 0), (10, 4, 1), (10, 4, 0)
    draws = [CopyFirst().stream(*each)[0][:4] for each in words]
    assert torch.equal(draws[0], draws[-1])
    assert len({tuple(target.tolist()) for target in draws}) == 4


@pytest.mark.parametrize("task", STREAMED, ids=lambda task: task.name)
@pytest.mark.parametrize("length", [1, 1000, 1001, 10_500])
def test_streams_have_all_timesteps_and_one_beginning(task, length):
    assert isinstance(task, Streamed)
    target, pieces = task.stream(length, samples=4, seed=0)
    pieces = list(pieces)
    x = torch.cat(pieces, dim=1)
    assert x.shape == (4, length, task.d_input)
    assert torch.equal(x[:, 0, 0], target)
    assert max(piece.shape[1] for piece in pieces) <= 10_000
    if task.d_input == 2:
        assert x[:, :, 1].sum() == 4
        assert torch.equal(x[:, 0, 1], torch.ones(4))
    else:
        assert not x[:, 1:].any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CopyFirst(length=0), "length must be a positive integer, got 0"),
        (lambda: CopyFirst(noise=-1.0), "noise must be a finite standard deviation >= 0, got -1.0"),
        (lambda: CopyFirst(noise=math.inf), "noise must be a finite standard deviation >= 0, got inf"),
        (lambda: HoldBit(train_samples=1), "train_samples must be an integer of at least 2, got 1"),
    ],
)
def test_wrong_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_derived_seeds_do_not_collide():
    seeds = {derive(seed, word, i) for seed in range(20) for word in ("order", "step") for i in range(50)}
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)

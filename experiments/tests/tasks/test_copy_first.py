"""Copy-first-input: the paper's inputs, reproducible and disjoint sets, independent streams."""

import math

import pytest
import torch

from multistable_experiments.tasks import CopyFirst

SPLITS = ("train", "valid", "test")


def test_inputs_match_the_paper():
    """r_1 is from N(0, 1), later r_t from N(0, noise^2); only the first timestep has a flag; the target is r_1."""
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


def test_sizes_of_the_sets():
    task = CopyFirst(length=2)
    assert [len(task.samples(split, seed=0)) for split in SPLITS] == [54_000, 6_000, 60_000]


def test_same_seed_same_samples_and_no_sample_twice():
    task = CopyFirst(length=7, train_samples=100, test_samples=30)
    sets = {split: task.samples(split, seed=3) for split in SPLITS}
    for split, samples in sets.items():
        assert torch.equal(samples.stored, task.samples(split, seed=3).stored)
        assert not torch.equal(samples.stored, task.samples(split, seed=4).stored)
    rows = torch.cat([samples.stored for samples in sets.values()])
    assert len(rows.unique(dim=0)) == len(rows) == 130


def test_streams_differ_with_length_seed_and_size():
    words = (10, 4, 0), (11, 4, 0), (10, 5, 0), (10, 4, 1), (10, 4, 0)
    draws = [CopyFirst().stream(*each)[0][:4] for each in words]
    assert torch.equal(draws[0], draws[-1])
    assert len({tuple(target.tolist()) for target in draws}) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"length": 0}, "length must be a positive integer, got 0"),
        ({"noise": -1.0}, "noise must be a finite standard deviation >= 0, got -1.0"),
        ({"noise": math.inf}, "noise must be a finite standard deviation >= 0, got inf"),
    ],
)
def test_bad_numbers_raise(values, message):
    with pytest.raises(ValueError, match=message):
        CopyFirst(**values)

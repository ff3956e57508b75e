"""Hold-a-bit: the bit, then zeros."""

import pytest
import torch

from multistable_experiments.tasks import HoldBit


def test_inputs_are_the_bit_then_zeros():
    task = HoldBit(length=5, train_samples=8)
    samples = task.samples("train", seed=0)
    x = task.inputs(samples.stored)
    assert torch.equal(x[:, 0, 0], samples.target)
    assert not x[:, 1:].any()
    assert sorted(samples.target.unique().tolist()) == [-1, 1]
    assert task.samples("test", seed=0).target.tolist() == [1, -1]


def test_too_few_samples_raise():
    with pytest.raises(ValueError, match="train_samples must be an integer of at least 2, got 1"):
        HoldBit(train_samples=1)

"""What all tasks share: shapes, JSON, streams, loss and metric."""

import dataclasses
import json

import pytest
import torch

from multistable_experiments.tasks import MNIST, TASKS, CopyFirst, HoldBit, Streamed

STREAMED = [HoldBit(length=7, train_samples=40), CopyFirst(length=7, train_samples=100, test_samples=30)]


@pytest.mark.parametrize("task", STREAMED, ids=lambda task: task.name)
def test_samples_have_the_announced_shape(task):
    for split in ("train", "valid", "test"):
        samples = task.samples(split, seed=0)
        x = task.inputs(samples.stored)
        assert x.shape == (len(samples), task.length, task.d_input)
        assert x.dtype == torch.float32
        assert samples.target.shape == (len(samples),)
        output = torch.zeros(len(samples), task.d_output)
        assert task.losses(output, samples.target).shape == task.scores(output, samples.target).shape == (len(samples),)


def test_loss_and_metric_of_numbers_are_squared_errors():
    output, target = torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.5])
    assert CopyFirst().losses(output, target).tolist() == CopyFirst().scores(output, target).tolist() == [4.0, 0.25]


def test_loss_and_metric_of_classes_are_cross_entropy_and_accuracy():
    """Three samples of three classes, of which the first two are right."""
    shares, target = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.1, 0.7, 0.2]]), torch.tensor([0, 2, 2])
    assert MNIST().scores(shares.log(), target).tolist() == [1.0, 1.0, 0.0]
    torch.testing.assert_close(MNIST().losses(shares.log(), target), -torch.tensor([0.7, 0.7, 0.2]).log())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_task_survives_json(task):
    values = json.loads(json.dumps(dataclasses.asdict(task())))
    assert task(**values) == task()


@pytest.mark.parametrize("task", STREAMED, ids=lambda task: task.name)
@pytest.mark.parametrize("length", [1, 1000, 1001, 10_500])
def test_streams_have_all_timesteps_and_start_once(task, length):
    assert isinstance(task, Streamed)
    target, chunks = task.stream(length, samples=4, seed=0)
    chunks = list(chunks)
    x = torch.cat(chunks, dim=1)
    assert x.shape == (4, length, task.d_input)
    assert torch.equal(x[:, 0, 0], target)
    assert max(chunk.shape[1] for chunk in chunks) <= 10_000
    if task.d_input == 2:
        assert x[:, :, 1].sum() == 4
        assert torch.equal(x[:, 0, 1], torch.ones(4))
    else:
        assert not x[:, 1:].any()

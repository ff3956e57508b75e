"""Evaluation with any batch size, and streams that match whole sequences."""

import pytest
import torch

from multistable.models import build_model
from multistable_experiments.tasks import MNIST, CopyFirst, Samples
from multistable_experiments.training.evaluate import Evaluator, evaluate_stream, streamed
from training_runs import ALONE, copy_first_run


@pytest.mark.parametrize("samples", [3, 40])
def test_evaluation_does_not_depend_on_the_batch_size(samples):
    run = copy_first_run(("lru", "bmru"))
    model = build_model(run.model)
    data = run.task.samples("test", 0)
    data = Samples(data.stored[:samples], data.target[:samples])
    whole, parts = (Evaluator(run.task, model, size, "float32", ALONE)(data) for size in (samples, 7))
    assert whole == pytest.approx(parts, rel=1e-5)
    assert model.training


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_an_evaluation_uses_no_dropout_and_leaves_the_model_in_its_mode(training):
    run = copy_first_run(dropout=0.5)
    model = build_model(run.model).train(training)
    found = [Evaluator(run.task, model, 7, "float32", ALONE)(run.task.samples("test", 0)) for _ in range(2)]
    assert found[0] == found[1]
    assert model.training is training


@pytest.mark.parametrize("length", [1, 999, 2500])
def test_a_stream_equals_the_whole_sequence(length):
    model = build_model(copy_first_run(("lru", "bmru")).model).double().eval()
    task = CopyFirst(length=length)
    target, chunks = task.stream(length, samples=5, seed=0)
    with torch.no_grad():
        output, _ = model(torch.cat(list(chunks), dim=1).double())

    class Wide(CopyFirst):
        """The same stream in float64, so that no gate flips."""

        def stream(self, length, samples, seed):
            target, chunks = super().stream(length, samples, seed)
            return target.double(), (chunk.double() for chunk in chunks)

    found = evaluate_stream(Wide(length=length), model, length, samples=5, seed=0, batch_size=2)
    assert found.loss == pytest.approx(float(task.losses(output, target).mean()), rel=1e-6)


def test_a_stream_leaves_the_model_unchanged():
    """It runs in evaluation mode even if the model is in training mode."""
    run = copy_first_run(dropout=0.5)
    model = build_model(run.model).train()
    found = [evaluate_stream(run.task, model, 20, 3, 0) for _ in range(2)]
    assert found[0] == found[1]
    assert model.training


def test_an_empty_stream_raises():
    """It would have no output."""
    run = copy_first_run()
    with pytest.raises(ValueError, match="length must be a positive integer, got 0"):
        evaluate_stream(run.task, build_model(run.model), 0, samples=5, seed=0)


def test_tasks_without_streams_raise():
    with pytest.raises(ValueError, match=r"other lengths need a task that streams .*, got MNIST\("):
        streamed(MNIST())

"""Training steps: a bad loss changes nothing, losses are not rounded, a compiled model rounds like an eager one."""

import math
from dataclasses import replace

import pytest
import torch

from multistable.models import build_model
from multistable.models.norm import BatchNorm
from multistable_experiments.tasks import CopyFirst, Samples
from multistable_experiments.tasks.base import Classification
from multistable_experiments.training.evaluate import Evaluator
from multistable_experiments.training.optim import build_optimizer
from multistable_experiments.training.step import Stepper, compile_anew
from training_runs import ALONE, copy_first_run


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_model_rounds_like_eager():
    """Small products added to a large number: bfloat16 loses digits that batch norm would amplify."""
    torch.manual_seed(0)
    norm, weight = BatchNorm(64).train(), 1e-2 * torch.randn(64)
    x = torch.randn(64, 40, 1)

    def forward(x):
        return norm((1 + x * weight).to(torch.bfloat16)).float()

    expected, actual = forward(x), compile_anew(forward)(x)
    assert (actual - expected).square().mean() < 1e-4 * expected.square().mean()


@pytest.fixture
def stepper():
    """Steps on 5 samples each; sample 7 is NaN."""
    run = copy_first_run()
    model = build_model(run.model)
    samples = run.task.samples("train", 0)
    samples.stored[7] = math.nan
    return Stepper(run.task, model, build_optimizer(model, run.decay), samples, 5, "float32", ALONE)


def changes(stepper, rows):
    """Whether a step on these samples changes any parameter."""
    before = [parameter.detach().clone() for parameter in stepper.parameters]
    stepper(torch.tensor(rows), 1e-3)
    return any(not torch.equal(a, b) for a, b in zip(before, stepper.parameters, strict=True))


def test_no_parameter_changes_after_the_first_bad_loss(stepper):
    assert changes(stepper, [0, 1, 2, 3, 4])
    assert not changes(stepper, [5, 6, 7, 8, 9])
    assert not changes(stepper, [10, 11, 12, 13, 14])
    assert int(stepper.bad_step) == 1
    assert all(parameter.isfinite().all() for parameter in stepper.parameters)


def test_a_bad_first_loss_changes_no_parameter(stepper):
    assert not changes(stepper, [5, 6, 7, 8, 9])
    assert int(stepper.bad_step) == 0


def test_the_first_bad_step_is_remembered(stepper):
    """Also if it is step 0 and later losses are bad, too."""
    for rows in ([5, 6, 7, 8, 9], [7, 0, 1, 2, 3]):
        assert not changes(stepper, rows)
    assert int(stepper.bad_step) == 0


def test_an_infinite_loss_is_bad_too(stepper):
    stepper.samples.target[3] = math.inf
    assert not changes(stepper, [0, 1, 2, 3, 4])
    assert int(stepper.bad_step) == 0


def test_a_bad_step_is_counted_from_the_beginning_of_its_epoch(stepper):
    for rows in ([0, 1, 2, 3, 4], [10, 11, 12, 13, 14]):
        assert changes(stepper, rows)
    stepper.start_epoch()
    assert not changes(stepper, [5, 6, 7, 8, 9])
    assert int(stepper.bad_step) == 0


def test_totals_cover_one_epoch(stepper):
    totals = []
    for _ in range(2):
        stepper.start_epoch()
        stepper(torch.arange(5), 0.0)
        totals.append(stepper.totals.tolist())
    assert totals[0] == totals[1]


class FirstIsPositive(Classification):
    """Copy-first-input as a binary classification."""

    def samples(self, split, seed, device="cpu"):
        found = CopyFirst(8, test_samples=50).samples(split, seed, device)
        return Samples(found.stored, (found.target > 0).long())

    def inputs(self, stored):
        return CopyFirst().inputs(stored)


def test_losses_of_bfloat16_models_are_not_rounded():
    """The model rounds, but its loss and metric do not, in training and in evaluation."""
    task, run = FirstIsPositive(), copy_first_run(("lru", "bmru"))
    model = build_model(replace(run.model, d_output=2))
    data = task.samples("test", 0)

    def expected():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = model(task.inputs(data.stored))
        return task.losses(output.float(), data.target).mean().item()

    stepper = Stepper(task, model, build_optimizer(model, run.decay), data, len(data), "bfloat16", ALONE)
    wanted = expected()
    stepper(torch.arange(len(data)), 1e-3)
    assert stepper.totals[0].item() == pytest.approx(wanted, rel=1e-6)
    found = Evaluator(task, model, len(data), "bfloat16", ALONE)(data)
    model.eval()
    assert found.loss == pytest.approx(expected(), rel=1e-6)

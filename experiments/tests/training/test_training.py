"""The loop: it learns, equal runs give equal numbers, NaN stops it and is located, results are complete."""

import json
import math
from dataclasses import replace

import pytest
import torch

from multistable.models import SequenceModel, build_model
from multistable.models.norm import BatchNorm
from multistable_experiments.paper.experiments import plan
from multistable_experiments.tasks import CopyFirst, Samples
from multistable_experiments.tasks.base import Classification
from multistable_experiments.training import NonFiniteLossError, Schedule, checkpoint, train_run
from multistable_experiments.training.diagnose import first_bad_layer
from multistable_experiments.training.evaluate import Evaluator, evaluate_stream
from multistable_experiments.training.loop import Training, worth_compiling
from multistable_experiments.training.optim import build_optimizer
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.step import Stepper, compile_anew
from multistable_experiments.training.trained import evaluate_lengths, load_trained
from training_runs import FAST, QUIET, copy_first_run, hold_bit_run, numbers

ALONE = Processes(torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cell", ["bmru", "hybrid"])
def test_hold_bit_is_solved_and_held_for_a_hundred_thousand_steps(tmp_path, cell):
    run = hold_bit_run((cell,))
    result = train_run(run, tmp_path, QUIET)
    assert result["metrics"]["best"]["test_mse"] < 1e-3
    if cell == "bmru":
        [record] = evaluate_lengths(folder_of(run, tmp_path), [100_000], samples=2)
        assert record["mse"] < 1e-3


def test_copy_first_is_learned_by_bmru(tmp_path):
    """T = 20: the mean squared error falls from 1 to less than 0.05."""
    run = copy_first_run(("bmru", "bmru"), length=20, samples=4_000, d_model=32, d_state=32, epochs=8, batch_size=32)
    result = train_run(run, tmp_path, QUIET)
    assert result["history"][0]["train_mse"] > 0.2
    assert result["metrics"]["last"]["test_mse"] < 0.05


def test_same_seed_same_numbers_other_seed_others(tmp_path):
    run = copy_first_run(("hybrid", "bmru"), dropout=0.2)
    first, second = (numbers(train_run(run, tmp_path / name, QUIET)) for name in ("a", "b"))
    assert first == second
    assert numbers(train_run(replace(run, seed=1), tmp_path, QUIET)) != first


def test_a_finished_run_is_not_computed_again(tmp_path):
    run = copy_first_run()
    result = train_run(run, tmp_path, QUIET)
    path = folder_of(run, tmp_path) / "result.json"
    path.write_text(json.dumps({**result, "marked": True}))
    assert train_run(run, tmp_path, QUIET)["marked"]


def test_the_result_says_what_where_and_how_long(tmp_path):
    run = copy_first_run()
    result = train_run(run, tmp_path, QUIET)
    folder = folder_of(run, tmp_path)
    assert json.loads((folder / "result.json").read_text()) == result
    assert result["id"] == run.id
    assert result["run"] == run.to_dict() == json.loads((folder / "run.json").read_text())
    assert result["seconds"] > 0
    assert result["machine"]["device"] == "cpu"
    assert result["options"] == {"graph": False, "compiled": False}, "what was done, not what was asked"
    assert {"python", "torch", "multistable", "commit"} <= result["machine"].keys()
    assert result["parameters"] == sum(p.numel() for p in build_model(run.model).parameters())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == result["history"]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["rate"] == run.schedule.end


def test_best_is_the_best_on_validation_and_can_be_loaded(tmp_path):
    run = copy_first_run(epochs=6, seed=0, schedule=Schedule(5e-2, 5e-2, 5e-2, 0))
    result = train_run(run, tmp_path, QUIET)
    scores = [record["valid_mse"] for record in result["history"]]
    best = result["metrics"]["best"]
    assert best["epoch"] == scores.index(min(scores)) + 1 != 6
    for which, values in result["metrics"].items():
        again, model = load_trained(folder_of(run, tmp_path), which)
        assert again == run
        found = Evaluator(run.task, model, 20, "float32", ALONE)(run.task.samples("test", run.seed))
        assert found.score == values["test_mse"]
    exported = SequenceModel.from_pretrained(folder_of(run, tmp_path) / "model")
    found = Evaluator(run.task, exported, 20, "float32", ALONE)(run.task.samples("test", run.seed))
    assert found.score == best["test_mse"]


@pytest.mark.parametrize(
    ("graph", "configuration", "expected"),
    [
        (True, "bmru-2-blocks", True),
        (True, "bmru-T300", True),
        (True, "bmru-T100", False),
        (False, "bmru-2-blocks", False),
    ],
)
def test_long_runs_are_compiled(graph, configuration, expected):
    [run] = [experiment.run for experiment in plan() if experiment.configuration == configuration]
    assert worth_compiling(graph, build_model(run.model), 54_000 * run.epochs * run.task.length) == expected


@pytest.mark.parametrize(
    ("cell", "expected"), [("lru", True), ("hybrid", True), ("mingru", True), ("brc", False), ("gru", False)]
)
def test_loops_over_time_are_not_compiled(cell, expected):
    model = build_model(copy_first_run(("bmru", cell)).model)
    assert worth_compiling(True, model, 10**10) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_rounds_where_the_model_does():
    """Small products beside a large number, of which bfloat16 loses digits that batch norm would make visible."""
    torch.manual_seed(0)
    norm, weight = BatchNorm(64).train(), 1e-2 * torch.randn(64)
    x = torch.randn(64, 40, 1)

    def forward(x):
        return norm((1 + x * weight).to(torch.bfloat16)).float()

    expected, actual = forward(x), compile_anew(forward)(x)
    assert (actual - expected).square().mean() < 1e-4 * expected.square().mean()


@pytest.mark.parametrize("cells", [("lru", "bmru"), ("bmru", "mru:simplified_brc"), ("hysteresis", "clocked:brc:2")])
def test_nan_is_stopped_with_epoch_step_and_layer(tmp_path, cells):
    """Weights of 1e30 after the first step: the second forward pass overflows in the first block."""
    run = copy_first_run(cells, schedule=Schedule(1e30, 1e30, 1e30, 0))
    with pytest.raises(NonFiniteLossError, match=r"in epoch 1, step 2: first in the layer \S+ \(\w+\)"):
        train_run(run, tmp_path, QUIET)
    assert not (folder_of(run, tmp_path) / "last.safetensors").exists()


def test_no_state_with_a_bad_loss_is_saved(tmp_path):
    """A checkpoint after every step: the last one is that before the bad step, and leads there again."""
    run = copy_first_run(("lru", "bmru"), schedule=Schedule(1e30, 1e30, 1e30, 0))
    for _ in range(2):
        with pytest.raises(NonFiniteLossError, match="in epoch 1, step 2"):
            train_run(run, tmp_path, replace(QUIET, checkpoint_seconds=0))
        _, info = checkpoint.load(folder_of(run, tmp_path) / "last.safetensors")
        assert (info["epoch"], info["step"]) == (0, 1)


def test_the_first_bad_layer_is_named():
    model = build_model(copy_first_run(("bmru", "lru")).model)
    x = torch.randn(4, 8, 2)
    assert "appeared in the loss" in first_bad_layer(model, x)
    assert "input of the model" in first_bad_layer(model, x / 0)
    with torch.no_grad():
        model.blocks[1].glu.weight[0, 0] = math.nan
    assert first_bad_layer(model, x) == (
        "first in the layer blocks.1.glu (Linear), whose parameters weight are not finite"
    )


def test_from_the_first_bad_loss_on_no_parameter_changes():
    run = copy_first_run()
    model = build_model(run.model)
    optimizer = build_optimizer(model, run.decay)
    samples = run.task.samples("train", 0)
    samples.stored[7] = math.nan
    stepper = Stepper(run.task, model, optimizer, samples, 5, "float32", ALONE)

    def step(rows):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        stepper(torch.tensor(rows), 1e-3)
        return any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    assert step([0, 1, 2, 3, 4])
    assert not step([5, 6, 7, 8, 9])
    assert not step([10, 11, 12, 13, 14])
    assert int(stepper.bad_step) == 1
    assert all(parameter.isfinite().all() for parameter in model.parameters())


class FirstIsPositive(Classification):
    """Copy-first-input as a question."""

    def samples(self, split, seed, device="cpu"):
        found = CopyFirst(8, test_samples=50).samples(split, seed, device)
        return Samples(found.stored, (found.target > 0).long())

    def inputs(self, stored):
        return CopyFirst().inputs(stored)


def test_losses_of_bfloat16_models_are_not_rounded():
    """The model rounds, what measures it does not: in training and in evaluation."""
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


@pytest.mark.parametrize("samples", [3, 40])
def test_evaluation_does_not_depend_on_the_batch_size(samples):
    run = copy_first_run(("lru", "bmru"))
    model = build_model(run.model)
    data = run.task.samples("test", 0)
    data = Samples(data.stored[:samples], data.target[:samples])
    whole, parts = (Evaluator(run.task, model, size, "float32", ALONE)(data) for size in (samples, 7))
    assert whole == pytest.approx(parts, rel=1e-5)
    assert model.training


@pytest.mark.parametrize("length", [1, 999, 2500])
def test_a_stream_equals_the_whole_sequence(length):
    model = build_model(copy_first_run(("lru", "bmru")).model).double().eval()
    task = CopyFirst(length=length)
    target, pieces = task.stream(length, samples=5, seed=0)
    with torch.no_grad():
        output, _ = model(torch.cat(list(pieces), dim=1).double())

    class Wide(CopyFirst):
        """The same stream in float64, so that no gate flips."""

        def stream(self, length, samples, seed):
            target, pieces = super().stream(length, samples, seed)
            return target.double(), (piece.double() for piece in pieces)

    found = evaluate_stream(Wide(length=length), model, length, samples=5, seed=0, batch_size=2)
    assert found.loss == pytest.approx(float(task.losses(output, target).mean()), rel=1e-6)


def test_a_stream_leaves_the_model_as_it_was():
    """It is read in evaluation mode, though the model is in training."""
    run = copy_first_run(dropout=0.5)
    model = build_model(run.model).train()
    found = [evaluate_stream(run.task, model, 20, 3, 0) for _ in range(2)]
    assert found[0] == found[1]
    assert model.training


def test_a_score_of_nan_is_never_the_best(tmp_path):
    training = Training(copy_first_run(), tmp_path, QUIET, ALONE)
    assert not training.is_best(math.nan)
    assert training.is_best(0.5)
    training.best = {"epoch": 1, "score": 0.5}
    assert [training.is_best(score) for score in (math.nan, 0.6, 0.5, 0.4)] == [False, False, False, True]


def test_dropout_differs_between_processes(tmp_path):
    drawn = []
    for rank in (0, 1):
        Training(copy_first_run(), tmp_path, QUIET, Processes(torch.device("cpu"), rank)).seed_step()
        drawn.append(torch.rand(5).tolist())
    assert drawn[0] != drawn[1]


def test_bfloat16_trains_too(tmp_path):
    result = train_run(hold_bit_run(precision="bfloat16", epochs=6, schedule=FAST), tmp_path, QUIET)
    assert result["metrics"]["best"]["test_mse"] < 0.05


@pytest.mark.parametrize("batch_size", [181, 1000])
def test_a_batch_larger_than_the_training_set_is_refused(tmp_path, batch_size):
    with pytest.raises(ValueError, match=f"batch_size must not exceed the 180 training samples, got {batch_size}"):
        train_run(copy_first_run(batch_size=batch_size), tmp_path, QUIET)


def test_stream_of_no_length_is_refused():
    """It would have no output, and no error."""
    run = copy_first_run()
    with pytest.raises(ValueError, match="length must be a positive integer, got 0"):
        evaluate_stream(run.task, build_model(run.model), 0, samples=5, seed=0)

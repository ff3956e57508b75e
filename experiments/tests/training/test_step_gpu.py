"""The step as one CUDA graph: the same numbers as eagerly, new dropout in every replay, NaN still detected."""

from dataclasses import replace

import pytest
import torch

from multistable.models import PositionConfig, build_model
from multistable_experiments.training.evaluate import Evaluator
from multistable_experiments.training.loop import NonFiniteLossError, train_run
from multistable_experiments.training.optim import build_optimizer
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.run import Schedule
from multistable_experiments.training.step import Stepper, autocast, compile_anew
from training_runs import QUIET, copy_first_run, hold_bit_run, numbers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GRAPH = replace(QUIET, device="cuda")
EAGER = replace(GRAPH, graph=False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_graph_equals_eager(tmp_path, precision):
    run = copy_first_run(("bmru", "lru", "hybrid"), d_model=32, d_state=32, precision=precision)
    run = replace(run, model=replace(run.model, position=PositionConfig(T=8)))
    eager, graph = (train_run(run, tmp_path / str(way.graph), way) for way in (EAGER, GRAPH))
    for one, other in zip(eager["history"], graph["history"], strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
    assert eager["machine"]["gpu"]


@pytest.mark.parametrize("compiled", [False, True])
def test_same_seed_same_numbers(tmp_path, compiled):
    run = copy_first_run(("bmru", "bmru"), d_model=32, d_state=32, dropout=0.1, precision="bfloat16")
    way = replace(GRAPH, compiled=compiled)
    first, second = (numbers(train_run(run, tmp_path / name, way)) for name in ("a", "b"))
    assert first == second


def test_compiled_equals_eager(tmp_path):
    run = copy_first_run(("lru", "hybrid"), d_model=32, d_state=32)
    run = replace(run, model=replace(run.model, position=PositionConfig(T=8)))
    ways = (EAGER, replace(GRAPH, compiled=True))
    eager, compiled = (train_run(run, tmp_path / str(way.compiled), way) for way in ways)
    for one, other in zip(eager["history"], compiled["history"], strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)


def test_compiled_model_rounds_like_eager():
    """Weights so small that bfloat16 loses their products when the bias is added, which batch norm amplifies.

    An encoder written as a sum of products, which the compiler could fuse with that batch norm, fails here.
    """
    run = copy_first_run(("lru", "bmru"), d_model=64, d_state=64)
    torch.manual_seed(0)
    model = build_model(run.model).to("cuda").train()
    with torch.no_grad():
        model.encoder.weight *= 1e-2
    x = torch.randn(64, 40, 2, device="cuda")
    with autocast(x.device, "bfloat16"), torch.no_grad():
        expected, actual = (forward(x)[0].float() for forward in (model, compile_anew(model)))
    assert (actual - expected).square().mean() < 0.02 * expected.square().mean()


def test_graph_learns(tmp_path):
    result = train_run(hold_bit_run(precision="bfloat16"), tmp_path, GRAPH)
    assert result["metrics"]["best"]["test_mse"] < 1e-2


def test_compiled_learns(tmp_path):
    result = train_run(hold_bit_run(), tmp_path, replace(GRAPH, compiled=True))
    assert result["metrics"]["best"]["test_mse"] < 1e-2


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_evaluation_in_a_graph_equals_eager(precision):
    """Full batches are replayed, the rest is not, with current weights and statistics, not those of the capture."""
    run = copy_first_run(("bmru", "lru", "hybrid"), d_model=32, d_state=32)
    device = torch.device("cuda")
    model = build_model(run.model).to(device)
    samples = run.task.samples("train", 0, device)
    eager, graph = (Evaluator(run.task, model, 50, precision, Processes(device), graph) for graph in (False, True))
    before = graph(samples)
    assert before == eager(samples)
    with torch.no_grad():
        for tensor in (*model.parameters(), model.blocks[0].norm.running_mean):
            tensor += 0.1
    after = graph(samples)
    assert after == eager(samples) != before
    assert model.training


def test_nan_is_detected_in_a_graph(tmp_path):
    run = copy_first_run(("lru", "bmru"), schedule=Schedule(1e30, 1e30, 1e30, 0))
    with pytest.raises(NonFiniteLossError, match=r"in epoch 1, step 2: first in the layer \S+ \(\w+\)"):
        train_run(run, tmp_path, GRAPH)


def test_dropout_in_a_graph_follows_the_seed():
    run = copy_first_run(dropout=0.5)
    device = torch.device("cuda")
    model = build_model(run.model).to(device)
    optimizer = build_optimizer(model, run.decay)
    stepper = Stepper(
        run.task, model, optimizer, run.task.samples("train", 0, device), 20, "float32", Processes(device)
    )
    stepper.capture()

    def loss(seed: int) -> float:
        stepper.start_epoch()
        torch.manual_seed(seed)
        stepper(torch.arange(20, device=device), 0.0)
        return float(stepper.totals[0])

    assert loss(1) == loss(1) != loss(2)

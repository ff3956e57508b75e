"""Layers and a training step on a GPU."""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor, nn

from multistable.layers import BMRU
from multistable_experiments.bench.gpu_clock import eager_milliseconds, gain_row, milliseconds
from multistable_experiments.bench.report import Row

__all__ = ["layer_rows", "training_rows"]

TRAINING_GOALS = {"bmru": 85.0, "lru": 75.0, "hybrid": 68.0}
"""Million timesteps per second of the compiled step."""


def layer_rows(shape: tuple[int, int, int]) -> Iterator[Row]:
    """The whole layer, projections included, against cuDNN's, forward and backward in bfloat16."""
    B, T, N = shape
    x = torch.randn(B, T, N, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(B, T, N, device="cuda", dtype=torch.bfloat16)
    times = {}
    for kind in (BMRU, nn.GRU, nn.LSTM):
        layer = kind(N, N, batch_first=True, device="cuda", dtype=torch.bfloat16)

        def train(layer: nn.Module = layer) -> None:
            torch.autograd.grad(layer(x)[0], (x, *layer.parameters()), weight)

        times[kind] = eager_milliseconds(train)
        if kind is BMRU:
            graph_ms = milliseconds(train)
    for kind, goal in ((nn.GRU, 50.0), (nn.LSTM, None)):
        name, peer = "BMRU layer, forward + backward", f"cuDNN {kind.__name__}"
        yield gain_row(name, shape, times[BMRU], peer, times[kind], goal, torch.bfloat16)
        yield gain_row(f"{name}, in a graph", shape, graph_ms, peer, times[kind], goal, torch.bfloat16)


def training_rows() -> Iterator[Row]:
    """A whole training step of the paper's model as a CUDA graph, optimiser included, in timesteps per second."""
    from multistable.models import ModelConfig, PositionConfig, build_model
    from multistable_experiments.training.optim import build_optimizer
    from multistable_experiments.training.processes import Processes
    from multistable_experiments.training.run import Decay
    from multistable_experiments.training.step import Stepper

    task, samples = _Pixels(), _Pixels.random(1024)
    alone = Processes(torch.device("cuda"))
    for cell, compiled in product(("bmru", "lru", "hybrid"), (False, True)):
        config = ModelConfig(cells=(cell,) * 2, d_input=1, d_output=10, position=PositionConfig(T=784))
        model = build_model(config).cuda()
        optimizer = build_optimizer(model, Decay())
        stepper = Stepper(task, model, optimizer, samples, 256, "bfloat16", alone, compiled)  # pyright: ignore[reportArgumentType]
        stepper.capture()
        ms = eager_milliseconds(stepper.launch)  # a graph already
        steps = 256 * 784 / ms / 1e3  # million timesteps per second
        goal = TRAINING_GOALS[cell] if compiled else None
        name = f"training step, 2 blocks of {cell}{', compiled' if compiled else ''}"
        yield Row(name, (256, 784, 256), "bfloat16", 1 / steps, "1 million timesteps/s", 1.0, "gain", goal, "us/step")


class _Pixels:
    """A task of the size of sequential MNIST, with random data."""

    @staticmethod
    def random(count: int):
        from multistable_experiments.tasks import Samples

        stored = torch.randint(256, (count, 784), dtype=torch.uint8, device="cuda")
        return Samples(stored, torch.randint(10, (count,), device="cuda"))

    def augment(self, stored: Tensor) -> Tensor:
        return stored

    def inputs(self, stored: Tensor) -> Tensor:
        return (stored / 255 - 0.5).unsqueeze(-1)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(-1) == target).float()

"""Speed on a GPU: the scans against a copy of as many bytes, other libraries, layers, a training step.

Only bytes that must move are counted. BMRU forward: cand, beta and h, 3 tensors; backward: the gradient of h, cand and
beta in, two gradients out, 5 tensors (one row of h per strand is read too, and not counted). LRU on real pairs: forward
the input and h, 2 tensors of 2N numbers; backward the gradient of h, h and the gradient of the input, 3 tensors. A
*share* is the time in which the GPU copies that many bytes, at its measured copy bandwidth, over the measured time.

Times are medians over replays of a CUDA graph (``triton.testing.do_bench_cudagraph``), so that they exclude launching
from Python; tensors are several times the cache. Other libraries are measured if they are installed.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from itertools import product

import torch
from torch import Tensor, nn

from multistable.layers import BMRU
from multistable_experiments.bench.report import Row

__all__ = ["rows"]

SHAPES = ((64, 2048, 256), (256, 784, 256), (16, 16384, 1024))
LONG = (1, 1 << 20, 256)
FORWARD_GOAL, BACKWARD_GOAL, LONG_GOAL, LINEAR_GOAL = 0.88, 0.80, 0.70, 0.75


def rows() -> Iterator[Row]:
    """All measurements, each yielded as soon as it is done."""
    for shape in (*SHAPES, LONG):
        for dtype in (torch.float32, torch.bfloat16):
            yield from scan_rows(shape, dtype)
            yield from linear_rows(shape, dtype)
    yield from silent_rows(LONG)
    yield from peer_rows(SHAPES[0])
    yield from peer_rows(LONG)
    yield from layer_rows(SHAPES[0])
    yield from training_rows()


def scan_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[Row]:
    """The BMRU on the two halves of a projection, as in the layer."""
    B, T, N = shape
    goals = (LONG_GOAL, LONG_GOAL) if shape == LONG else (FORWARD_GOAL, BACKWARD_GOAL)
    proj = torch.randn(B, T, 2 * N, device="cuda", dtype=dtype)
    forward, backward = _bmru(proj, N)
    yield _share("BMRU forward", shape, forward, 3 * B * T * N * dtype.itemsize, dtype, goals[0])
    yield _share("BMRU backward", shape, backward, 5 * B * T * N * dtype.itemsize, dtype, goals[1])


def silent_rows(shape: tuple[int, int, int]) -> Iterator[Row]:
    """The worst case of a long sequence in chunks: no unit ever writes, and each chunk is read to its end twice."""
    B, T, N = shape
    proj = torch.randn(B, T, 2 * N, device="cuda")
    proj[..., N:] = 1e9
    forward, backward = _bmru(proj, N)
    yield _share("BMRU forward, no write", shape, forward, 3 * 4 * B * T * N, torch.float32, None)
    yield _share("BMRU backward, no write", shape, backward, 5 * 4 * B * T * N, torch.float32, None)


def linear_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[Row]:
    """The LRU's recurrence: constant complex coefficients, N complex units as 2N real numbers."""
    B, T, N = shape
    ops = torch.ops.multistable
    a = torch.polar(0.99 * torch.rand(N, device="cuda").sqrt(), 6.28 * torch.rand(N, device="cuda"))
    a = torch.cat([a.real, a.imag])
    b, grad = (torch.randn(B, T, 2 * N, device="cuda", dtype=dtype) for _ in range(2))
    forward = partial(ops.linear_scan, a, b, None, None, True, False, "triton")
    h = forward()[0]
    backward = partial(ops.linear_scan_backward, grad, None, a, None, None, h, True, False, "triton")
    size = B * T * 2 * N * dtype.itemsize
    yield _share("LRU forward", shape, forward, 2 * size, dtype, LINEAR_GOAL)
    yield _share("LRU backward", shape, backward, 3 * size, dtype, LINEAR_GOAL)


def peer_rows(shape: tuple[int, int, int]) -> Iterator[Row]:
    """Scans of other libraries on as many float32 numbers: gate and input [B, T, N] in, states out."""
    B, T, N = shape
    name = "BMRU forward"
    proj = torch.randn(B, T, 2 * N, device="cuda")
    forward, backward = _bmru(proj, N)
    ms = _milliseconds(forward)
    both_ms = ms + _milliseconds(backward)
    gate, value = torch.rand(B, T, N, device="cuda"), torch.randn(B, T, N, device="cuda")
    if find_spec("accelerated_scan"):
        from accelerated_scan.scalar import scan  # pyright: ignore[reportMissingImports]

        across = gate.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()
        yield _gain(name, shape, ms, "accelerated-scan", _milliseconds(lambda: scan(*across)), 1 / 1.05)
        turn = lambda: scan(*(x.transpose(1, 2).contiguous() for x in (gate, value))).transpose(1, 2).contiguous()  # noqa: E731
        yield _gain(name, shape, ms, "accelerated-scan and its transposes", _milliseconds(turn), None)
        del across
    if find_spec("fla"):
        from fla.ops.hgrn import chunk_hgrn  # pyright: ignore[reportMissingImports]

        x, g = value.requires_grad_(), gate.log().requires_grad_()
        weight = torch.randn_like(value)

        def hgrn() -> None:
            chunk_hgrn(x, g)[0].backward(weight)
            x.grad = g.grad = None

        with torch.no_grad():
            forward_ms = _milliseconds(lambda: chunk_hgrn(x, g))
        yield _gain(name, shape, ms, "fla chunk_hgrn", forward_ms, None)
        yield _gain("BMRU forward + backward", shape, both_ms, "fla chunk_hgrn", _eager_milliseconds(hgrn), 2.0)
        value = value.detach()
    if shape != LONG:
        compiled = torch.compile(_associative_scan)
        compiled_ms = _eager_milliseconds(lambda: compiled(gate, value))
        yield _gain(name, shape, ms, "associative_scan, compiled", compiled_ms, None)


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

        times[kind] = _eager_milliseconds(train)
        if kind is BMRU:
            graph_ms = _milliseconds(train)
    for kind, goal in ((nn.GRU, 50.0), (nn.LSTM, None)):
        name, peer = "BMRU layer, forward + backward", f"cuDNN {kind.__name__}"
        yield _gain(name, shape, times[BMRU], peer, times[kind], goal, torch.bfloat16)
        yield _gain(f"{name}, in a graph", shape, graph_ms, peer, times[kind], goal, torch.bfloat16)


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
        ms = _eager_milliseconds(stepper.launch)  # a graph already
        steps = 256 * 784 / ms / 1e3  # million timesteps per second
        goal = 40.0 if cell == "bmru" else None
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


def _bmru(proj: Tensor, N: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of the layer's operator."""
    ops = torch.ops.multistable
    alpha, options = torch.ones(N, device="cuda"), (1.0, False, False, "triton")
    forward = partial(ops.bmru_layer, proj, alpha, None, None, *options)
    h = forward()[0]
    backward = partial(ops.bmru_layer_backward, torch.randn_like(h), None, proj, alpha, None, None, h, *options)
    return forward, backward


def _associative_scan(gate: Tensor, value: Tensor) -> Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda x, y: (y[0] * x[0], y[0] * x[1] + y[1]), (gate, value), dim=1)[1]


def _milliseconds(compute: Callable[[], object]) -> float:
    """Time on the GPU alone: replays of a graph of many calls."""
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(compute, rep=20, return_mode="median")  # pyright: ignore[reportReturnType]


def _eager_milliseconds(compute: Callable[[], object]) -> float:
    """Time as called from Python, launches included."""
    from triton.testing import do_bench

    return do_bench(compute, warmup=25, rep=100, return_mode="median")  # pyright: ignore[reportReturnType]


@cache
def _copy_bandwidth() -> float:
    """Bytes read and written per millisecond by a large copy.

    Not in a graph: there the copy engine reaches 2.7 TB/s on an H200, the multiprocessors 4.2.
    """
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _eager_milliseconds(lambda: target.copy_(source))


def _share(
    name: str, shape: tuple[int, ...], compute: Callable[[], object], size: int, dtype: torch.dtype, goal: float | None
) -> Row:
    copy_ms = size / _copy_bandwidth()
    baseline = f"copy of {size / 1e6:,.0f} MB"
    return Row(name, shape, str(dtype)[6:], _milliseconds(compute), baseline, copy_ms, "share", goal)


def _gain(
    name: str, shape: tuple[int, ...], ms: float, baseline: str, baseline_ms: float, goal: float | None,
    dtype: torch.dtype = torch.float32,
) -> Row:  # fmt: skip
    return Row(name, shape, str(dtype)[6:], ms, baseline, baseline_ms, "gain", goal)

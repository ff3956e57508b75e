"""What is compiled beforehand is what calls need. Without a GPU: on 132 multiprocessors that nothing is launched on."""

import ast
import gc
import inspect
import sys
import threading
from contextlib import nullcontext
from functools import cache, partial
from itertools import product

import pytest
import torch

pytest.importorskip("triton")

from multistable.ops import BackendError, compile_kernels, dispatch, threads, triton
from multistable.ops.operators import compute
from multistable.ops.triton import latch, launch, primitives, variants
from multistable.ops.triton.primitives import AnySize, planning

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
LAYERS = list(variants.LAYERS)
SHAPES = [(1, 1), (3, 17), (792, 2), (100, 600), (1, 1100), (5, 4000), (130, 1025), (1, 70_000)]


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """An H200, on which every kernel is still to be compiled."""
    monkeypatch.setattr(variants, "NO_ASSEMBLY", False)
    monkeypatch.setattr(primitives, "NO_ASSEMBLY", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: 227 * 1024 * 7 // 8)
    monkeypatch.setitem(dispatch._REFUSALS, "triton", lambda *_: None)
    launch.launch_config.cache_clear()
    yield
    launch.launch_config.cache_clear()


def calls(width, dtype, **options):
    usual = {"h0": False, "reset": False, "gradients": (True, False), "alpha_surr": 1.0, "device": CPU}
    return variants.Calls(width, dtype, dtype, **usual | options)


@cache
def every_variant(layer, dtype, reset=False):
    widths = [N for N in variants.widths_of_every_kind() if layer != "lru" or N % 2 == 0]
    return {key for N in widths for key in variants.plan_variants(layer, calls(N, dtype, reset=reset))}


def needed(layer, B, T, N, dtype, reset=None, reverse=False, time_major=False, start=False):
    """The variants that forward and backward of a layer need."""
    options = reverse, "triton"
    x = torch.empty(T, B, N, dtype=dtype).transpose(0, 1) if time_major else torch.empty(B, T, N, dtype=dtype)
    a = torch.empty(N, dtype=dtype) if layer == "lru" else x
    h0, last = (torch.empty(B, N, dtype=dtype) if start else None for _ in range(2))
    with planning() as plan:
        if layer == "bmru":
            proj = torch.empty(T, B, 2 * N, dtype=dtype) if time_major else torch.empty(B, T, 2 * N, dtype=dtype)
            alpha, options = torch.empty(N, dtype=dtype), (1.0, reverse, time_major, "triton")
            h = compute("bmru_layer", proj, alpha, h0, reset, *options)[0]
            compute("bmru_layer_backward", h, last, proj, alpha, h0, reset, h, *options)
        elif layer == "latch":
            write = torch.empty(B, T, N, dtype=torch.bool)
            compute("latch_scan", write, x, h0, reset, *options)
            compute("latch_scan_backward", x, last, write, x, h0, reset, x, *options)
        else:
            compute("linear_scan", a, x, h0, reset, layer == "lru", *options)
            compute("linear_scan_backward", x, last, a, h0, reset, x, layer == "lru", *options)
    return set(plan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_calls_need_no_other_variants(layer, dtype):
    """In any layout and direction."""
    for N, reverse, time_major in product((*range(2, 70, 2), 1, 7, 33, 250, 255), (False, True), (False, True)):
        if layer != "lru" or N % 2 == 0:
            shape = SHAPES[(N // 2 + 4 * reverse) % len(SHAPES)]
            assert needed(layer, *shape, N, dtype, None, reverse, time_major) <= every_variant(layer, dtype), N


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_one_width_in_every_batch_and_length(layer, dtype):
    """That of a layer alone has all that its calls need; resets and first states are compiled for if asked. With few
    columns a tile is long; in half precision every other row of 100 numbers starts at no multiple of 16 bytes."""
    for (B, T), N in product(SHAPES, (2, 24, 100, 256)):
        plan = variants.plan_variants(layer, calls(N, dtype))
        assert needed(layer, B, T, N, dtype) <= plan.keys()
        with_state = variants.plan_variants(layer, calls(N, dtype, h0=True, gradients=(True, True)))
        assert needed(layer, B, T, N, dtype, start=True) <= with_state.keys()
        reset = torch.empty(B, T, dtype=torch.bool)
        with_reset = variants.plan_variants(layer, calls(N, dtype, reset=True))
        for reverse in (False, True):
            assert needed(layer, B, T, N, dtype, reset, reverse) <= with_reset.keys()


@pytest.mark.parametrize(("layer", "dtype", "most"), [("bmru", 0, 2), ("bmru", 1, 2), ("lru", 0, 3), ("lru", 1, 4)])
def test_a_layer_has_few_variants_of_each_kernel(layer, dtype, most):
    """An LRU's kernels are compiled once more each, for the products and ends of chunks."""
    plan = variants.plan_variants(layer, calls(256, DTYPES[dtype]))
    found = [(kernel, ("SUMMARY", True) in key) for kernel, key in plan]
    assert max(map(found.count, found)) == most


class Compiler:
    """Stands for ``triton.jit``."""

    run = None

    def warmup(self, *args, grid, **constants):
        return self


def test_compile_kernels(monkeypatch):
    """All options; nothing is left to compile afterwards."""
    kernels = {kernel for layer in ("bmru", "lru") for kernel, _ in variants.plan_variants(layer, calls(64, DTYPES[0]))}
    for kernel in kernels:
        assert isinstance(kernel, AnySize)
        for name, value in (("jit", Compiler()), ("unaligned", Compiler()), ("compiled", {})):
            monkeypatch.setattr(kernel, name, value)
    monkeypatch.setattr(variants, "driver", type("Driver", (), {"active": torch.cuda, "get": None}))
    monkeypatch.setattr(torch.cuda, "get_current_device", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "device", threads.suppress)  # a context that does nothing
    options = {"h0": True, "reset": True, "last": True, "device": "cpu"}
    compiled = compile_kernels(["bmru", "lru"], [64], [torch.float32, torch.bfloat16], **options)
    assert compiled == sum(len(kernel.compiled) for kernel in kernels) > 0
    assert compile_kernels(["bmru", "lru"], [64], [torch.float32, torch.bfloat16], **options) == 0
    reset = torch.empty(3, 2000, dtype=torch.bool)
    assert not needed("bmru", 3, 2000, 64, torch.bfloat16, reset, reverse=True)
    assert not needed("lru", 3, 2000, 64, torch.float32)
    assert needed("lru", 3, 2000, 66, torch.float32)
    assert compile_kernels(["bmru"], [], **options) == 0


def test_kernels_of_a_call_are_compiled_at_once(monkeypatch):
    """A scan in chunks has three. Before any is launched, and never again."""
    both, launched = threading.Barrier(2, timeout=30), []

    class Kernel:
        run = None

        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            return lambda *args: launched.append(self.name)

    class Slow:
        def __init__(self, name):
            self.name = name

        def warmup(self, *args, grid, **constants):
            assert not launched
            if self.name != "_carry_kernel":
                both.wait()  # fails unless two are compiled at the same time
            return Kernel(self.name)

    names = ["_last_write_kernel", "_carry_kernel", "_forward_kernel"]
    for name in names:
        kernel = getattr(latch, name)
        for attribute, value in (("jit", Slow(name)), ("unaligned", Slow(name)), ("compiled", {})):
            monkeypatch.setattr(kernel, attribute, value)
    monkeypatch.setattr(variants, "driver", type("Driver", (), {"active": torch.cuda}))
    monkeypatch.setattr(torch.cuda, "get_current_device", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "device", threads.suppress)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(variants, "THREADS", 3)
    cand, beta, h = torch.empty(3, 1, 2000, 64).unbind()
    for _ in range(2):
        triton.bmru_forward(cand, beta, torch.ones(64), None, None, h, reverse=False)
    assert launched == 2 * names


def test_a_garbage_collection_does_not_disturb_parsing(monkeypatch):
    """Triton begins with ``ast.parse``."""
    monkeypatch.setattr(variants, "driver", type("Driver", (), {"active": torch.cuda}))
    monkeypatch.setattr(torch.cuda, "get_current_device", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    parsing, interval = partial(ast.parse, inspect.getsource(ast)), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    gc.callbacks.append(sum_some)
    try:
        variants.compile_variants(dict.fromkeys(range(30), parsing), CPU)
    finally:
        gc.callbacks.remove(sum_some)
        sys.setswitchinterval(interval)


def sum_some(*_):
    """In Python, so that another thread may go on."""
    sum(i for i in range(1000))


def test_compile_kernels_checks_its_arguments(monkeypatch):
    with pytest.raises(ValueError, match="layers must be one of bmru, lru, mingru, latch, got 'gru'"):
        compile_kernels(["gru"], device="cpu")
    with pytest.raises(ValueError, match="widths must be a positive integer, got 0"):
        compile_kernels(["bmru"], [0], device="cpu")
    with pytest.raises(ValueError, match=r"widths of an LRU must be even .* got 7"):
        compile_kernels(["lru"], [7], device="cpu")
    with pytest.raises(TypeError, match="layers must be a list of names, got 'bmru'"):
        compile_kernels("bmru", device="cpu")
    with pytest.raises(TypeError, match=r"dtypes must be floating point, got torch\.int32"):
        compile_kernels(["bmru"], [4], [torch.int32], device="cpu")
    monkeypatch.setitem(dispatch._REFUSALS, "triton", dispatch._triton_refusal)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="the tensors are on cpu"):
        compile_kernels(["bmru"], device="cpu")

"""Compiled kernels are found by what they depend on. Without a GPU: what is launched is written down instead."""

from itertools import combinations

import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl
from triton.runtime.jit import mangle_type

from multistable.ops.triton import primitives
from multistable.ops.triton.primitives import AnySize, NotCompiledError, planning

BYTES = torch.zeros(64, dtype=torch.uint8)
TENSORS = {
    "None": None, "float32": BYTES.view(torch.float32), "bfloat16": BYTES.view(torch.bfloat16),
    "bool": BYTES.view(torch.bool), "bytes": BYTES,
}  # fmt: skip
NUMBERS = {str(n): n for n in (0, 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1)}


def key_of(x=BYTES, x_b=1, reset=None, **constants):
    """What a launch of a small kernel with these arguments is looked up by."""

    def kernel(x, x_b, reset):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        return AnySize(kernel).key((x, x_b, reset), constants)


@pytest.mark.parametrize(("one", "other"), list(combinations(TENSORS, 2)))
def test_tensors_of_one_type_in_a_kernel_have_the_same_key(one, other):
    x, y = TENSORS[one], TENSORS[other]
    assert (key_of(x) == key_of(y)) == (mangle_type(x) == mangle_type(y))


@pytest.mark.parametrize(("one", "other"), list(combinations(NUMBERS, 2)))
def test_numbers_of_one_type_in_a_kernel_have_the_same_key(one, other):
    x, y = NUMBERS[one], NUMBERS[other]
    assert (key_of(x_b=x) == key_of(x_b=y)) == (mangle_type(x) == mangle_type(y))


def test_alignment_is_part_of_the_key():
    """But where rows are not aligned, and for resets; whether there are any is."""
    assert key_of(BYTES[16:]) == key_of() != key_of(BYTES[1:])
    assert key_of(BYTES[1:], ROW=1) == key_of(ROW=1)
    assert key_of(reset=BYTES) == key_of(reset=BYTES[1:]) != key_of()


class Compiler:
    """Stands for ``triton.jit``, and for each kernel it compiles; ``launched`` has grids and arguments."""

    def __init__(self):
        self.compilations, self.launched = 0, []

    def warmup(self, *args, grid, **constants):
        self.compilations += 1
        return self.Kernel(self.launched)

    class Kernel:
        run = None

        def __init__(self, launched):
            self.launched = launched

        def __getitem__(self, grid):
            return lambda *args: self.launched.append((grid, args))


def launch(kernel, grid, *args, **constants):
    """What is missing is compiled first."""
    try:
        kernel[grid](*args, **constants)
    except NotCompiledError:
        with planning() as planned:
            kernel[grid](*args, **constants)
        for compile_variant in planned.values():
            compile_variant()
        kernel[grid](*args, **constants)


def add(x, reset, T, BN: tl.constexpr, ROW: tl.constexpr):
    raise AssertionError("only its signature is read")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(primitives, "NO_ASSEMBLY", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
def test_a_compiled_kernel_is_launched_again():
    """For other sizes, not for other constants or options; constants are passed in the kernel's own order."""
    kernel, x = AnySize(add), torch.zeros(4)
    kernel.jit = kernel.unaligned = compiler = Compiler()
    launch(kernel, (3,), x, None, 5, ROW=1, BN=32, num_warps=1)
    launch(kernel, (7, 2), x, None, 6, ROW=1, BN=32, num_warps=1)
    assert compiler.compilations == 1
    assert compiler.launched == [((3, 1, 1), (x, None, 5, 32, 1)), ((7, 2, 1), (x, None, 6, 32, 1))]
    launch(kernel, (3,), x, None, 5, ROW=4, BN=32, num_warps=1)
    launch(kernel, (3,), x, None, 5, ROW=1, BN=32, num_warps=2)
    launch(kernel, (3,), None, None, 5, ROW=1, BN=32, num_warps=1)
    assert compiler.compilations == 4


@pytest.mark.usefixtures("no_gpu")
def test_alignment_matters_where_rows_are_aligned():
    """And never that of resets, of which a reversed scan starts with the last."""
    kernel = AnySize(add)
    kernel.jit, kernel.unaligned = Compiler(), Compiler()
    for x, reset in ((BYTES, BYTES), (BYTES, BYTES[1:]), (BYTES[1:], BYTES)):
        for ROW in (1, 4):
            launch(kernel, (3,), x, reset, 5, ROW=ROW, BN=32, num_warps=1)
    assert (kernel.jit.compilations, kernel.unaligned.compilations) == (2, 1)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("x", [BYTES, BYTES[1:]], ids=["aligned", "not"])
@pytest.mark.parametrize("ROW", [1, 4])
def test_what_was_planned_is_compiled_for_later_launches(x, ROW):
    kernel = AnySize(add)
    kernel.jit = kernel.unaligned = compiler = Compiler()
    own, constants = kernel[(3,)], {"ROW": ROW, "BN": 32, "num_warps": 1}
    with pytest.raises(NotCompiledError):
        own(x, None, 5, **constants)
    with planning() as planned:
        own(x, None, 5, **constants)
        own(x, None, 6, **constants)
    assert (len(planned), compiler.compilations, compiler.launched) == (1, 0, [])
    for compile_variant in planned.values():
        compile_variant()
    assert (compiler.compilations, compiler.launched) == (1, [])
    own(x, None, 7, **constants)
    assert (compiler.compilations, compiler.launched) == (1, [((3, 1, 1), (x, None, 7, 32, ROW))])
    with planning() as planned:
        own(x, None, 8, **constants)
    assert not planned
    assert len(compiler.launched) == 1

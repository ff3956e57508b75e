"""Device functions that the GPU kernels share: indices, masked access, steps of a strand, packed half precision.

Numbers of 16 bits are read in pairs as 32-bit words, so that each thread has one column of whole words: all tensors of
a kernel then have the same layout over the threads, and the compiler neither moves nor computes them twice. PER_WORD is
1 or 2; HALF is the dtype of paired numbers, None for single ones.
"""

import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

NO_ASSEMBLY = tl.constexpr(triton.knobs.runtime.interpret or torch.version.hip is not None)
"""Avoid PTX: Triton's interpreter and GPUs of other makers have none."""


class _Thread(threading.local):
    """What this thread notes instead of launching, see :func:`planning`."""

    planned: "dict[Any, Callable[[], None]] | None" = None


_thread = _Thread()


@contextmanager
def planning() -> Generator[dict[Any, Callable[[], None]]]:
    """Launch nothing in this thread, but note what would have to be compiled: one function that compiles it for each
    variant of a kernel, to be called in any thread."""
    _thread.planned = planned = {}
    try:
        yield planned
    finally:
        _thread.planned = None


class NotCompiledError(Exception):
    """A kernel of this call is still to be compiled; with the others, see :mod:`multistable.ops.triton`."""


class AnySize:
    """A kernel that is compiled once for all sizes and strides (the arguments T, N, K, C, L, blocks, ``*_b``, ``*_t``)
    and for a first state that is there or not (``entered``).

    By itself Triton compiles anew for a number that is 1 or a multiple of 16, where the one before was not, and for a
    tensor that starts at a multiple of 16 bytes or does not. Where rows are not aligned (ROW is 1), and for resets, the
    latter gives the same code, and one variant serves both. Triton also looks its kernels up by the text of all
    arguments, which takes most of the time of a launch: here a compiled kernel is found by what it depends on.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        parameters = inspect.signature(function).parameters
        self.names = list(parameters)
        sizes = {"T", "N", "K", "C", "L", "blocks", "entered"}
        numbers = [x for x in self.names if x in sizes or (x.endswith(("_b", "_t")) and not x.startswith("grad_"))]
        tensors = [x for x in self.names if x not in numbers and parameters[x].annotation is inspect.Parameter.empty]
        resets = [x for x in tensors if x == "reset"]
        self.reset = self.names.index("reset") if resets else None
        self.numbers = [self.names.index(x) for x in numbers]
        self.tensors = [self.names.index(x) for x in tensors if x != "reset"]
        self.jit = triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=resets)
        self.unaligned = triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=tensors)
        self.compiled: dict[Any, tuple[Any, list[Any]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.launch, grid)

    def launch(self, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        if NO_ASSEMBLY:
            self.jit[grid](*args, **constants)
            return
        key = self.key(args, constants)
        if _thread.planned is not None:
            if key not in self.compiled:  # of tensors, only the dtypes are kept: some are large
                args = tuple(x.dtype if isinstance(x, torch.Tensor) and x.data_ptr() % 16 == 0 else x for x in args)
                _thread.planned[self, key] = partial(self.compile, key, grid, args, constants)
            return
        found = self.compiled.get(key)
        if found is None:
            raise NotCompiledError
        kernel, values = found
        kernel[(*grid, 1, 1)[:3]](*args, *values)

    def compile(self, key: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Compile what a launch with ``key`` looks up, and load it."""
        kernel = self.variant(constants).warmup(*args, grid=grid, **constants)
        _ = kernel.run  # loads it
        self.compiled[key] = kernel, self.values(args, constants)

    def key(self, args: tuple[Any, ...], constants: dict[str, Any]) -> Any:
        """What the kernel is compiled for: dtypes and alignments of tensors, which numbers have 64 bits, constants."""
        tensors, numbers = [args[i] for i in self.tensors], [args[i] for i in self.numbers]
        if constants.get("ROW") == 1:
            kinds = [x if x is None else x.dtype for x in tensors]
        else:
            kinds = [x if x is None else (x.dtype, x.data_ptr() % 16 == 0) for x in tensors]
        reset = self.reset is not None and args[self.reset] is None
        wide = ()
        if min(numbers) < -(1 << 31) or max(numbers) >= 1 << 31:
            wide = tuple(not -(1 << 31) <= x < 1 << 31 for x in numbers)
        return torch.cuda.current_device(), *kinds, reset, wide, *constants.items()

    def variant(self, constants: dict[str, Any]) -> Any:
        return self.jit if constants.get("ROW") != 1 else self.unaligned

    def values(self, args: tuple[Any, ...], constants: dict[str, Any]) -> list[Any]:
        """The constants in the kernel's own order."""
        return [constants[name] for name in self.names[len(args) :]]


@triton.jit
def word_pointer(p, PER_WORD: tl.constexpr):
    """Cast a pointer to numbers (or bytes) to one to pairs of them, if PER_WORD is 2."""
    if PER_WORD == 1 or p is None:
        return p
    elif p.dtype.element_ty.primitive_bitwidth == 8:
        return p.to(tl.pointer_type(tl.uint16))
    else:
        return p.to(tl.pointer_type(tl.uint32))


@triton.jit
def stride_of(t, ROW: tl.constexpr):
    """A stride in words from one in units of ROW words, so that the compiler knows that rows are aligned. int64,
    because for time-major tensors stride times tile can exceed 2^31."""
    return t.to(tl.int64) * ROW


@triton.jit
def program_indices(blocks, C, N, BN: tl.constexpr, ROW: tl.constexpr):
    """The sequence, the chunk and the columns [1, BN] of this program.

    The last block ends with the last of the N columns, so that none needs a mask: columns that two blocks have get the
    same values from both.
    """
    tl.static_assert(BN % ROW == 0)
    i = tl.program_id(0)
    i_bc = i // blocks
    first = tl.minimum((i % blocks) * (BN // ROW), N // ROW - BN // ROW) * ROW
    return (i_bc // C).to(tl.int64), i_bc % C, (first + tl.arange(0, BN))[None, :]


@triton.jit
def strand_steps(t, S: tl.constexpr, U: tl.constexpr, LATEST_FIRST: tl.constexpr = False):
    """The first step of each strand of a tile that starts at step t: [S, 1].

    LATEST_FIRST, for scans towards the past: one that Triton reverses costs five times the shuffles.
    """
    o_s = S - 1 - tl.arange(0, S) if LATEST_FIRST else tl.arange(0, S)
    return t + o_s[:, None] * U


@triton.jit
def tile_pointer(p, stride, strands, U: tl.constexpr):
    """Pointers to the steps of a tile, [S, U, BN], from those to the columns [1, BN] of step 0."""
    return p[None] + (strands + tl.arange(0, U)[None, :]).to(tl.int64)[:, :, None] * stride


@triton.jit
def strand_pointer(p, stride, strands):
    """Pointers to the first step of each strand, [S, BN]."""
    return p + strands.to(tl.int64) * stride


@triton.jit
def load(p, mask, other, MASKED: tl.constexpr):
    """Load; without a mask unless MASKED."""
    if MASKED:
        return tl.load(p, mask=mask, other=other)
    else:
        return tl.load(p)


@triton.jit
def everywhere_if(entered, p):
    """The mask of a load from ``p``: true everywhere or nowhere."""
    return tl.zeros(p.shape, tl.int32) < entered


@triton.jit
def store(p, value, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(p, value, mask=mask)
    else:
        tl.store(p, value)


@triton.jit
def split_steps(x, U: tl.constexpr):
    """Split ``x [S, U, BN]`` into a tuple of U steps [S, BN]. A strand is in one thread, so nothing moves."""
    return _unstack(tl.permute(x, (0, 2, 1)), U)


@triton.jit
def _unstack(x, U: tl.constexpr):
    S: tl.constexpr = x.shape[0]
    BN: tl.constexpr = x.shape[1]
    if U == 1:
        return (tl.reshape(x, [S, BN]),)
    elif U == 2:  # as below, with fewer operations: they take a fifth of the time of compiling the longest kernel
        return tl.split(x)
    else:
        early, late = tl.split(tl.permute(tl.reshape(x, [S, BN, 2, U // 2]), (0, 1, 3, 2)))
        return _unstack(early, U // 2) + _unstack(late, U // 2)


@triton.jit
def last_row(x, R: tl.constexpr):
    """The last row [1, BN] of x [R, BN]."""
    return tl.sum(tl.where((tl.arange(0, R) == R - 1)[:, None], x, 0), 0, keep_dims=True).to(x.dtype)


@triton.jit
def unpack(word, i: tl.constexpr, HALF: tl.constexpr, ACC: tl.constexpr):
    """The i-th number of a word as a wide float."""
    if HALF is None:
        return word.to(ACC)
    elif HALF == tl.bfloat16:  # a float32 without its lower bits
        return (word << 16 if i == 0 else word & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        return (word >> 16 * i).to(tl.uint16).to(HALF, bitcast=True).to(ACC)


@triton.jit
def pack(low, high, HALF: tl.constexpr):
    """Two wide floats as one word, rounded to nearest."""
    if NO_ASSEMBLY:
        return _half_bits(low, HALF) | (_half_bits(high, HALF) << 16)
    elif HALF == tl.bfloat16:
        return tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], tl.uint32, True, 1)
    else:
        return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], tl.uint32, True, 1)


@triton.jit
def store_numbers(p, numbers, u: tl.constexpr, mask, HALF: tl.constexpr, MASKED: tl.constexpr):
    """Store step u of a word's numbers; ``numbers`` has a tuple of steps for each."""
    if HALF is None:
        store(p, numbers[0][u].to(p.dtype.element_ty), mask, MASKED)
    else:
        store(p, pack(numbers[0][u], numbers[1][u], HALF), mask, MASKED)


@triton.jit
def _half_bits(x, HALF: tl.constexpr):
    return x.to(HALF).to(tl.uint16, bitcast=True).to(tl.uint32)


@triton.jit
def as_bits(x):
    return x.to(tl.int64 if x.dtype == tl.float64 else tl.int32, bitcast=True)


@triton.jit
def keep_bits(mask, x):
    """``x`` where the mask's bits are set, zero elsewhere."""
    return (as_bits(x) & mask).to(x.dtype, bitcast=True)


@triton.jit
def select_bits(mask, x, other):
    """``x`` where the mask's bits are set, ``other`` elsewhere."""
    return ((as_bits(x) & mask) | (as_bits(other) & ~mask)).to(x.dtype, bitcast=True)


@triton.jit
def xor_sign(x, y):
    """``x`` with its sign flipped where that of ``y`` is set."""
    SIGN: tl.constexpr = -(1 << 63) if x.dtype == tl.float64 else -(1 << 31)
    return (as_bits(x) ^ (as_bits(y) & SIGN)).to(x.dtype, bitcast=True)


@triton.jit
def negative_mask(d):
    """All bits set where d < 0: a shift of the sign, which is not set in a difference that is zero or NaN.

    In PTX, because the compiler turns a shift back into a comparison and a select and runs out of predicates: 55
    instead of 50 instructions per number in bfloat16.
    """
    if NO_ASSEMBLY or d.dtype == tl.float64:
        return (d < 0).to(tl.int64 if d.dtype == tl.float64 else tl.int32) * -1
    else:
        return tl.inline_asm_elementwise("shr.s32 $0, $1, 31;", "=r,f", [d], tl.int32, True, 1)


@triton.jit
def reciprocal(z):
    """``1 / z`` for z >= 1. In float32 one instruction of the special function unit instead of a division."""
    if NO_ASSEMBLY or z.dtype == tl.float64:
        return 1.0 / z
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [z], tl.float32, True, 1)

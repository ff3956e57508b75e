"""Long sequences of a linear recurrence: chunks in parallel programs, each told the state that enters it.

A program walks over its chunk for the product of its coefficients and for where it ends if it starts from zero,
``(A, e)``, and makes that public; then it waits for those of the chunks before it, and walks a second time to compute and
write the states. A chunk is short, so that the second reading comes from the cache: memory is read once.

Chunks form groups of G. A chunk composes the ``(A, e)`` of the earlier ones of its group, and applies them to the state
that enters the group, its *head*; the last chunk of a group publishes the head of the next. Who waits for what is fixed,
and so is the order of every sum: the result does not depend on the timing.

Programs take their chunks in the order in which they start, so that nobody waits for one that has not begun. What is made
public is one word of 64 bits per number, 32 bits of it and a flag, written at once: no other order is needed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.triton_pieces import bits
from multistable.ops.triton_tiles import Plan


@triton.jit
def where_in_chain(counter, blocks, B, BN: tl.constexpr, CHAIN: tl.constexpr):
    """Which chunk, sequence and columns [1, BN] a program has. Without a chain there is one chunk."""
    if CHAIN:
        ticket = tl.atomic_add(counter, 1).to(tl.int32)
    else:
        ticket = tl.program_id(0)
    i = ticket % (B * blocks)
    return ticket // (B * blocks), (i // blocks).to(tl.int64), (i % blocks * BN + tl.arange(0, BN))[None, :]


@triton.jit
def publish(p, x, plane, mask):
    """Write a number as words; the second half of a float64 lies ``plane`` words behind the first."""
    if x.dtype == tl.float64:
        word = bits(x)
        tl.store(p, (word & 0xFFFFFFFF) << 32 | 1, mask=mask)
        tl.store(p + plane, word >> 32 << 32 | 1, mask=mask)
    else:
        tl.store(p, bits(x).to(tl.int64) << 32 | 1, mask=mask)


@triton.jit
def _wait(p, mask):
    """Words that others publish."""
    word = tl.load(p, mask=mask, other=1, volatile=True)
    while tl.sum((word == 0).to(tl.int32)) > 0:
        word = tl.load(p, mask=mask, other=1, volatile=True)
    return word


@triton.jit
def collect(p, plane, mask, ACC: tl.constexpr):
    """Numbers that others publish, zero outside the mask."""
    if ACC == tl.float64:
        low, high = (_wait(p, mask) >> 32) & 0xFFFFFFFF, _wait(p + plane, mask) >> 32 << 32
        return (low | high).to(tl.float64, bitcast=True)
    else:
        return (_wait(p, mask) >> 32).to(tl.int32).to(tl.float32, bitcast=True)


def workspace(plan: Plan, numbers: int, h: Tensor) -> tuple[Tensor | None, ...]:
    """Empty words for the ends of chunks, their products, and the heads of groups, each ``[chunks or groups, numbers]``
    (two rows for float64), and the counter of tickets. None without a chain."""
    if plan.C == 1:
        return None, None, None, None
    row = numbers * (2 if h.dtype == torch.float64 else 1)
    sizes = plan.C * row, plan.C * row, -(-plan.C // plan.G) * row, 1
    return torch.zeros(sum(sizes), dtype=torch.int64, device=h.device).split(sizes)

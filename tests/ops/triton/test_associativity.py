"""The operators of the GPU scans (``latch*.py``, ``linear_steps.py``, ``map_words.py``) are associative.

The interpreter scans in order, so no other test would notice an operator that is not.
"""

import pytest
import torch

from gpu_kernels import DEVICE  # first: it skips these tests where the kernels cannot run  # isort: skip
import triton
import triton.language as tl

from multistable.ops.triton import latch, latch_grad, latch_grad_chunks, linear_steps, map_words

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array")


@triton.jit
def _both_orders(x, out, COMBINE: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """``(a b) c`` and ``a (b c)`` of an operator on K numbers; ``x [3, K, N]``, ``out [2, K, N]``."""
    o_n = tl.arange(0, N)
    a, b, c = (), (), ()
    for k in tl.static_range(K):
        a += (tl.load(x + k * N + o_n),)
        b += (tl.load(x + (K + k) * N + o_n),)
        c += (tl.load(x + (2 * K + k) * N + o_n),)
    left = COMBINE(*COMBINE(*a, *b), *c)
    right = COMBINE(*a, *COMBINE(*b, *c))
    for k in tl.static_range(K):
        tl.store(out + k * N + o_n, left[k])
        tl.store(out + (K + k) * N + o_n, right[k])


def both_orders(combine, x):
    out = torch.empty(2, *x.shape[1:], dtype=x.dtype, device=x.device)
    _both_orders[(1,)](x, out, COMBINE=combine, K=x.shape[1], N=x.shape[2])
    return out


def masked_words(K):
    """Random words: masks of whole fields at even places, values at odd places."""
    masks = torch.tensor([0, 0xFFFF, 0xFFFF0000 - 2**32, -1], dtype=torch.int32)
    x = torch.randint(-(2**31), 2**31 - 1, (3, K, 64), dtype=torch.int32)
    x[:, ::2] = masks[torch.randint(4, (3, K // 2, 64))]
    return x.to(DEVICE)


@pytest.mark.parametrize(("combine", "K"), [(latch._join, 2), (latch._append, 4)])
def test_latch_operator(combine, K):
    left, right = both_orders(combine, masked_words(K))
    assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("combine", "K"),
    [
        (linear_steps._join_real, 2),
        (linear_steps._append_real, 4),
        (linear_steps._join_complex, 4),
        (linear_steps._append_complex, 8),
    ],
)
def test_linear_operator(combine, K):
    left, right = both_orders(combine, torch.randn(3, K, 64, dtype=torch.float64, device=DEVICE))
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("combine", "K"), [(latch_grad_chunks.join, 2), (latch_grad._append, 4)])
def test_gradient_operator(combine, K):
    x = torch.randint(-8, 8, (3, K, 64), dtype=torch.int32)  # sums of small integers are exact
    x[:, ::2] = -torch.randint(2, (3, K // 2, 64), dtype=torch.int32)  # masks
    left, right = both_orders(combine, x.to(DEVICE))
    assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("append", "places"),
    [
        (map_words._append_1, 0x03),
        (map_words._append_1x4, 0x03030303),
        (map_words._append_2, 0xFF),
        (map_words._append_2x4, 0x7FFFFFFF),
        (map_words._append_3, 0xFFFFFF),
        (map_words._append_4, None),
    ],
    ids=["2", "four of 2", "4", "four of 4", "8", "16"],
)
def test_composition_of_maps(append, places):
    x = torch.randint(0, 2**62, (3, 2, 64)) * 4 + torch.randint(4, (3, 2, 64))  # all 64 bits are random
    x = x.view(torch.uint64) if places is None else (x & places).int().view(torch.uint32)
    left, right = both_orders(append, x.to(DEVICE))
    assert torch.equal(left, right)
    assert len(left.cpu().view(torch.uint8).unique()) > 1

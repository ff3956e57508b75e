"""What makes the scans parallel: two steps compose to one, and composition is associative.

A property of the recurrences (``ops/reference.py``), whose operators are written out here. An interpreter that runs a
parallel scan sequentially would not notice an operator that is not associative, so this has its own tests.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from multistable.ops import latch_scan, linear_scan


def latch_then(first, second):
    """Two steps (write, value) composed into one."""
    return first[0] | second[0], torch.where(second[0], second[1], first[1])


def linear_then(first, second):
    """[a, b] after [a', b']: h -> a' h + b' -> a (a' h + b') + b."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def misprinted_then(first, second):
    """The operator as printed in the paper's appendix: the last term is the coefficient instead of the input."""
    return first[0] * second[0], second[0] * first[1] + second[0]


def tree(then, steps):
    """Compose all steps in the order of a balanced tree."""
    if len(steps) == 1:
        return steps[0]
    return then(tree(then, steps[: len(steps) // 2]), tree(then, steps[len(steps) // 2 :]))


def integers(shape, seed):
    """Integers: their sums and products are exact in float64."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).double()


def equal(x, y):
    return all(torch.equal(a, b) for a, b in zip(x, y, strict=True))


@given(seed=st.integers(0, 2**20))
def test_latch_composition_is_associative(seed):
    x, y, z = ((integers((64,), 2 * (seed + i)) > 0, integers((64,), 2 * (seed + i) + 1)) for i in range(3))
    # Where nothing is written the value is arbitrary, so compare the maps on states.
    for h in integers((3,), seed).unbind():
        left, right = latch_then(latch_then(x, y), z), latch_then(x, latch_then(y, z))
        assert equal([torch.where(left[0], left[1], h)], [torch.where(right[0], right[1], h)])
        assert torch.equal(left[0], right[0])


@given(seed=st.integers(0, 2**20))
def test_linear_composition_is_associative(seed):
    x, y, z = ((integers((64,), 2 * (seed + i)), integers((64,), 2 * (seed + i) + 1)) for i in range(3))
    assert equal(linear_then(linear_then(x, y), z), linear_then(x, linear_then(y, z)))


def test_latch_composition_in_a_tree_equals_the_scan():
    write, value, h0 = integers((3, 13, 5), 0) > 0, integers((3, 13, 5), 1), integers((3, 5), 2)
    steps = list(zip(write.unbind(1), value.unbind(1), strict=True))
    h = latch_scan(write, value, h0)
    for t in range(13):
        any_write, last_value = tree(latch_then, steps[: t + 1])
        assert torch.equal(torch.where(any_write, last_value, h0), h[:, t])


def test_linear_composition_in_a_tree_equals_the_scan():
    a, b, h0 = integers((3, 9, 5), 0), integers((3, 9, 5), 1), integers((3, 5), 2)
    steps = list(zip(a.unbind(1), b.unbind(1), strict=True))
    h = linear_scan(a, b, h0)
    for t in range(9):
        product, total = tree(linear_then, steps[: t + 1])
        assert torch.equal(product * h0 + total, h[:, t])


def test_the_printed_operator_is_neither_associative_nor_the_recurrence():
    """These tests can fail, and the paper's formula is a misprint."""
    x, y, z = ((integers((64,), 2 * i), integers((64,), 2 * i + 1)) for i in range(3))
    left, right = misprinted_then(misprinted_then(x, y), z), misprinted_then(x, misprinted_then(y, z))
    assert not equal(left, right)
    h = linear_scan(torch.stack([x[0], y[0]])[None], torch.stack([x[1], y[1]])[None])
    assert torch.equal(linear_then(x, y)[1], h[0, 1])
    assert not torch.equal(misprinted_then(x, y)[1], h[0, 1])


def test_latch_composition_in_the_wrong_order_differs_from_the_scan():
    write, value = integers((1, 2, 64), 0) > 0, integers((1, 2, 64), 1)
    first, second = zip(write[0], value[0], strict=True)
    expected = latch_scan(write, value)[0, 1]
    right, wrong = (torch.where(w, v, 0.0) for w, v in (latch_then(first, second), latch_then(second, first)))
    assert torch.equal(right, expected)
    assert not torch.equal(wrong, expected)

"""Persistent memory, as the paper defines it: a state is held for any number of steps, on every backend."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends import BACKENDS, DTYPES
from multistable import BMRU
from multistable.ops import bmru_scan, latch_scan
from nasty import VALUES, bmru_inputs, latch_inputs
from tolerances import assert_same_bits

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def repeated(inputs, k):
    """Repeat every step k times; a reset applies to the first repetition only."""
    stretched = {
        name: x.repeat_interleave(k, dim=1) for name, x in inputs.items() if name not in ("alpha", "h0", "reset")
    }
    first = torch.arange(stretched[next(iter(stretched))].shape[1]) % k == 0
    reset = None if inputs["reset"] is None else inputs["reset"].repeat_interleave(k, dim=1) & first
    return inputs | stretched | {"reset": reset}


@every_backend
@every_dtype
@given(values=st.sampled_from(sorted(VALUES)), k=st.integers(1, 7), seed=st.integers(0, 2**20))
def test_bmru_scan_repeated_input_repeats_the_state(backend, dtype, values, k, seed):
    inputs = bmru_inputs(dtype, values, seed=seed)
    expected = bmru_scan(**inputs, backend=backend).repeat_interleave(k, dim=1)
    assert_same_bits(bmru_scan(**repeated(inputs, k), backend=backend), expected)


@every_backend
@every_dtype
@pytest.mark.parametrize("k", [2, 31])
def test_latch_scan_repeated_input_repeats_the_state(backend, dtype, k):
    inputs = latch_inputs(dtype)
    expected = latch_scan(**inputs, backend=backend).repeat_interleave(k, dim=1)
    assert_same_bits(latch_scan(**repeated(inputs, k), backend=backend), expected)


@every_backend
@every_dtype
@given(seed=st.integers(0, 2**20), T=st.integers(1, 60))
def test_bmru_scan_is_plus_or_minus_alpha_after_the_first_write(backend, dtype, seed, T):
    inputs = bmru_inputs(dtype, shape=(3, T, 5), seed=seed) | {"reset": None}
    h = bmru_scan(**inputs, backend=backend)
    written = (inputs["cand"].abs() >= inputs["beta"].abs()).cumsum(dim=1) > 0
    on_branch = (h == inputs["alpha"]) | (h == -inputs["alpha"])
    assert on_branch[written].all()
    assert torch.equal(h[~written], inputs["h0"][:, None].expand_as(h)[~written])


@every_backend
@every_dtype
def test_bmru_scan_holds_for_many_steps(backend, dtype):
    """Multiplied by 0.999 at every step, no float would survive."""
    T = 300 if backend == "reference" else 20_000
    cand = torch.zeros(1, T, 3, dtype=dtype)
    cand[:, 0] = torch.tensor([-2.0, 2.0, 0.5])
    h0 = torch.tensor([[0.1, 0.2, 0.3]], dtype=dtype)
    h = bmru_scan(cand, torch.ones_like(cand), torch.full((3,), 0.7, dtype=dtype), h0, backend=backend)
    level = torch.tensor(0.7, dtype=dtype)
    assert torch.equal(h, torch.stack([-level, level, h0[0, 2]]).expand_as(h))


@every_backend
def test_bmru_layer_on_a_constant_input_is_stationary(backend):
    rnn = BMRU(3, 17, batch_first=True, backend=backend, dtype=torch.float64)
    x = torch.randn(2, 1, 3, dtype=torch.float64)
    output, h_n = rnn(x.expand(2, 40, 3), torch.randn(1, 2, 17, dtype=torch.float64))
    assert torch.equal(output, output[:, :1].expand_as(output))
    assert torch.equal(h_n[0], output[:, 0])

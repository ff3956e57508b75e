"""Latches: loop == parallel == chunks with carried state == single steps, bit for bit, for every backend and dtype.

A property of the recurrences: ``ops/portable.py`` and ``ops/cpu.py`` are compared with ``ops/reference.py``.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends import BACKENDS, DTYPES, FAST
from multistable.ops import bmru_scan, bmru_step, latch_scan
from nasty import LAYOUTS, SHAPES, VALUES, bmru_inputs, latch_inputs, shape_ids
from tolerances import assert_same_bits

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_fast_backend = pytest.mark.parametrize("backend", FAST)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_gate = pytest.mark.parametrize("gate", ["boolean", "float"])

sizes = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 9))
cases = st.fixed_dictionaries(
    {
        "values": st.sampled_from(sorted(VALUES)),
        "layout": st.sampled_from(sorted(LAYOUTS)),
        "shape": sizes,
        "seed": st.integers(0, 2**20),
    }
)


def in_chunks(scan, inputs, cuts, **options):
    """Scan chunk by chunk, each from the last state of the one before. ``inputs`` are [B, T, N] or constant."""
    T = inputs["reset"].shape[1]
    h, chunks = inputs["h0"], []
    for start, end in zip([0, *cuts], [*cuts, T], strict=True):
        along_time = {k: x[:, start:end] for k, x in inputs.items() if k not in ("alpha", "h0")}
        rest = {"alpha": inputs["alpha"]} if "alpha" in inputs else {}
        chunks.append(scan(**along_time, **rest, h0=h, **options))
        h = chunks[-1][:, -1] if end > start else h
    return torch.cat(chunks, dim=1)


def in_steps(inputs):
    """Scan with one ``bmru_step`` per timestep."""
    h, hs = inputs["h0"], []
    for t in range(inputs["cand"].shape[1]):
        h = torch.where(inputs["reset"][:, t, None], torch.zeros_like(h), h)
        h = bmru_step(inputs["cand"][:, t], inputs["beta"][:, t], inputs["alpha"], h)
        hs.append(h)
    return torch.stack(hs, dim=1) if hs else torch.zeros_like(inputs["cand"])


def without_none(inputs, state_of):
    """Replace h0 and reset by explicit zeros where they are None."""
    B, T, N = inputs[state_of].shape
    h0 = inputs[state_of].new_zeros(B, N) if inputs["h0"] is None else inputs["h0"]
    reset = torch.zeros(B, T, dtype=torch.bool) if inputs["reset"] is None else inputs["reset"]
    return inputs | {"h0": h0, "reset": reset}


def cuts_for(T):
    return sorted({min(cut, T) for cut in (1, 2, T // 2, max(T - 1, 0))})


@every_fast_backend
@every_dtype
@pytest.mark.parametrize("values", VALUES)
def test_bmru_scan_values(backend, dtype, values):
    inputs = bmru_inputs(dtype, values)
    assert_same_bits(bmru_scan(**inputs, backend=backend), bmru_scan(**inputs, backend="reference"))


@every_fast_backend
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=shape_ids)
def test_bmru_scan_shapes(backend, dtype, shape):
    inputs = bmru_inputs(dtype, shape=shape)
    assert_same_bits(bmru_scan(**inputs, backend=backend), bmru_scan(**inputs, backend="reference"))


@every_fast_backend
@every_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bmru_scan_layouts(backend, dtype, layout):
    inputs, plain = bmru_inputs(dtype, layout=layout), bmru_inputs(dtype)
    assert_same_bits(inputs["cand"], plain["cand"], "cand")
    assert_same_bits(bmru_scan(**inputs, backend=backend), bmru_scan(**plain, backend="reference"))


@every_backend
@every_dtype
@given(case=cases, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_bmru_scan_loop_parallel_chunks_and_steps(backend, dtype, case, cuts):
    inputs = bmru_inputs(dtype, **case)
    expected = bmru_scan(**inputs, backend="reference")
    assert_same_bits(bmru_scan(**inputs, backend=backend), expected, "whole")
    inputs = without_none(inputs, "cand")
    cuts = sorted(min(cut, expected.shape[1]) for cut in cuts)
    assert_same_bits(in_chunks(bmru_scan, inputs, cuts, backend=backend), expected, f"chunks {cuts}")
    assert_same_bits(in_steps(inputs), expected, "steps")
    with torch.no_grad():
        assert_same_bits(in_steps(inputs), expected, "steps without gradients")


@every_backend
@every_dtype
@pytest.mark.parametrize("values", VALUES)
def test_bmru_scan_chunks_and_steps(backend, dtype, values):
    inputs = without_none(bmru_inputs(dtype, values), "cand")
    expected = bmru_scan(**inputs, backend="reference")
    assert_same_bits(in_chunks(bmru_scan, inputs, cuts_for(17), backend=backend), expected, "chunks")
    assert_same_bits(in_steps(inputs), expected, "steps")
    with torch.no_grad():
        assert_same_bits(in_steps(inputs), expected, "steps without gradients")


@every_fast_backend
@every_dtype
@every_gate
@pytest.mark.parametrize("values", VALUES)
def test_latch_scan_values(backend, dtype, gate, values):
    inputs = latch_inputs(dtype, values, gate=gate)
    assert_same_bits(latch_scan(**inputs, backend=backend), latch_scan(**inputs, backend="reference"))


@every_fast_backend
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=shape_ids)
def test_latch_scan_shapes(backend, dtype, shape):
    inputs = latch_inputs(dtype, shape=shape)
    assert_same_bits(latch_scan(**inputs, backend=backend), latch_scan(**inputs, backend="reference"))


@every_backend
@every_dtype
@every_gate
@given(case=cases, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_latch_scan_loop_parallel_and_chunks(backend, dtype, gate, case, cuts):
    inputs = latch_inputs(dtype, gate=gate, **case)
    expected = latch_scan(**inputs, backend="reference")
    assert_same_bits(latch_scan(**inputs, backend=backend), expected, "whole")
    cuts = sorted(min(cut, expected.shape[1]) for cut in cuts)
    chunks = in_chunks(latch_scan, without_none(inputs, "value"), cuts, backend=backend)
    assert_same_bits(chunks, expected, f"chunks {cuts}")


@every_backend
@every_dtype
def test_bmru_scan_matches_states_worked_out_by_hand(backend, dtype):
    """One unit and every kind of step."""
    cand = [0.5, -2.0, 0.5, -1.0, 0.0, -0.0, 0.25, 3.0, 0.1]
    beta = [1.0, -1.0, 1.0, 1.0, 1.0, 0.00, -4.0, 3.0, 1.0]
    reset = [False, False, False, False, True, False, False, False, True]
    h = [0.75, -1.5, -1.5, -1.5, 0.0, 1.5, 1.5, 1.5, 0.0]
    column = lambda x: torch.tensor(x, dtype=dtype)[None, :, None]  # noqa: E731
    states = bmru_scan(
        column(cand),
        column(beta),
        torch.tensor([1.5], dtype=dtype),
        torch.tensor([[0.75]], dtype=dtype),
        reset=torch.tensor([reset]),
        backend=backend,
    )
    assert states.flatten().tolist() == h


@pytest.mark.usefixtures("two_threads")
@every_fast_backend
@pytest.mark.parametrize("shape", [(1, 17, 4097), (5, 17, 1025)], ids=shape_ids)
def test_bmru_scan_large_enough_for_threads(backend, shape):
    inputs = bmru_inputs(torch.float32, shape=shape)
    assert_same_bits(bmru_scan(**inputs, backend=backend), bmru_scan(**inputs, backend="reference"))


@every_fast_backend
@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "time"])
def test_strides_beyond_31_bits(backend, axis, monkeypatch):
    """Rows are 2^29 numbers apart, so that four of them exceed 2^31. Most of the 5 GiB are never touched."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # it would touch all of them
    inputs = bmru_inputs(torch.float16, shape=(6, 6, 3))
    strides = (1 << 29, 3, 1) if axis == 0 else (3, 1 << 29, 1)
    far = torch.empty(5 * (1 << 29) + 18, dtype=torch.float16).as_strided((6, 6, 3), strides)
    assert_same_bits(
        bmru_scan(**inputs | {"cand": far.copy_(inputs["cand"])}, backend=backend),
        bmru_scan(**inputs, backend="reference"),
    )

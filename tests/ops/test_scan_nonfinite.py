"""NaN and infinity in the recurrences, on every backend: a diverged model must not look like one that remembers."""

from functools import partial
from math import inf, nan

import pytest
import torch

from backends import BACKENDS, DTYPES
from gradients import gradients
from multistable.ops import bmru_scan, latch_scan
from multistable.ops.layer_scans import bmru_layer
from nasty import bmru_inputs

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def one_unit(cand, beta, backend, dtype=torch.float32, **options):
    column = lambda x: torch.tensor(x, dtype=dtype)[None, :, None]  # noqa: E731
    h = bmru_scan(column(cand), column(beta), torch.ones(1, dtype=dtype), backend=backend, **options)
    return h.flatten().tolist()


@every_backend
@every_dtype
@pytest.mark.parametrize(("cand", "beta"), [(nan, 1.0), (1.0, nan), (nan, nan), (-nan, inf), (inf, -nan), (nan, inf)])
def test_bmru_scan_nan_is_written_and_kept(backend, dtype, cand, beta):
    h = one_unit([2.0, cand, 0.0, 0.0], [1.0, beta, 1.0, 1.0], backend, dtype)
    assert h[0] == 1.0
    assert all(x != x for x in h[1:])


@every_backend
@every_dtype
def test_bmru_scan_the_next_write_replaces_nan(backend, dtype):
    h = one_unit([nan, 0.0, -2.0, 0.0], [1.0, 1.0, 1.0, 1.0], backend, dtype)
    assert h[1] != h[1]
    assert h[2:] == [-1.0, -1.0]


@every_backend
@every_dtype
def test_bmru_scan_a_reset_clears_nan(backend, dtype):
    h = one_unit([nan, 0.0, 0.0], [1.0, 1.0, 1.0], backend, dtype, reset=torch.tensor([[False, False, True]]))
    assert h[1] != h[1]
    assert h[2] == 0.0


@every_backend
@every_dtype
@pytest.mark.parametrize("cand", [inf, -inf])
@pytest.mark.parametrize("beta", [inf, -inf])
def test_bmru_scan_writes_where_candidate_and_threshold_are_infinite(backend, dtype, cand, beta):
    assert one_unit([cand, 0.0], [beta, 1.0], backend, dtype) == [1.0 if cand > 0 else -1.0] * 2


@every_backend
@every_dtype
def test_bmru_scan_infinite_threshold_holds(backend, dtype):
    assert one_unit([-2.0, 1.0, 1.0], [1.0, inf, -inf], backend, dtype) == [-1.0, -1.0, -1.0]


@every_backend
@every_dtype
def test_bmru_scan_infinite_state_is_selected_not_multiplied(backend, dtype):
    """inf * 0 is NaN: with products, every write after an infinite h0 would be NaN."""
    zeros = torch.zeros(1, 3, 1, dtype=dtype)
    beta = torch.tensor([1.0, 0.0, 1.0], dtype=dtype)[None, :, None]
    h = bmru_scan(zeros, beta, torch.ones(1, dtype=dtype), torch.full((1, 1), inf, dtype=dtype), backend=backend)
    assert h.flatten().tolist() == [inf, 1.0, 1.0]


@every_backend
@pytest.mark.parametrize("values", ["nan", "nan_in_cand", "nan_in_beta"])
def test_bmru_scan_gradient_of_nan_is_nan(backend, values):
    inputs = bmru_inputs(torch.float64, values)
    grads = gradients(partial(bmru_scan, backend=backend), inputs, ["cand", "beta"])
    bad = inputs["cand"].isnan() | inputs["beta"].isnan()
    assert bad.any()
    for name in ("cand", "beta"):
        assert grads[name][bad].isnan().all(), name


@every_backend
@pytest.mark.parametrize("alpha_surr", [0.0, 1.0])
def test_bmru_scan_gradient_at_an_infinite_distance(backend, alpha_surr):
    """A threshold that nothing reaches, and a candidate beyond any. The straight-through estimator passes there, too;
    where both are infinite there is no distance."""
    cand, beta = ([[[x] for x in xs]] for xs in ([1.0, -0.5, inf, inf], [0.5, inf, 1.0, inf]))
    inputs = {"cand": torch.tensor(cand), "beta": torch.tensor(beta), "alpha": torch.tensor([3.0])}
    function = partial(bmru_scan, alpha_surr=alpha_surr, backend=backend)
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    dcand, dbeta = torch.autograd.grad(function(**leaves).cumsum(1).sum(), [leaves["cand"], leaves["beta"]])
    assert dcand.isnan().flatten().tolist() == [False, False, False, True]
    assert dbeta.isnan().flatten().tolist() == [False, False, False, True]
    if alpha_surr == 0.0:  # the gradients of the states are 4, 3, 2, 1; the first value is written and held
        assert dcand.flatten().tolist()[:3] == [7 * 3 * (1 + 2), 3 * 6, 2 * 3 * 2]
        assert dbeta.flatten().tolist()[:3] == [-7 * 3, 3 * 6, 0.0]


@every_backend
def test_bmru_scan_nan_stays_in_its_unit(backend):
    inputs = bmru_inputs(torch.float64)
    clean = bmru_scan(**inputs, backend=backend)
    inputs["cand"][1, 3, 2] = nan
    h = bmru_scan(**inputs, backend=backend)
    h[1, 3:, 2] = clean[1, 3:, 2]
    assert torch.equal(h, clean)


@every_backend
@every_dtype
def test_latch_scan_nan_in_a_float_gate_is_written(backend, dtype):
    write = torch.tensor([1.0, nan, 0.0, 1.0], dtype=dtype)[None, :, None]
    value = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype)[None, :, None]
    h = latch_scan(write, value, backend=backend).flatten()
    assert h.isnan().tolist() == [False, True, True, False]


@every_backend
@every_dtype
def test_latch_scan_ignores_values_it_does_not_write(backend, dtype):
    write = torch.tensor([True, False, False])[None, :, None]
    value = torch.tensor([1.0, nan, inf], dtype=dtype)[None, :, None]
    assert latch_scan(write, value, backend=backend).flatten().tolist() == [1.0, 1.0, 1.0]


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
def test_bmru_layer_last_state_is_nan_where_the_sequence_is(backend, reverse):
    inputs = bmru_inputs(torch.float32, "nan", shape=(4, 9, 3))
    proj = torch.cat([inputs["cand"], inputs["beta"]], dim=-1)
    options = {"alpha_surr": 1.0, "reset": None, "reverse": reverse, "time_major": False}
    h, h_last = bmru_layer(proj, inputs["alpha"], None, **options, backend=backend)
    assert h_last.isnan().any()
    assert torch.equal(h_last.isnan(), h[:, 0 if reverse else -1].isnan())

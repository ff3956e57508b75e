"""Bad arguments raise an error that names the argument, what was expected and what was passed."""

import math
from functools import partial

import pytest
import torch

from backends import BACKENDS
from multistable import BMRU, MRU, BMRUCell, Hybrid, HysteresisMRU
from multistable.dynamics import simplified_brc
from multistable.ops import bmru_scan, latch_scan, linear_scan
from multistable.ops.layer_scans import bmru_layer, linear_layer
from nasty import bmru_inputs, latch_inputs

every_backend = pytest.mark.parametrize("backend", BACKENDS)
bad_slopes = pytest.mark.parametrize(
    ("alpha_surr", "wanted"),
    [(-1.0, "not be negative"), (math.nan, "not be negative"), (math.inf, "be finite"), ("steep", "be a number")],
)

SHORT = lambda x: x[:, :-1]  # noqa: E731
DOUBLE = lambda x: x.double()  # noqa: E731
INTEGER = lambda x: x.int()  # noqa: E731
COMPLEX = lambda x: x.to(torch.complex64)  # noqa: E731
META = lambda x: x.to("meta")  # noqa: E731
FLAT = lambda x: x.flatten()  # noqa: E731
QUARTER = lambda x: x.to(torch.float8_e5m2)  # noqa: E731
LIST = lambda x: x.tolist()  # noqa: E731
SPARSE = lambda x: x.to_sparse()  # noqa: E731

BAD_BMRU = [
    ("cand", FLAT, r"cand must have shape \[B, T, N\], got \[255\]"),
    ("cand", INTEGER, r"cand must be floating point, got torch.int32"),
    ("cand", COMPLEX, r"cand must be floating point, got torch.complex64"),
    ("cand", LIST, r"cand must be a tensor, got list"),
    ("cand", SPARSE, r"cand must be a dense tensor, got torch.sparse_coo"),
    ("cand", QUARTER, r"cand must have 16, 32 or 64 bits per number, got torch.float8_e5m2"),
    ("beta", SHORT, r"beta must have shape \[3, 17, 5\] .*, got \[3, 16, 5\]"),
    ("beta", DOUBLE, r"beta must have cand's dtype torch.float32, got torch.float64"),
    ("beta", META, r"beta must be on cpu .*, got meta"),
    ("beta", lambda x: None, r"beta must be a tensor, got NoneType"),
    ("alpha", lambda x: 1.0, r"alpha must be a tensor, got float"),
    ("alpha", lambda x: x[:-1], r"alpha must have shape \[5\] .*, got \[4\]"),
    ("alpha", INTEGER, r"alpha must be floating point, got torch.int32"),
    ("alpha", META, r"alpha must be on cpu .*, got meta"),
    ("h0", SHORT, r"h0 must have shape \[3, 5\] .*, got \[3, 4\]"),
    ("h0", LIST, r"h0 must be a tensor, got list"),
    ("h0", INTEGER, r"h0 must be floating point, got torch.int32"),
    ("h0", COMPLEX, r"h0 must be floating point, got torch.complex64"),
    ("h0", META, r"h0 must be on cpu .*, got meta"),
    ("reset", SHORT, r"reset must have shape \[3, 17\] .*, got \[3, 16\]"),
    ("reset", LIST, r"reset must be a tensor, got list"),
    ("reset", INTEGER, r"reset must be boolean, got torch.int32"),
    ("reset", META, r"reset must be on cpu .*, got meta"),
]
BAD_LATCH = [
    ("write", LIST, r"write must be a tensor, got list"),
    ("value", LIST, r"value must be a tensor, got list"),
    ("write", SHORT, r"write must have shape \[3, 17, 5\] .*, got \[3, 16, 5\]"),
    ("write", INTEGER, r"write must be boolean or of value's dtype torch.float32, got torch.int32"),
    ("write", META, r"write must be on cpu .*, got meta"),
    ("value", FLAT, r"value must have shape \[B, T, N\], got \[255\]"),
    ("value", COMPLEX, r"value must be floating point, got torch.complex64"),
    ("h0", SHORT, r"h0 must have shape \[3, 5\]"),
    ("reset", SHORT, r"reset must have shape \[3, 17\]"),
]
BAD_LINEAR = [
    ("a", lambda x: 0.5, r"a must be a tensor, got float"),
    ("b", LIST, r"b must be a tensor, got list"),
    ("a", SHORT, r"a must have shape \[3, 17, 5\] .*, got \[3, 16, 5\]"),
    ("a", FLAT, r"a must have shape \[5\] .*, got \[255\]"),
    ("a", DOUBLE, r"a must have b's dtype torch.float32 when it changes in time, got torch.float64"),
    ("a", COMPLEX, r"a and b must both be real or both complex"),
    ("a", META, r"a must be on cpu .*, got meta"),
    ("a", lambda x: x[0, 0].long(), r"a must be floating point or complex, got torch.int64"),
    ("b", FLAT, r"b must have shape \[B, T, N\], got \[255\]"),
    ("b", INTEGER, r"b must be floating point or complex, got torch.int32"),
    ("h0", SHORT, r"h0 must have shape \[3, 5\]"),
    ("h0", COMPLEX, r"h0 must be floating point, got torch.complex64"),
    ("reset", INTEGER, r"reset must be boolean, got torch.int32"),
]


def bad_arguments(cases):
    ids = [f"{argument}-{message.partition(' must ')[2][:22]}-{i}" for i, (argument, _, message) in enumerate(cases)]
    return pytest.mark.parametrize(("argument", "spoil", "message"), cases, ids=ids)


@every_backend
@bad_arguments(BAD_BMRU)
def test_bad_arguments_of_bmru_scan_raise(argument, spoil, message, backend):
    inputs = bmru_inputs(torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        bmru_scan(**(inputs | {argument: spoil(inputs[argument])}), backend=backend)


@every_backend
@bad_arguments(BAD_LATCH)
def test_bad_arguments_of_latch_scan_raise(argument, spoil, message, backend):
    inputs = latch_inputs(torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        latch_scan(**(inputs | {argument: spoil(inputs[argument])}), backend=backend)


@every_backend
@bad_arguments(BAD_LINEAR)
def test_bad_arguments_of_linear_scan_raise(argument, spoil, message, backend):
    x = bmru_inputs(torch.float32)
    inputs = {"a": x["cand"], "b": x["beta"], "h0": x["h0"], "reset": x["reset"]}
    with pytest.raises((ValueError, TypeError), match=message):
        linear_scan(**(inputs | {argument: spoil(inputs[argument])}), backend=backend)


@every_backend
@bad_slopes
def test_bad_slopes_of_bmru_scan_raise(alpha_surr, wanted, backend):
    with pytest.raises((ValueError, TypeError), match=f"alpha_surr must {wanted}, got {alpha_surr!r}"):
        bmru_scan(**bmru_inputs(torch.float32), alpha_surr=alpha_surr, backend=backend)


@pytest.mark.parametrize("make", [BMRU, BMRUCell, Hybrid, HysteresisMRU, partial(MRU, simplified_brc())])
@bad_slopes
def test_bad_slopes_of_layers_raise(make, alpha_surr, wanted):
    with pytest.raises((ValueError, TypeError), match=f"alpha_surr must {wanted}, got {alpha_surr!r}"):
        make(3, 4, alpha_surr=alpha_surr)


def test_layer_operators_check_h0_and_reset():
    options = {"reverse": False, "time_major": True, "backend": "cpu"}
    with pytest.raises(ValueError, match=r"h0 must have shape \[2, 4\]"):
        bmru_layer(torch.randn(5, 2, 8), torch.ones(4), torch.zeros(3, 4), alpha_surr=1.0, reset=None, **options)
    with pytest.raises(ValueError, match=r"reset must have shape \[2, 5\]"):
        linear_layer(
            torch.ones(4), torch.randn(5, 2, 4), None, pairs=False, reset=torch.zeros(5, 2, dtype=torch.bool), **options
        )

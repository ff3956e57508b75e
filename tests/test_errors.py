"""Bad input gets one sentence that names the argument, what came and what was expected."""

import math
from functools import partial

import pytest
import torch

from backends import BACKENDS
from multistable import BMRU, MRU, BMRUCell, Hybrid, HysteresisMRU
from multistable.dynamics import simplified_brc
from multistable.ops import bmru_layer, bmru_scan, explain, latch_scan, linear_layer, linear_scan
from nasty import bmru_inputs, latch_inputs

every_backend = pytest.mark.parametrize("backend", BACKENDS)
wrong_slopes = pytest.mark.parametrize(
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

WRONG_BMRU = [
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
WRONG_LATCH = [
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
WRONG_LINEAR = [
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


def wrong(cases):
    ids = [f"{argument}-{message.partition(' must ')[2][:22]}-{i}" for i, (argument, _, message) in enumerate(cases)]
    return pytest.mark.parametrize(("argument", "spoil", "message"), cases, ids=ids)


@every_backend
@wrong(WRONG_BMRU)
def test_bmru_scan_refuses(argument, spoil, message, backend):
    inputs = bmru_inputs(torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        bmru_scan(**(inputs | {argument: spoil(inputs[argument])}), backend=backend)


@every_backend
@wrong(WRONG_LATCH)
def test_latch_scan_refuses(argument, spoil, message, backend):
    inputs = latch_inputs(torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        latch_scan(**(inputs | {argument: spoil(inputs[argument])}), backend=backend)


@every_backend
@wrong(WRONG_LINEAR)
def test_linear_scan_refuses(argument, spoil, message, backend):
    x = bmru_inputs(torch.float32)
    inputs = {"a": x["cand"], "b": x["beta"], "h0": x["h0"], "reset": x["reset"]}
    with pytest.raises((ValueError, TypeError), match=message):
        linear_scan(**(inputs | {argument: spoil(inputs[argument])}), backend=backend)


@every_backend
@wrong_slopes
def test_bmru_scan_refuses_a_slope(alpha_surr, wanted, backend):
    with pytest.raises((ValueError, TypeError), match=f"alpha_surr must {wanted}, got {alpha_surr!r}"):
        bmru_scan(**bmru_inputs(torch.float32), alpha_surr=alpha_surr, backend=backend)


@pytest.mark.parametrize("make", [BMRU, BMRUCell, Hybrid, HysteresisMRU, partial(MRU, simplified_brc())])
@wrong_slopes
def test_cells_refuse_a_slope(make, alpha_surr, wanted):
    with pytest.raises((ValueError, TypeError), match=f"alpha_surr must {wanted}, got {alpha_surr!r}"):
        make(3, 4, alpha_surr=alpha_surr)


def test_unknown_backend():
    message = r"backend must be 'auto' or one of .*'portable'.*, got 'cuda'"
    x = bmru_inputs(torch.float32)
    with pytest.raises(ValueError, match=message):
        bmru_scan(**x, backend="cuda")
    with pytest.raises(ValueError, match=message):
        latch_scan(x["cand"] > 0, x["beta"], backend="cuda")
    with pytest.raises(ValueError, match=message):
        linear_scan(x["cand"], x["beta"], backend="cuda")
    with pytest.raises(ValueError, match=message):
        BMRU(3, 5, backend="cuda")
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of .*, got \['cpu'\]"):
        BMRU(3, 5, backend=["cpu"])


def test_explain_refuses_what_is_no_tensor():
    with pytest.raises(TypeError, match="x must be a tensor, got str"):
        explain("cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size must be a positive integer, got 0"),
        ({"hidden_size": -1}, "hidden_size must be a positive integer, got -1"),
        ({"hidden_size": 2.5}, "hidden_size must be a positive integer, got 2.5"),
        ({"num_layers": 0}, "num_layers must be a positive integer, got 0"),
        ({"dropout": 1.5}, "dropout must be a probability between 0 and 1, got 1.5"),
        ({"dropout": True}, "dropout must be a probability between 0 and 1, got True"),
        ({"bias": "no"}, "bias must be True or False, got 'no'"),
        ({"batch_first": 1}, "batch_first must be True or False, got 1"),
        ({"bidirectional": None}, "bidirectional must be True or False, got None"),
        ({"alpha_surr": -1.0}, "alpha_surr must not be negative, got -1.0"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_bmru_refuses_constructor_arguments(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BMRU(**({"input_size": 3, "hidden_size": 5} | options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input": None}, r"input must be a tensor, got NoneType"),
        ({"input": torch.zeros(7, 2, 3).numpy()}, r"input must be a tensor, got ndarray"),
        ({"input": torch.zeros(7, 2, 3).double()}, r"input must have the dtype of the weights, torch.float32, got"),
        ({"input": torch.zeros(7, 2, 3, device="meta")}, r"input must be on cpu like the weights, got meta"),
        ({"input": torch.zeros(7)}, r"input must have 2 or 3 dimensions .*, got 1"),
        ({"input": torch.zeros(7, 2, 4)}, r"input must have 3 features \(input_size\), got 4"),
        ({"hx": torch.zeros(1, 2, 4)}, r"hx must have shape \[1, 2, 5\] .*, got \[1, 2, 4\]"),
        ({"hx": torch.zeros(2, 2, 5)}, r"hx must have shape \[1, 2, 5\] .*, got \[2, 2, 5\]"),
        ({"hx": torch.zeros(1, 2, 5, device="meta")}, r"hx must be on cpu like the input, got meta"),
        ({"hx": torch.zeros(1, 2, 5, dtype=torch.int32)}, r"hx must be floating point, got torch.int32"),
        ({"hx": (torch.zeros(1, 2, 5),) * 2}, r"hx must be one tensor, got tuple"),
        ({"input": torch.zeros(7, 3), "hx": torch.zeros(1, 1, 5)}, r"hx must have 2 dimensions for unbatched input"),
        ({"reset": torch.zeros(2, 7, dtype=torch.bool)}, r"reset must be boolean of shape \[7, 2\], .* \[2, 7\]"),
        ({"reset": torch.zeros(7, 2)}, r"reset must be boolean of shape \[7, 2\], got torch.float32"),
        ({"reset": torch.zeros(7, 2, dtype=torch.bool, device="meta")}, r"reset must be on cpu .*, got meta"),
        ({"reset": "ab"}, r"reset must be a tensor or nested lists, got 'ab'"),
        ({"reset": [[True], [True, False]]}, r"reset must be a tensor or nested lists, got \[\[True\], "),
        ({"input": torch.zeros(7, 3), "reset": "ab"}, r"reset must be a tensor or nested lists, got 'ab'"),
        ({"lengths": [1, None]}, r"lengths must be a tensor or nested lists, got \[1, None\]"),
        ({"lengths": torch.tensor([1, 2, 3])}, r"lengths must be 2 integers \(one per sequence\), got .* \[3\]"),
        ({"lengths": torch.tensor([1.0, 2.0])}, r"lengths must be 2 integers .* torch.float32"),
        ({"lengths": torch.tensor([True, False])}, r"lengths must be 2 integers .* torch.bool"),
        ({"lengths": torch.tensor([1, 8])}, r"lengths must lie between 0 and T = 7, got \[1, 8\]"),
        ({"lengths": torch.tensor([-1, 7])}, r"lengths must lie between 0 and T = 7, got \[-1, 7\]"),
        ({"input": torch.zeros(7, 3), "lengths": torch.tensor([7])}, r"lengths needs batched input"),
    ],
)
def test_bmru_refuses_input(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BMRU(3, 5)(**({"input": torch.zeros(7, 2, 3)} | arguments))


def test_bmru_refuses_a_nested_tensor():
    nested = torch.nested.nested_tensor([torch.zeros(3, 3), torch.zeros(2, 3)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"input must be a padded tensor or a PackedSequence, got a nested tensor"):
        BMRU(3, 5)(nested)


def test_bmru_refuses_reset_beside_packed_input():
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3, 3), torch.zeros(2, 3)])
    with pytest.raises(ValueError, match="reset and lengths go with padded input"):
        BMRU(3, 5)(packed, lengths=torch.tensor([3, 2]))


def test_bmru_refuses_packed_input():
    numbers = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    with pytest.raises(ValueError, match=r"input must be packed sequences \[T, 3\], got sequences \[T\]"):
        BMRU(3, 5)(numbers)
    unsorted = torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 3), torch.zeros(3, 3)], enforce_sorted=False)
    with pytest.raises(ValueError, match=r"hx must have shape \[1, 2, 5\] .*, got \[1, 1, 5\]"):
        BMRU(3, 5)(unsorted, torch.zeros(1, 1, 5))


def test_step_refuses():
    rnn = BMRU(3, 5, num_layers=2)
    with pytest.raises(ValueError, match=r"x must have shape \[B, 3\] or \[3\], got \[2, 4\]"):
        rnn.step(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"state must have shape \[2, 4, 5\], got \[1, 4, 5\]"):
        rnn.step(torch.zeros(4, 3), torch.zeros(1, 4, 5))
    with pytest.raises(TypeError, match=r"x must have the dtype of the weights, torch.float32, got torch.float64"):
        rnn.step(torch.zeros(2, 3).double())
    with pytest.raises(TypeError, match=r"state must be one tensor, got tuple"):
        rnn.step(torch.zeros(4, 3), (torch.zeros(2, 4, 5),) * 2)
    with pytest.raises(TypeError, match=r"state must be floating point, got torch.int64"):
        rnn.step(torch.zeros(4, 3), torch.zeros(2, 4, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"state must be on cpu like the input, got meta"):
        rnn.step(torch.zeros(4, 3), torch.zeros(2, 4, 5, device="meta"))
    with pytest.raises(RuntimeError, match="step needs a unidirectional BMRU"):
        BMRU(3, 5, bidirectional=True).step(torch.zeros(2, 3))


def test_bmru_cell_refuses():
    with pytest.raises(ValueError, match="input_size must be a positive integer, got 0"):
        BMRUCell(0, 5)
    with pytest.raises(ValueError, match="alpha_surr must not be negative, got nan"):
        BMRUCell(3, 5, alpha_surr=float("nan"))
    cell = BMRUCell(3, 5)
    with pytest.raises(TypeError, match=r"input must have the dtype of the weights, torch.float32, got torch.float16"):
        cell(torch.zeros(2, 3).half())
    with pytest.raises(ValueError, match=r"input must have shape \[B, 3\] or \[3\], got \[2, 4\]"):
        cell(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"hx must have shape \[2, 5\], got \[2, 4\]"):
        cell(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"hx must be one tensor, got list"):
        cell(torch.zeros(2, 3), [0.0] * 5)
    with pytest.raises(ValueError, match=r"input must be on meta like the weights, got cpu"):
        BMRUCell(3, 5, device="meta")(torch.zeros(2, 3))


def test_layer_operators_check_the_state():
    options = {"reverse": False, "time_major": True, "backend": "cpu"}
    with pytest.raises(ValueError, match=r"h0 must have shape \[2, 4\]"):
        bmru_layer(torch.randn(5, 2, 8), torch.ones(4), torch.zeros(3, 4), alpha_surr=1.0, reset=None, **options)
    with pytest.raises(ValueError, match=r"reset must have shape \[2, 5\]"):
        linear_layer(
            torch.ones(4), torch.randn(5, 2, 4), None, pairs=False, reset=torch.zeros(5, 2, dtype=torch.bool), **options
        )


def test_layer_refuses_integers_and_takes_a_list_of_marks():
    rnn = BMRU(3, 4, batch_first=True)
    with pytest.raises(TypeError, match=r"input must be floating point, got torch\.int64"):
        rnn(torch.ones(2, 5, 3, dtype=torch.int64))
    assert rnn(torch.randn(1, 2, 3), reset=[[True, False]])[0].shape == (1, 2, 4)
    assert rnn(torch.randn(2, 3), reset=[True, False])[0].shape == (2, 4)
    with pytest.raises(ValueError, match="dropout must be a probability between 0 and 1, got 'a'"):
        BMRU(3, 4, dropout="a")

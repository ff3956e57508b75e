"""The inputs with which torch tests ``nn.GRU`` and ``nn.GRUCell``, on every layer of ours.

Checks are our own, for what torch's module tests ask. Exceptions: torch takes 2 and 3 hidden units. An LRU needs an
even number and a hybrid at least 3, so they get twice as many (``WIDER``), with a state to match. An LSTM's state is
one tensor of 2N numbers, and that of an FSM says in which of its states each unit is, so an FSM gets none of torch's.
Error messages are ours. There is no check on second derivatives: see test_operators.py.
"""

import copy
import pickle
import warnings
from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

from layer_names import NAMES
from multistable import BMRUCell, Stack
from multistable.layers import find_layer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    common_modules = pytest.importorskip("torch.testing._internal.common_modules")

WIDER = ("lru", "hybrid", "stack:lru", "stack:hybrid")
STACKS = ("stack:bmru", "stack:lru", "stack:hybrid")
SMOOTH = ("lru", "mingru", "brc", "nbrc", "gru", "lstm", "clocked:simplified_brc:3", "clocked:linear:2", "stack:lru")
"""Layers without jumps, whose gradients finite differences can check; the others have a surrogate."""


@pytest.fixture(params=[*NAMES, *STACKS])
def name(request) -> str:
    return request.param


def constructor(name):
    if name in STACKS:
        return partial(Stack, name.split(":")[1])
    kind, fixed = find_layer(name)
    return partial(kind, **fixed) if "field" not in fixed else partial(with_field, kind, fixed)


def with_field(kind, fixed, *args, **options):
    """The field is the first argument of these layers."""
    rest = {key: value for key, value in fixed.items() if key != "field"}
    return kind(fixed["field"], *args, **rest, **options)


def samples(name, dtype=torch.float64, requires_grad=False):
    """Layers and their inputs, as torch makes them."""
    make_inputs = common_modules.module_inputs_torch_nn_RNN_GRU
    torch.manual_seed(0)
    for sample in make_inputs(None, "cpu", dtype, requires_grad, True, with_packed_sequence=True, is_rnn=False):
        options = dict(sample.constructor_input.kwargs)
        args = list(sample.forward_input.args)
        if name in WIDER:
            options["hidden_size"] *= 2
        if name.startswith("fsm"):
            args = args[:1]
        if len(args) > 1 and (name in WIDER or name == "lstm"):
            args[1] = args[1].detach().repeat(1, 2).requires_grad_(requires_grad)
        torch.manual_seed(1)
        yield constructor(name)(**options, dtype=dtype), args, sample.reference_fn


def tensors(outputs):
    return [x.data if isinstance(x, PackedSequence) else x for x in outputs]


def assert_equal(actual, expected):
    for a, b in zip(tensors(actual), tensors(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_torch_has_samples():
    """The other tests here would pass without any."""
    rnns, args = zip(*((rnn, args[0]) for rnn, args, _ in samples("gru")), strict=True)
    assert {rnn.bidirectional for rnn in rnns} == {False, True}
    assert {type(x) for x in args} == {torch.Tensor, PackedSequence}
    for kind in ("module_error_inputs_torch_nn_RNN_GRU", "module_error_inputs_torch_nn_RNN_GRU_Cell"):
        assert len(list(getattr(common_modules, kind)(None, "cpu", torch.float32, False, True))) >= 4
    make_inputs = common_modules.module_inputs_torch_nn_RNN_GRU_Cell
    assert list(make_inputs(None, "cpu", torch.float32, False, True))


def test_forward_is_that_of_a_batch_of_one(name):
    """torch's own reference function; a packed sequence has no unbatched form."""
    for rnn, args, reference in samples(name):
        if not isinstance(args[0], PackedSequence):
            assert_equal(rnn(*args), reference(rnn, *args))


def test_gradients(name):
    """Of every parameter and input; by finite differences where there is no jump."""
    for rnn, args, _ in samples(name, requires_grad=True):
        leaves = [args[0].data if isinstance(args[0], PackedSequence) else args[0], *args[1:]]
        loss = sum(x.square().sum() for x in tensors(rnn(*args)))
        grads = torch.autograd.grad(loss, [*leaves, *rnn.parameters()])
        assert all(grad.isfinite().all() for grad in grads)
        if name in SMOOTH and rnn.bidirectional and not isinstance(args[0], PackedSequence):
            assert torch.autograd.gradcheck(lambda *given, rnn=rnn: tuple(rnn(*given)), tuple(args), fast_mode=True)


def test_copies_and_state_dict(name):
    for rnn, args, _ in samples(name):
        expected = rnn(*args)
        for other in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
            assert_equal(other(*args), expected)
        with torch.no_grad():
            other = copy.deepcopy(rnn)
            for parameter in other.parameters():
                parameter.add_(1.0)
        other.load_state_dict(rnn.state_dict())
        assert_equal(other(*args), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtypes_devices_and_modes(name, dtype):
    for rnn, args, _ in samples(name, dtype):
        assert {p.dtype for p in rnn.parameters()} == {dtype}
        assert {x.dtype for x in tensors(rnn(*args))} == {dtype}
        assert_equal(rnn.eval()(*args), rnn.train()(*args))  # no dropout in torch's samples
        assert {p.device.type for p in copy.deepcopy(rnn).to("meta").parameters()} == {"meta"}
        assert type(rnn).__name__ in repr(rnn)


def test_inputs_that_are_not_contiguous(name):
    for rnn, args, _ in samples(name):
        if isinstance(args[0], PackedSequence):
            continue
        strided = [torch.stack([x, torch.full_like(x, torch.nan)], dim=-1)[..., 0] for x in args]
        assert not any(x.is_contiguous() for x in strided)
        assert_equal(rnn(*strided), rnn(*args))


def test_bad_input(name):
    """torch's own; the messages are ours, and a wrong dtype or size may be a TypeError or a ValueError."""
    make_errors = common_modules.module_error_inputs_torch_nn_RNN_GRU
    for sample in make_errors(None, "cpu", torch.float32, False, True):
        given = sample.module_error_input
        options = dict(given.constructor_input.kwargs)
        forward = sample.error_on is common_modules.ModuleErrorEnum.FORWARD_ERROR
        if forward:
            rnn = constructor(name)(given.constructor_input.args[0], 6, **options)
            with pytest.raises((TypeError, ValueError)):
                rnn(*given.forward_input.args)
        else:
            with pytest.raises((TypeError, ValueError)):
                constructor(name)(*given.constructor_input.args, **options)


def test_cell():
    """torch's samples of ``nn.GRUCell``."""
    make_inputs = common_modules.module_inputs_torch_nn_RNN_GRU_Cell
    for sample in make_inputs(None, "cpu", torch.float64, False, True):
        cell = BMRUCell(*sample.constructor_input.args, **sample.constructor_input.kwargs, dtype=torch.float64)
        args = sample.forward_input.args
        expected = sample.reference_fn(cell, *args)
        torch.testing.assert_close(cell(*args), expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(pickle.loads(pickle.dumps(cell))(*args), cell(*args))
    make_errors = common_modules.module_error_inputs_torch_nn_RNN_GRU_Cell
    for sample in make_errors(None, "cpu", torch.float32, False, True):
        given = sample.module_error_input
        cell = BMRUCell(*given.constructor_input.args, **given.constructor_input.kwargs)
        with pytest.raises((TypeError, ValueError)):
            cell(*given.forward_input.args)

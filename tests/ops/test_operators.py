"""The registered operators (``ops/operators.py``): opcheck (schema, fake tensors, autograd, dynamic shapes), modes."""

from typing import ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode

from backends import FAST
from multistable import ops
from multistable.ops.operators import call
from nasty import bmru_inputs, latch_inputs

every_fast_backend = pytest.mark.parametrize("backend", FAST)
with_and_without_state = pytest.mark.parametrize("state", [True, False], ids=["h0-reset", "no-h0-no-reset"])


def leaf(x):
    return x.detach().clone().requires_grad_() if x is not None and x.is_floating_point() else x


def bmru_arguments(backend, state):
    x = bmru_inputs(torch.float32, "plain" if state else "nothing_but_input", shape=(2, 5, 3))
    return [x["cand"], x["beta"], x["alpha"], x["h0"], x["reset"], 1.0, False, backend]


def layer_arguments(backend, state, time_major):
    cand, beta, *rest = bmru_arguments(backend, state)
    proj = torch.cat([cand, beta], dim=-1)
    return [proj.transpose(0, 1).contiguous() if time_major else proj, *rest[:-1], time_major, backend]


def latch_arguments(backend, state, gate):
    x = latch_inputs(torch.float32, "plain" if state else "nothing_but_input", shape=(2, 5, 3), gate=gate)
    return [x["write"], x["value"], x["h0"], x["reset"], False, backend]


def linear_arguments(backend, state, pairs, constant):
    cand, beta, alpha, h0, reset, *_ = bmru_arguments(backend, state)
    double = lambda x: None if x is None else torch.cat([x, x / 2], dim=-1) if pairs else x  # noqa: E731
    return [double(alpha if constant else cand), double(beta), double(h0), reset, pairs, False, backend]


OPERATORS = {
    "bmru_scan": bmru_arguments,
    "bmru_layer-batch_first": lambda backend, state: layer_arguments(backend, state, False),
    "bmru_layer-time_major": lambda backend, state: layer_arguments(backend, state, True),
    "latch_scan-boolean": lambda backend, state: latch_arguments(backend, state, "boolean"),
    "latch_scan-float": lambda backend, state: latch_arguments(backend, state, "float"),
    "linear_scan-real": lambda backend, state: linear_arguments(backend, state, False, False),
    "linear_scan-constant": lambda backend, state: linear_arguments(backend, state, False, True),
    "linear_scan-pairs": lambda backend, state: linear_arguments(backend, state, True, False),
    "linear_scan-pairs-constant": lambda backend, state: linear_arguments(backend, state, True, True),
}
every_operator = pytest.mark.parametrize("operator", OPERATORS)


def overload(operator, suffix=""):
    return getattr(torch.ops.multistable, operator.partition("-")[0] + suffix).default


def backward_arguments(operator, arguments):
    """Cotangents, saved tensors and options of the forward."""
    h, h_last = overload(operator)(*arguments)
    name, (*tensors, reset) = (
        operator.partition("-")[0],
        [x for x in arguments if not isinstance(x, float | bool | str)],
    )
    options = [x for x in arguments if isinstance(x, float | bool | str)]
    if name == "linear_scan":
        del tensors[1]  # b is not saved
    return [torch.randn_like(h), torch.randn_like(h_last), *tensors, reset, h, *options]


@every_operator
@every_fast_backend
@with_and_without_state
def test_opcheck(operator, backend, state):
    arguments = OPERATORS[operator](backend, state)
    torch.library.opcheck(overload(operator), [leaf(x) if isinstance(x, torch.Tensor) else x for x in arguments])


@every_operator
@every_fast_backend
@with_and_without_state
def test_opcheck_backward(operator, backend, state):
    arguments = backward_arguments(operator, OPERATORS[operator](backend, state))
    torch.library.opcheck(overload(operator, "_backward"), arguments)


@every_operator
@every_fast_backend
@pytest.mark.parametrize("absent", [0, 1], ids=["grad_h", "grad_last"])
def test_opcheck_backward_with_one_gradient_absent(operator, backend, absent):
    arguments = backward_arguments(operator, OPERATORS[operator](backend, True))
    arguments[absent] = None
    torch.library.opcheck(overload(operator, "_backward"), arguments, test_utils=("test_schema", "test_faketensor"))


@every_fast_backend
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_the_last_state_is_that_of_the_step_computed_last(backend, reverse):
    *arguments, _, _ = bmru_arguments(backend, True)
    h, h_last = call("bmru_scan", *arguments, reverse, backend)
    assert not torch.equal(h[:, 0], h[:, -1])
    assert torch.equal(h_last, h[:, 0 if reverse else -1])


@every_fast_backend
def test_second_derivative_raises(backend):
    cand, beta, alpha = (leaf(x) for x in bmru_arguments(backend, True)[:3])
    h = ops.bmru_scan(cand, beta, alpha, backend=backend)
    (grad,) = torch.autograd.grad(h.sum(), cand, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative; backend='reference' has"):
        grad.sum().backward()


def test_second_derivative_of_the_reference_exists():
    """One holding step: dL/dbeta = -alpha D(|cand| - |beta|), and its derivative with respect to alpha."""
    cand, beta = torch.full((1, 1, 1), 0.5).double(), torch.full((1, 1, 1), 1.0).double().requires_grad_()
    alpha = torch.full((1,), 1.5).double().requires_grad_()
    h = ops.bmru_scan(cand, beta, alpha, backend="reference")
    (grad,) = torch.autograd.grad(h.sum(), beta, create_graph=True)
    slope = 1 / (1 + (torch.pi * 0.5) ** 2)
    assert grad.item() == pytest.approx(-1.5 * slope, rel=1e-12)
    assert torch.autograd.grad(grad.sum(), alpha)[0].item() == pytest.approx(-slope, rel=1e-12)


@pytest.mark.parametrize("name", ["bmru_scan", "latch_scan", "linear_scan", "bmru_layer"])
def test_meta_tensors_give_shapes_without_computing(name):
    arguments = next(a for key, make in OPERATORS.items() if key.startswith(name) for a in [make("auto", True)])
    real = overload(name)(*arguments)
    meta = overload(name)(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments))
    assert [x.shape for x in meta] == [x.shape for x in real]
    assert [x.stride() for x in meta] == [x.stride() for x in real]


class Recording(TorchFunctionMode):
    """Record which operators are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_operators_and_results_are_unchanged():
    """Plain calls skip the dispatcher: their results and gradients must match the operator's."""
    proj = torch.randn(2, 9, 6, requires_grad=True)
    alpha, weight = torch.rand(3, requires_grad=True), torch.randn(2, 9, 3)
    args = proj, alpha, None, None, 1.0, False, False, "cpu"
    plain = call("bmru_layer", *args)
    with Recording() as recording:
        operator = call("bmru_layer", *args)
    assert any("bmru_layer" in name for name in recording.seen)
    assert plain[0].grad_fn.name() == "_bmru_layerBackward"
    assert operator[0].grad_fn.name() != "_bmru_layerBackward"
    with torch.no_grad():
        quiet = call("bmru_layer", *args)
    for a, b, c in zip(plain, operator, quiet, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    gradients = [torch.autograd.grad((h * weight).sum() + last.sum(), (proj, alpha)) for h, last in (plain, operator)]
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


class Subclass(torch.Tensor):
    """Record the functions it is passed to."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs)


def test_tensor_subclasses_see_operators():
    proj = torch.randn(2, 9, 6).as_subclass(Subclass)
    h, _ = call("bmru_layer", proj, torch.rand(3), None, None, 1.0, False, False, "cpu")
    assert isinstance(h, Subclass)
    assert any("bmru_layer" in name for name in Subclass.seen)


def test_call_with_meta_tensors_gives_shapes():
    h, last = call("bmru_layer", torch.empty(2, 9, 6, device="meta"), torch.empty(3, device="meta"),
                   None, None, 1.0, False, False, "cpu")  # fmt: skip
    assert (h.shape, last.shape) == ((2, 9, 3), (2, 3))

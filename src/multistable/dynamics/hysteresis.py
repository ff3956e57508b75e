"""The exact bistable unit ``h = tanh(x + (beta + 1) h)`` over time: a latch chooses between two branches of equilibria.

As with a continuous clock (the damped map ``(1 - c) h + c tanh(...)`` with c -> 0) the state flows from ``h_{t-1}`` to
the branch on its side of the unstable root; h_{t-1} on the root goes up. ``bistable.py`` computes the branches.
"""

from typing import Any

import torch
from torch import Tensor

from multistable.dynamics.bistable import folds, roots
from multistable.dynamics.hysteresis_piece import scan_piece
from multistable.dynamics.hysteresis_tiles import branches, gradients, start_bit, upper_start
from multistable.ops import pieces
from multistable.ops.autograd import Function, saved_tensors
from multistable.ops.border import Border
from multistable.ops.checks import check_gradient, check_hysteresis
from multistable.ops.operators import batched, call, each_example
from multistable.surrogate import derivative, with_tangents

__all__ = ["check_backend", "folds", "hysteresis_scan", "roots"]


def hysteresis_scan(
    x: Tensor,
    beta: Tensor,
    h0: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    alpha_surr: float | None = 1.0,
    max_gain: float = 10.0,
    backend: str = "auto",
    border: Border | None = None,
) -> Tensor:
    """States ``h [B, T, N]`` of the exact hysteresis unit: ``h_t`` is the root of ``h = tanh(x_t + (beta_t + 1) h)``
    to which the state flows from ``h_{t-1}``.

    Args:
        x, beta: ``[B, T, N]``; beta of any sign.
        h0: the state before the first step, ``[B, N]``; zeros if None.
        reset: ``[B, T]`` booleans; the state is zero just before a marked step.
        alpha_surr: sharpness of the surrogate gradient on the choice of branch; None for the exact gradient alone.
        max_gain: bound on the gain ``dh/dx`` of the implicit gradient, which is infinite at a fold.
        backend: of :func:`~multistable.ops.latch_scan`.
        border: of a piece, if the sequence is cut; by default all steps of the piece are valid, and time runs forward.

    The value has the gradient of the implicit function theorem, ``dh/dx = 1 / (1 / (1 - h^2) - beta - 1)``, at most
    max_gain, and ``dh/dbeta = h dh/dx``. The bit, ``h_t`` on the upper branch, is a latch; with ``G_t`` the gradient
    that reaches it from all later steps, its gate ``|x_t| >= x_c`` and value ``x_t >= 0`` receive those of the BMRU
    with candidate x and threshold x_c(beta): ``G_t (value_t - bit_{t-1}) / (1 + (alpha_surr pi (|x_t| - x_c))^2)``
    and, where the bit is written, ``G_t / (1 + (alpha_surr pi x_t)^2)``. Here ``dx_c/dbeta = h_c``. The bit of h0,
    ``h0 >= 0``, receives ``1 / (1 + (alpha_surr pi h0)^2)``, and a state of zero has none.
    """
    check_backend(backend)
    check_gradient(alpha_surr, max_gain)
    check_hysteresis(x, beta, h0, reset)
    cut = pieces.current()
    if cut is not None:
        return scan_piece(x, beta, h0, reset, alpha_surr, max_gain, backend, border or Border(cut))
    return _hysteresis(x, beta, h0, reset, alpha_surr, max_gain, backend)[0]


def check_backend(backend: str) -> None:
    """Raise for the reference latch, a loop that autograd differentiates: the gradient here is hand-written."""
    if backend == "reference":
        raise ValueError("backend must be auto or one with a gradient of its own for this unit, got 'reference'")


class _Hysteresis(Function):
    """:func:`hysteresis_scan` and what its gradient needs: the gap between branches, and the latch that chooses one."""

    @staticmethod
    def forward(
        x: Tensor,
        beta: Tensor,
        h0: Tensor | None,
        reset: Tensor | None,
        alpha_surr: float | None,
        max_gain: float,
        backend: str,
    ) -> tuple[Tensor, ...]:
        start = upper_start(h0, x)
        upper, lower, write, value, two = branches(x, beta, start, -start, reset)
        bits, _ = call("latch_scan", write, value, start_bit(h0, x), None, False, backend)
        h = torch.lerp(lower, upper, bits)  # selects, and a NaN bit gives NaN
        gap = upper.sub_(lower).masked_fill_(two.logical_not_(), 0)  # with one branch the bit is not read
        return h, gap, write, value, bits

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:4], *output)
        ctx.options = inputs[4:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * 7
        operator, function = torch.ops.multistable.hysteresis_backward, _HysteresisBackward.apply
        compute: Any = operator if batched(grads[0]) else function
        computed = compute(grads[0], *saved_tensors(ctx), *ctx.options)
        wanted = (grad if needed else None for grad, needed in zip(computed, ctx.needs_input_grad, strict=False))
        return *wanted, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Tensor | None) -> None:
        raise NotImplementedError("the hysteresis scan has no forward-mode AD (jvp): use reverse mode, such as jacrev")

    vmap = staticmethod(each_example(lambda *args: _hysteresis(*args)))


_hysteresis = with_tangents(_Hysteresis)


class _HysteresisBackward(Function):
    """The gradients of x, beta and h0. A separate function, so that second derivatives raise and ``vmap`` loops."""

    @staticmethod
    def forward(
        grad: Tensor,
        x: Tensor,
        beta: Tensor,
        h0: Tensor | None,
        reset: Tensor | None,
        h: Tensor,
        gap: Tensor,
        write: Tensor,
        value: Tensor,
        bits: Tensor,
        alpha_surr: float | None,
        max_gain: float,
        backend: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_gate = to_value = None
        grad_h0 = x.new_zeros(x.shape[0], x.shape[2]) if h0 is None else torch.zeros_like(h0)
        if alpha_surr is not None:
            to_gate, to_value, to_start = torch.ops.multistable.latch_scan_backward(
                grad * gap, None, write, value, start_bit(h0, x), None, bits, False, backend
            )
            if h0 is not None:
                grad_h0 = (to_start * derivative(h0, alpha_surr)).to(h0.dtype)
            elif x.shape[1]:
                to_gate[:, 0] = 0  # there was no state to keep
            if reset is not None:
                to_gate.masked_fill_(reset[..., None], 0)
        choice = None if to_gate is None or to_value is None else (to_gate, to_value)
        return *gradients(grad, x, beta, h, choice, alpha_surr, max_gain), grad_h0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("the hysteresis scan has no second derivative: use finite differences of its gradient")

    vmap = staticmethod(each_example(lambda *args: _HysteresisBackward.apply(*args)))


_library: Any = torch.library.Library("multistable", "FRAGMENT")
_library.define(
    "hysteresis_backward(Tensor grad, Tensor x, Tensor beta, Tensor? h0, Tensor? reset, Tensor h, Tensor gap, "
    "Tensor write, Tensor value, Tensor bits, float? alpha_surr, float max_gain, str backend) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.impl("hysteresis_backward", _HysteresisBackward.forward, "CompositeExplicitAutograd")

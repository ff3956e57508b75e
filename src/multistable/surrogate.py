"""Step functions with a surrogate derivative: the two nonlinearities of the BMRU, and the largest of several scores.

Forward, a step; backward, the derivative of a smooth function of the same shape (eq. ``surrogate`` and
``surr_func`` of the paper)::

    heaviside(x) = 1 if x >= 0 else 0        d/dx := 1 / (1 + (alpha_surr * pi * x)^2)
    sign(x)      = 1 if x >= 0 else -1       d/dx := 2 / (1 + (alpha_surr * pi * x)^2)
    primitive(x) = atan(alpha_surr * pi * x) / (alpha_surr * pi) + 1/2

``alpha_surr = 0`` is the straight-through estimator. At zero both steps are up, ``H(0) = 1`` and ``S(0) = +1``
(also for ``-0.0``); NaN stays NaN.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

__all__ = ["adapt", "derivative", "heaviside", "largest", "primitive", "sign", "with_tangents"]


def derivative(x: Tensor, alpha_surr: float = 1.0) -> Tensor:
    """``1 / (1 + (alpha_surr pi x)^2)``, used in place of the derivative of the Heaviside function."""
    if alpha_surr == 0:  # also at infinity, where the product would be NaN
        return torch.where(x.isnan(), x, 1.0)
    return 1.0 / (1.0 + (alpha_surr * math.pi * x) ** 2)


def primitive(x: Tensor, alpha_surr: float = 1.0) -> Tensor:
    """The smooth step whose derivative is :func:`derivative`; ``x + 1/2`` at ``alpha_surr = 0``."""
    if alpha_surr == 0:
        return x + 0.5
    return torch.atan(alpha_surr * math.pi * x) / (alpha_surr * math.pi) + 0.5


def heaviside(x: Tensor, alpha_surr: float = 1.0) -> Tensor:
    """``H(x)``: 1 where ``x >= 0``, 0 elsewhere, in the dtype of ``x``; backward :func:`derivative`."""
    return _step_with_gradient(x, 0.0, alpha_surr)


def sign(x: Tensor, alpha_surr: float = 1.0) -> Tensor:
    """``S(x)``: +1 where ``x >= 0``, -1 elsewhere, in the dtype of ``x``; backward twice :func:`derivative`."""
    return _step_with_gradient(x, -1.0, alpha_surr)


def largest(x: Tensor, alpha_surr: float | None = 1.0, index: Tensor | None = None) -> Tensor:
    """One-hot vectors ``[..., M]`` of the largest of M scores, the first of equal ones; NaN where a score is NaN.

    ``index [...]`` is the largest score's number, for callers that know it already.

    Backward, with ``g`` the gradient of the one-hot vector and ``i`` the largest: each comparison ``x_i >= x_j`` is a
    :func:`heaviside` that decides between ``g_i`` and ``g_j``,

        dx_j = (g_j - g_i) / (1 + (alpha_surr pi (x_i - x_j))^2),    dx_i = -sum_j dx_j

    or, with ``alpha_surr=None``, the vector has the derivative of a softmax, ``dx = p (g - <p, g>)``.

    >>> largest(torch.tensor([0.5, 2.0, -1.0]))
    tensor([0., 1., 0.])
    """
    return _Largest.apply(x, x.detach().argmax(-1) if index is None else index, alpha_surr)


def adapt(spike: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Make a Heaviside function from a spiking library's surrogate, for use with :func:`~multistable.ops.latch_scan`.

    ``spike`` is a callable such as ``snntorch.surrogate.atan()`` or ``spikingjelly.activation_based.surrogate.ATan()``:
    a step in the forward pass, with a derivative of its own in the backward pass. Only the derivative is used. The
    forward pass is that of :func:`heaviside`, because theirs may differ at 0 (snntorch: H(0) = 0).

    >>> step = adapt(lambda x: torch.sigmoid(4 * x))      # any differentiable callable
    >>> step(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0., 1., 1.])
    """

    def step(x: Tensor) -> Tensor:
        y = spike(x)
        return _step(x, 0.0) + (y - y.detach()).to(x.dtype)  # adds zero, with the gradient of y

    return step


def _step(x: Tensor, low: float) -> Tensor:
    """1 where ``x >= 0``, ``low`` where ``x < 0``, NaN where x is NaN."""
    return torch.where(x >= 0, 1.0, torch.where(x < 0, low, x)).to(x.dtype)


def with_tangents(kind: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``kind.apply`` with forward-mode AD by ``kind.tangent``, except where a compiler traces: it refuses a ``jvp``."""
    both = type(kind.__name__, (kind,), {"jvp": staticmethod(cast(Any, kind).tangent)})

    def apply(*args: Any) -> Any:
        return cast(Any, kind if torch.compiler.is_compiling() else both).apply(*args)

    return apply


class _Step(torch.autograd.Function):
    """A step from ``low`` to 1 at zero; its height ``1 - low`` scales the surrogate derivative."""

    apply: ClassVar[Callable[..., Tensor]]
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, alpha_surr: float) -> Tensor:
        return _step(x, low)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        x, ctx.low, ctx.alpha_surr = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * (1.0 - ctx.low) * derivative(x, ctx.alpha_surr), None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        return tangents[0] * (1.0 - ctx.low) * derivative(x, ctx.alpha_surr)


_step_with_gradient = with_tangents(_Step)


def _softmax(x: Tensor) -> Tensor:
    """``torch.softmax(x, -1)``; for 8 scores on a CPU in 50 ns instead of 145."""
    if x.is_cpu and x.shape[-1] < 16:
        x = torch.exp(x - x.amax(-1, keepdim=True))
        return x / x.sum(-1, keepdim=True)
    return torch.softmax(x, -1)


class _Largest(torch.autograd.Function):
    """See :func:`largest`."""

    apply: ClassVar[Callable[..., Tensor]]
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor, alpha_surr: float | None) -> Tensor:
        first = index[..., None] == torch.arange(x.shape[-1], device=x.device, dtype=index.dtype)
        return torch.where(x.isnan().any(-1, keepdim=True), math.nan, first.to(x.dtype)).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, index, ctx.alpha_surr = inputs
        ctx.save_for_backward(x, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x, index), (g,) = ctx.saved_tensors, grads
        if ctx.alpha_surr is None:
            p = _softmax(x)
            return p * (g - (p * g).sum(-1, keepdim=True)), None, None
        index = index.long()[..., None]
        dx = (g - g.gather(-1, index)) * derivative(x.gather(-1, index) - x, ctx.alpha_surr)
        return dx.scatter_add(-1, index, -dx.sum(-1, keepdim=True)), None, None

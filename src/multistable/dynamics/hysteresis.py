"""The exact bistable unit ``h = tanh(x + (beta + 1) h)``: folds in closed form, both branches at once, a latch.

With ``y = atanh(h)`` and ``a = beta + 1`` an equilibrium solves ``G(y) = y - x - a tanh(y) = 0``. For beta > 0 it has
folds at ``h_c = sqrt(beta / a)``, that is ``y_c = asinh(sqrt(beta))``, where ``x_c = a h_c - y_c``: an upper branch
``h >= h_c`` for ``x > -x_c``, its mirror image below for ``x < x_c``, and an unstable branch between them. For
beta <= 0 there is one equilibrium. Exactly at a fold the unit is monostable: the write wins.

As with a continuous clock (the damped map ``(1 - c) h + c tanh(...)`` with c -> 0) the state then flows from
``h_{t-1}`` to the branch on its side of the unstable root; h_{t-1} on the root goes up.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from multistable.ops import pieces
from multistable.ops.autograd import saved_tensors
from multistable.ops.border import Border
from multistable.ops.numerics import wide
from multistable.ops.operators import batched, each_example
from multistable.ops.threads import for_each
from multistable.surrogate import derivative, heaviside, with_tangents

__all__ = ["check_backend", "folds", "hysteresis_scan", "roots"]

# Halley steps from the start of `_upper` to full precision, for any x and beta (tests/dynamics/test_hysteresis.py).
_STEPS = {torch.float32: 2, torch.float64: 4}
# Elements at a time: on a CPU some ten tensors of a block stay in its cache, elsewhere memory is the only limit. Torch
# does not split operations on fewer than 2^15 elements, so blocks can run in parallel on threads of our own. Torch's
# threads would synchronise after each of the 140 operations of a block. On two shared cores whole tensors took 4 times
# as long for forward and backward at (8, 512, 256), and on one thread as long as blocks.
_BLOCK = {"cpu": (1 << 15) - 1}
_BLOCK_ELSEWHERE = 1 << 26


def folds(beta: Tensor) -> tuple[Tensor, Tensor]:
    """``h_c`` and ``x_c``: the unit is bistable for \\|x\\| < x_c. Both are 0 for beta <= 0.

    >>> h_c, x_c = folds(torch.tensor(1.5))
    >>> print(f"{h_c:.3f} {x_c:.3f}")
    0.775 0.905
    """
    h_c, _, x_c = _fold(beta)
    return h_c, x_c


def _fold(beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``h_c``, ``y_c = atanh(h_c)`` and ``x_c``."""
    root = beta.clamp(min=0).sqrt_()
    length = (root * root).add_(1).sqrt_()  # sqrt(beta + 1)
    y_c = (root * root).div_(length + 1).add_(root).log1p_()  # asinh(root), which torch does not vectorise: 37 ns each
    return root / length, y_c, (root * length).sub_(y_c).clamp_(min=0)


def roots(x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower stable equilibrium, equal where there is only one; NaN where a root did not converge."""
    fold = _fold(beta)
    upper, lower = _sides(x, beta, fold)
    two = x.abs() < fold[2]
    return torch.where(two | (x >= 0), upper, lower), torch.where(two | (x < 0), lower, upper)


def _sides(x: Tensor, beta: Tensor, fold: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The upper and the lower equilibrium; where there is only one, it and its mirror image, that of -x."""
    a, size = beta + 1, x.abs().clamp_(max=torch.finfo(x.dtype).max / 8)
    # Near is the root on the side of x, which always exists.
    near = _upper(size, a, *fold, _bend(size, (-a).clamp_(min=0)))
    far = _upper(torch.minimum(size, fold[2]).neg_(), a, *fold)
    near, far = _with_sign(near, x), _with_sign(far, x).neg_()
    far = torch.lerp(-near, far, (size < fold[2]).to(x.dtype))  # selects: see _upper
    return torch.maximum(near, far), torch.minimum(near, far)


def _with_sign(size: Tensor, x: Tensor) -> Tensor:
    """``size`` with the sign of x; that of zero does not matter, because both signs are computed."""
    if torch.compiler.is_compiling():  # ONNX has no copysign; in eager mode torch.where takes 7 times as long
        return torch.where(x < 0, -size, size)
    return size.copysign_(x)


def _upper(x: Tensor, a: Tensor, h_c: Tensor, y_c: Tensor, x_c: Tensor, least: Tensor | None = None) -> Tensor:
    """The largest root for ``x >= -x_c`` (x >= 0 without folds).

    The start takes the leading terms of G beyond the fold, ``s = x + x_c``: slope, curvature or the cubic term alone
    would give ``s / -beta``, ``sqrt(s / h_c)`` and ``cbrt(3 s)``; each is too large where another one leads, and so is
    ``x + a``. For a <= 0, G is concave and its tangents cross zero before it: the start is the largest of those at 0
    and at infinity, and of ``least``, a bound for the corner between them.

    Denominators are kept off zero by ``clamp``: torch's exporter to ONNX drops the addition of a tiny number.
    ``torch.lerp`` with weights of 0 and 1 selects, exactly: on a CPU ``torch.where`` takes 7 times as long.
    """
    tiny, huge = torch.finfo(x.dtype).tiny, torch.finfo(x.dtype).max / 8
    s = (x + x_c).clamp_(min=0)
    y = torch.minimum((s / h_c.clamp(min=tiny)).sqrt_(), (3 * s).pow_(1 / 3))
    slope = 1 - a
    tangent = (s / slope.clamp_(min=tiny)).clamp_(max=huge)
    y = torch.minimum(y, tangent).add_(y_c)
    start = tangent.maximum(x + a)
    start = start if least is None else start.maximum(least)
    y = torch.lerp(start, torch.minimum(y, x + a), (a > 0).to(x.dtype))
    for _ in range(_STEPS[x.dtype]):
        t = torch.tanh(y)
        at = a * t
        bend = torch.addcmul(a, at, t, value=-1)  # a (1 - t^2)
        rest = torch.sub(y, x).sub_(at)  # G
        rise = 1 - bend  # G'
        curve = bend.mul_(t).mul_(rest)  # G G'' / 2: a quarter of G'^2 near a fold, more by rounding only
        below = torch.maximum((rise * rise).sub_(curve), curve.abs()).clamp_(min=tiny)
        y = torch.maximum(y.addcdiv_(rest.mul_(rise), below, value=-1), y_c)
    h = torch.tanh(y)
    rest = torch.addcmul(y - x, a, h, value=-1).abs_()
    bound = torch.add(y, a.abs()).add_(1 + x_c).mul_(16 * torch.finfo(x.dtype).eps)
    return h.masked_fill_(rest > bound, math.nan)


def _bend(x: Tensor, size: Tensor) -> Tensor:
    """A bound from below on the root of ``G = y - x + size tanh(y)``, x >= 0, that is near it where G bends, x = size.

    It is the larger of two. Since ``tanh(y) <= y``, the root is at most ``above = atanh(x / (size + 1))``, hence at
    least ``atanh((x - above) / size)``. And the tangent at ``bend = log(1 + 4 size) / 2``, where tanh is
    ``2 size / length``. Without them a quarter of the roots with x = size + O(1) is missed for size > 100.
    """
    one, tiny = 1 - torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    above = _atanh((x / (size + 1)).clamp_(0.0, one))
    below = _atanh((x - above).div_(size.clamp(min=tiny)).clamp_(0.0, one)).mul_(size > 0)
    length, bend = 2 * size + 1, torch.log1p(4 * size).mul_(0.5)
    t = size / length
    rest, rise = torch.addcmul(bend - x, size, t, value=2), torch.addcdiv(2 * t + 1, t, length, value=-1)  # G, G'
    return torch.maximum(below, torch.addcdiv(bend, rest, rise, value=-1))


def _atanh(h: Tensor) -> Tensor:
    """By log1p, which torch vectorises."""
    return (2 * h).div_(1 - h).log1p_().mul_(0.5)


def climbs(h: Tensor, x: Tensor, beta: Tensor, h_c: Tensor) -> Tensor:
    """Where there are two branches: whether the state h flows to the upper one, ``h >= u`` with u the unstable root.

    Between the folds the flow itself tells, ``tanh(x + (beta + 1) h) >= h``; beyond them the side does.
    """
    flow = torch.addcmul(x + h, beta, h).tanh_() >= h
    return (h >= h_c) | (flow & (h > -h_c))


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
    cut = pieces.current()
    if cut is not None:
        return _scan_piece(x, beta, h0, reset, alpha_surr, max_gain, backend, border or Border(cut))
    return _hysteresis(x, beta, h0, reset, alpha_surr, max_gain, backend)[0]


def check_backend(backend: str) -> None:
    """Raise for the reference latch, a loop that autograd differentiates: the gradient here is hand-written."""
    if backend == "reference":
        raise ValueError("backend must be auto or one with a gradient of its own for this unit, got 'reference'")


def _start(h0: Tensor | None, x: Tensor) -> Tensor:
    """The upper branch before the first step, ``[B, N]``; the lower one is its mirror image."""
    return x.new_zeros(x.shape[0], x.shape[2]) if h0 is None else h0.to(x.dtype).abs()


def _branches(
    x: Tensor, beta: Tensor, upper_before: Tensor, lower_before: Tensor, reset: Tensor | None
) -> tuple[Tensor, ...]:
    """Both branches, gate and value of the bit, and whether there are two, ``[B, T, N]``; the branches before the first
    step are ``[B, N]``."""
    upper, lower, write, value = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(4))
    two = torch.empty_like(upper, dtype=torch.bool)

    def fill(b: slice, t: slice) -> None:
        if t.start == 0:
            before = upper_before[b, None], lower_before[b, None]
        else:
            before = upper[b, t.start - 1 : t.start], lower[b, t.start - 1 : t.start]
        restart = None if reset is None else reset[b, t, None]
        outputs = upper[b, t], lower[b, t], write[b, t], value[b, t], two[b, t]
        _fill_branches(x[b, t], beta[b, t], *before, restart, *outputs)

    _for_blocks(x, fill)
    return upper, lower, write, value, two


class _Hysteresis(torch.autograd.Function):
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
        start = _start(h0, x)
        upper, lower, write, value, two = _branches(x, beta, start, -start, reset)
        bits, _ = torch.ops.multistable.latch_scan(write, value, _bit(h0, x), None, False, backend)
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
        operator, function = torch.ops.multistable.hysteresis_backward, cast(Any, _HysteresisBackward).apply
        compute: Any = operator if batched(grads[0]) else function
        computed = compute(grads[0], *saved_tensors(ctx), *ctx.options)
        wanted = (grad if needed else None for grad, needed in zip(computed, ctx.needs_input_grad, strict=False))
        return *wanted, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Tensor | None) -> None:
        raise NotImplementedError("the hysteresis scan has no forward-mode AD (jvp): use reverse mode, such as jacrev")

    vmap = staticmethod(each_example(lambda *args: _hysteresis(*args)))


_hysteresis = with_tangents(_Hysteresis)


class _HysteresisBackward(torch.autograd.Function):
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
                grad * gap, None, write, value, _bit(h0, x), None, bits, False, backend
            )
            if h0 is not None:
                grad_h0 = (to_start * derivative(h0, alpha_surr)).to(h0.dtype)
            elif x.shape[1]:
                to_gate[:, 0] = 0  # there was no state to keep
            if reset is not None:
                to_gate.masked_fill_(reset[..., None], 0)
        choice = None if to_gate is None or to_value is None else (to_gate, to_value)
        return *_gradients(grad, x, beta, h, choice, alpha_surr, max_gain), grad_h0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("the hysteresis scan has no second derivative: use finite differences of its gradient")

    vmap = staticmethod(each_example(lambda *args: cast(Any, _HysteresisBackward).apply(*args)))


def _scan_piece(
    x: Tensor,
    beta: Tensor,
    h0: Tensor | None,
    reset: Tensor | None,
    alpha_surr: float | None,
    max_gain: float,
    backend: str,
    border: Border,
) -> Tensor:
    """:func:`hysteresis_scan` on one piece. Whether its first step keeps the bit depends on the branches of the step
    before it, on another rank: two numbers per unit, beside the latch's own message."""
    with torch.no_grad():
        last_x, last_beta = (border.last(part).to(wide(x.dtype)) for part in (x, beta))
        last = torch.cat([part.to(x.dtype) for part in _sides(last_x, last_beta, _fold(last_beta))], dim=-1)
        start = _start(h0, x)
        enters, known = border.before(last, torch.cat([start, -start], dim=-1), x)
        high, low = enters.chunk(2, dim=-1)
        upper, lower, write, value, two = _branches(x, beta, high, low, reset)
        valid = border.valid(x)
        closed = ~valid if reset is None else ~valid | reset  # gates without a gradient
        if h0 is None and x.shape[1]:
            closed[:, 0] |= ~known  # there was no state to keep
        write = write * valid[..., None]
    bit = None
    if h0 is not None:
        bit = _bit(h0, x) if alpha_surr is None else heaviside(h0, alpha_surr).to(x.dtype)
    if alpha_surr is not None:
        write, value = cast(Any, _Choice).apply(x, beta, write, value, closed, alpha_surr)
    bits = border.latch_scan(write, value, bit, None, backend)
    return cast(Any, _Value).apply(x, beta, bits, upper, lower, two, max_gain)


class _Choice(torch.autograd.Function):
    """Gate and value of the bit, with the surrogate gradients of :func:`hysteresis_scan`; ``closed [B, T]``: gates that
    get none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, write: Tensor, value: Tensor, closed: Tensor, alpha_surr: float
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, beta, closed)
        ctx.alpha_surr = alpha_surr
        return write.clone(), value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, beta, closed = ctx.saved_tensors
        choice = grads[0].masked_fill(closed[..., None], 0), grads[1]
        none = torch.zeros_like(x)
        return *_gradients(none, x, beta, none, choice, ctx.alpha_surr, 1.0), *[None] * 4


class _Value(torch.autograd.Function):
    """The state on the branch that a bit chooses, with the implicit gradient and that of the bit."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, bits: Tensor, upper: Tensor, lower: Tensor, two: Tensor, max_gain: float
    ) -> Tensor:
        h = torch.lerp(lower, upper, bits)
        ctx.save_for_backward(x, beta, h, (upper - lower).masked_fill_(~two, 0))
        ctx.max_gain = max_gain
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, beta, h, gap = ctx.saved_tensors
        to_x, to_beta = _gradients(grads[0], x, beta, h, None, None, ctx.max_gain)
        return to_x, to_beta, grads[0] * gap, *[None] * 4


_library: Any = torch.library.Library("multistable", "FRAGMENT")
_library.define(
    "hysteresis_backward(Tensor grad, Tensor x, Tensor beta, Tensor? h0, Tensor? reset, Tensor h, Tensor gap, "
    "Tensor write, Tensor value, Tensor bits, float? alpha_surr, float max_gain, str backend) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.impl("hysteresis_backward", _HysteresisBackward.forward, "CompositeExplicitAutograd")


def _bit(h0: Tensor | None, x: Tensor) -> Tensor | None:
    """The bit with which the latch starts, in the dtype of ``x``."""
    return None if h0 is None else (h0 >= 0).to(x.dtype)


def _for_blocks(x: Tensor, fill: Callable[[slice, slice], None]) -> None:
    """Call ``fill`` for slices of batch and time that cover ``x [B, T, N]``, time running forward.

    A compiler gets one block: it tiles the work itself, and a loop would fix B and T and be unrolled, 140 operations
    per block.
    """
    B, T, N = x.shape
    if torch.compiler.is_compiling():
        fill(slice(0, B), slice(0, T))
        return
    size = max(1, _BLOCK.get(x.device.type, _BLOCK_ELSEWHERE) // max(N, 1))  # rows of N
    steps = max(1, min(T, size))
    many = max(1, size // steps)

    @torch.no_grad()
    def fill_sequences(b: int) -> None:
        for t in range(0, T, steps):
            fill(slice(b, b + many), slice(t, t + steps))

    # Modes are per thread: no_grad is set in each, inference mode needs a single one.
    several = x.device.type == "cpu" and x.numel() > size * N and not torch.is_inference_mode_enabled()
    for_each(range(0, B, many), fill_sequences, torch.get_num_threads() if several else 1)


def _fill_branches(
    x: Tensor,
    beta: Tensor,
    upper_before: Tensor,
    lower_before: Tensor,
    restart: Tensor | None,
    upper: Tensor,
    lower: Tensor,
    write: Tensor,
    value: Tensor,
    two: Tensor,
) -> None:
    """Fill a block ``[B, T, N]``: both branches, the latch that chooses (gate and value of the bit), whether to choose.

    ``upper_before`` and ``lower_before`` are the branches before the block's first step, ``[B, 1, N]``. If the state
    flows from both of them to the same branch (always, if there is only one), the bit is written; else it is kept.
    After a step with one branch the bit is its sign, and the mirror image stands for the other bit.
    """
    dtype = wide(x.dtype)
    x, beta = x.to(dtype), beta.to(dtype)
    fold = _fold(beta)
    high, low = _sides(x, beta, fold)
    upper.copy_(high)
    lower.copy_(low)
    before = [torch.cat([a, b[:, :-1]], dim=1) for a, b in ((upper_before, upper), (lower_before, lower))]
    if restart is not None:
        before = [part.masked_fill_(restart, 0) for part in before]
    high, low = (part.to(dtype) for part in before)
    from_high, from_low = (climbs(part, x, beta, fold[0]) for part in (high, low))
    torch.lt(x.abs(), fold[2], out=two)
    same = from_high == from_low
    write.copy_(same | ~two)
    moved = same.logical_and_(two)
    value.copy_((moved & from_high) | (~moved & (x >= 0)))
    value.masked_fill_(moved & high.isnan(), math.nan)  # a NaN state is kept and stays visible


def _gradients(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    h: Tensor,
    choice: tuple[Tensor, Tensor] | None,
    alpha_surr: float | None,
    max_gain: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and beta; ``choice`` are those of gate and value of the bit."""
    grad_x, grad_beta = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))

    def fill(b: slice, t: slice) -> None:
        own = None if choice is None else (choice[0][b, t], choice[1][b, t])
        inputs = grad[b, t], x[b, t], beta[b, t], h[b, t]
        _fill_gradients(*inputs, own, alpha_surr, max_gain, grad_x[b, t], grad_beta[b, t])

    _for_blocks(x, fill)
    return grad_x, grad_beta


def _fill_gradients(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    h: Tensor,
    choice: tuple[Tensor, Tensor] | None,
    alpha_surr: float | None,
    max_gain: float,
    grad_x: Tensor,
    grad_beta: Tensor,
) -> None:
    """Fill a block with the implicit gradient of the value plus the surrogate gradient of the choice."""
    dtype = wide(x.dtype)
    grad, x, beta, h = (part.to(dtype) for part in (grad, x, beta, h))
    rest = torch.addcmul(torch.ones_like(h), h, h, value=-1)  # 1 - h^2
    fall = torch.addcmul(1 - rest, beta, rest, value=-1)  # 1 - (beta + 1)(1 - h^2), zero at a fold
    dx = rest.div_(torch.maximum(fall, rest / max_gain)).mul_(grad)
    dbeta = h * dx
    if choice is not None and alpha_surr is not None:
        to_gate, to_value = (part.to(dtype) for part in choice)
        h_c, _, x_c = _fold(beta)
        to_gate = to_gate * derivative(x.abs() - x_c, alpha_surr)
        dx.addcmul_(to_gate, x.sign())
        dbeta.addcmul_(to_gate, h_c, value=-1)
        dx.addcmul_(to_value, derivative(x, alpha_surr))
    grad_x.copy_(dx)
    grad_beta.copy_(dbeta)

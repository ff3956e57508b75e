"""The equilibria of the bistable unit ``h = tanh(x + (beta + 1) h)``: folds in closed form, both branches at once.

With ``y = atanh(h)`` and ``a = beta + 1`` an equilibrium solves ``G(y) = y - x - a tanh(y) = 0``. For beta > 0 it has
folds at ``h_c = sqrt(beta / a)``, that is ``y_c = asinh(sqrt(beta))``, where ``x_c = a h_c - y_c``: an upper branch
``h >= h_c`` for ``x > -x_c``, its mirror image below for ``x < x_c``, and an unstable branch between them. For
beta <= 0 there is one equilibrium. Exactly at a fold the unit is monostable: the write wins.
"""

import math

import torch
from torch import Tensor

__all__ = ["climbs", "fold_of", "folds", "roots", "sides"]

# Halley steps from the start of `_upper` to full precision, for any x and beta (tests/dynamics/test_bistable.py).
_STEPS = {torch.float32: 2, torch.float64: 4}


def folds(beta: Tensor) -> tuple[Tensor, Tensor]:
    """``h_c`` and ``x_c``: the unit is bistable for \\|x\\| < x_c. Both are 0 for beta <= 0.

    >>> h_c, x_c = folds(torch.tensor(1.5))
    >>> print(f"{h_c:.3f} {x_c:.3f}")
    0.775 0.905
    """
    h_c, _, x_c = fold_of(beta)
    return h_c, x_c


def fold_of(beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``h_c``, ``y_c = atanh(h_c)`` and ``x_c``."""
    root = beta.clamp(min=0).sqrt_()
    length = (root * root).add_(1).sqrt_()  # sqrt(beta + 1)
    y_c = (root * root).div_(length + 1).add_(root).log1p_()  # asinh(root), which torch does not vectorise: 37 ns each
    return root / length, y_c, (root * length).sub_(y_c).clamp_(min=0)


def roots(x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower stable equilibrium, equal where there is only one; NaN where a root did not converge."""
    fold = fold_of(beta)
    upper, lower = sides(x, beta, fold)
    two = x.abs() < fold[2]
    return torch.where(two | (x >= 0), upper, lower), torch.where(two | (x < 0), lower, upper)


def sides(x: Tensor, beta: Tensor, fold: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The upper and the lower equilibrium; where there is only one, it and its mirror image (the equilibrium at -x)."""
    a, size = beta + 1, x.abs().clamp_(max=torch.finfo(x.dtype).max / 8)
    # Near is the root on the side of x, which always exists.
    near = _upper(size, a, *fold, _bend(size, (-a).clamp_(min=0)))
    far = _upper(torch.minimum(size, fold[2]).neg_(), a, *fold)
    near, far = _with_sign(near, x), _with_sign(far, x).neg_()
    far = torch.lerp(-near, far, (size < fold[2]).to(x.dtype))  # selects: see _upper
    return torch.maximum(near, far), torch.minimum(near, far)


def _with_sign(size: Tensor, x: Tensor) -> Tensor:
    """``size`` with the sign of x. The sign of zero does not matter, because both signs are computed."""
    if torch.compiler.is_compiling():  # ONNX has no copysign; in eager mode torch.where takes 7 times as long
        return torch.where(x < 0, -size, size)
    return size.copysign_(x)


def _upper(x: Tensor, a: Tensor, h_c: Tensor, y_c: Tensor, x_c: Tensor, least: Tensor | None = None) -> Tensor:
    """The largest root for ``x >= -x_c`` (x >= 0 without folds).

    The start, if a > 0: at a distance of ``s = x + x_c`` from the fold, the slope, the curvature or the cubic term of G
    alone would put the root at ``s / -beta``, ``sqrt(s / h_c)`` or ``cbrt(3 s)`` beyond y_c. Each is too large where
    another term dominates, and so is ``x + a``: the smallest is taken. If a <= 0, G is concave and its tangents cross
    zero before it does: the start is the largest of the zeros of the tangents at 0 and at infinity, and of ``least``, a
    lower bound for where G bends between them.

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

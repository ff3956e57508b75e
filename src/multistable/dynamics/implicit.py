"""The gradient of an equilibrium by the implicit function theorem."""

import math

import torch
from torch import Tensor

from multistable.dynamics.fields import Field

__all__ = ["implicit"]


def implicit(field: Field, h: Tensor, *args: Tensor, max_gain: float = math.inf) -> Tensor:
    """``h``, an equilibrium of ``field`` at ``args``, with the gradient that it has as a function of ``args``::

        h = f(h, args)    =>    dh/dargs = gain * df/dargs,    gain = 1 / (1 - df/dh)

    At a fold ``df/dh = 1`` and the gain is infinite: it is clamped to ``[-max_gain, max_gain]``. An unstable root has a
    negative gain. The value is exactly ``h``.
    """
    slope = field.slope(h.detach(), *args)
    bound = min(max_gain, torch.finfo(slope.dtype).max)  # finite, because inf * 0 is NaN
    gain = (1 / (1 - slope)).clamp(-bound, bound)
    f = field(h.detach(), *args)
    return h.detach() + gain * (f - f.detach())

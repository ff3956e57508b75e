"""Fields: the maps ``h -> f(h, ...)`` that an internal clock iterates, one state per unit.

    simplified_brc   (1 - c) h + c tanh(x + (beta + 1) h)                              (eq. bistRNN of the paper)
    brc              g h + (1 - g) tanh(u_h + (1 + tanh(u_a + w_a h)) h),  g = sigmoid(u_c + w_c h)    (appendix A)
    nbrc             the same with matrices for w_a and w_c: its units are coupled
    linear           a h + x
    Field(function)  anything else; the slope in h comes from autograd

A field is a plain function of the state, of its *drives* (which change in time: layers make them from the input by a
linear map) and of its *constants* (one learnable number per unit). All are tensors that broadcast against each other.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

__all__ = [
    "FIELDS",
    "Field",
    "Linear",
    "brc",
    "broadcast",
    "check_field",
    "damped",
    "linear",
    "nbrc",
    "simplified_brc",
]


@dataclass(frozen=True, repr=False)
class Field:
    """A map ``f(h, *drives, *constants)``, pointwise unless ``coupled``.

    Args:
        function: ``f``, written with torch operations. A layer can be pickled if its functions can (no lambdas).
        constants: learnable numbers per unit, the last arguments of ``function``: name -> initial value.
        drives: arguments between h and the constants, name -> offset of its initial bias in a layer. Default: 0 each.
        bounds: an interval that ``f`` maps into itself, so that it holds all equilibria. Default: ``(-1, 1)``
        derivative: ``df/dh`` with the arguments of ``function``. Default: by autograd.
        turns: from the drives and constants ``[...]``, every h at which ``df/dh = 1``, ``[..., M]``, padded with NaN.
            With it no equilibrium is ever missed. Default: search a grid.
        coupled: the constants are matrices ``[N, N]`` and each unit reads the others. Such a field can be clocked, but
            has no equilibria unit by unit.

    >>> cubic = Field(lambda h, x: h + 0.1 * (x + h - h**3), bounds=(-3, 3))
    >>> cubic(torch.tensor(1.0), torch.tensor(0.0)), cubic.slope(torch.tensor(1.0), torch.tensor(0.0))
    (tensor(1.), tensor(0.8000))
    """

    function: Callable[..., Tensor]
    constants: Mapping[str, float] = field(default_factory=dict[str, float])
    drives: Mapping[str, float] = field(default_factory=dict[str, float])
    bounds: tuple[float, float] = (-1.0, 1.0)
    derivative: Callable[..., Tensor] | None = None
    turns: Callable[..., Tensor] | None = None
    coupled: bool = False

    def __post_init__(self) -> None:
        names = list(inspect.signature(self.function).parameters)[1:]
        count = len(names) - len(self.constants)
        if tuple(names[count:]) != tuple(self.constants):
            raise ValueError(f"constants must be the last arguments of function, got {list(self.constants)}")
        if not self.drives:
            object.__setattr__(self, "drives", dict.fromkeys(names[:count], 0.0))
        if tuple(names[:count]) != tuple(self.drives) or not self.drives:
            raise ValueError(f"drives must name the arguments {names[:count]} of function, got {list(self.drives)}")
        if not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"bounds must be an interval (lower, upper), got {self.bounds}")

    def __repr__(self) -> str:
        """The name of its function and the initial values of its constants: ``Linear(_linear, a=0.9)``."""
        constants = [f"{name}={value!r}" for name, value in self.constants.items()]
        return f"{type(self).__name__}({', '.join([_name(self.function), *constants])})"

    def __call__(self, h: Tensor, *args: Tensor) -> Tensor:
        return self.function(h, *args)

    def slope(self, h: Tensor, *args: Tensor) -> Tensor:
        """``df/dh``, without a gradient of its own."""
        if self.derivative is not None:
            return self.derivative(h, *args).detach()
        shape = broadcast(h, *args)[0].shape

        def total(h: Tensor) -> Tensor:
            return self.function(h, *args).sum()

        if torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateUsage]
            return torch.func.grad(total)(h.detach().expand(shape)).detach()  # they allow no other gradient
        with torch.inference_mode(False), torch.enable_grad():
            h = h.detach().expand(shape).clone().requires_grad_()
            args = tuple(x.clone() if x.is_inference() else x.detach() for x in args)  # autograd cannot save these
            return torch.autograd.grad(total(h), h)[0]


def _name(function: Any) -> str:
    if isinstance(function, partial):
        return f"partial({', '.join([_name(cast(Any, function).func), *map(repr, function.args)])})"
    return getattr(function, "__name__", repr(function))


def broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """``torch.broadcast_tensors``, with types."""
    return tuple(cast(Any, torch).broadcast_tensors(*tensors))


@dataclass(frozen=True, repr=False)
class Linear(Field):
    """``f(h, x) = a h + x``: any number of iterations, and their limit, in closed form."""

    @staticmethod
    def iterated(n: Tensor | float, a: Tensor) -> tuple[Tensor, Tensor]:
        """``(p, q)`` such that n iterations from h give ``p h + q x``: ``a^n`` and ``1 + a + ... + a^(n-1)``.

        In the limit these are 0 and ``1 / (1 - a)`` for \\|a\\| < 1. Otherwise there is no limit, and q is NaN.
        """
        if not isinstance(n, Tensor) and n == math.inf:
            return torch.zeros_like(a), torch.where(a.abs() < 1, 1 / (1 - a), math.nan)
        p, gap = a**n, 1 - a
        near = a > 0.5  # there gap is exact, and 1 - p loses digits: at a = 0.9999, n = 2 a relative 5e-5 in float32
        rest = torch.where(near, -torch.expm1(n * torch.log1p(-torch.where(near, gap, 0.0))), 1 - p)
        safe = torch.where(gap == 0, 1.0, gap)  # keeps 0 / 0 out of the gradient
        at_one = n - n * (n - 1) / 2 * gap  # with the slope of the sum there
        return p, torch.where(gap == 0, at_one, rest / safe)


# The functions of fields are at the top level of this file, where pickle finds them by name, so that layers with fields
# can be saved whole and sent to other processes. Numbers that a field fixes come first; `partial` fills them in.


def simplified_brc(c: float = 1.0) -> Field:
    """``(1 - c) h + c tanh(x + (beta + 1) h)``: bistable around x = 0 if beta > 0, monostable if not.

    ``c`` only damps: the equilibria are those of ``h = tanh(x + (beta + 1) h)``. Layers add 1 to the initial bias of
    beta, so that their units start bistable.
    """
    if not 0 < c <= 1:
        raise ValueError(f"c must be positive and at most 1, got {c!r}")
    function, derivative = partial(_simplified_brc, c), partial(_simplified_brc_slope, c)
    return Field(function, drives={"x": 0.0, "beta": 1.0}, derivative=derivative, turns=_simplified_brc_turns)


def _simplified_brc(c: float, h: Tensor, x: Tensor, beta: Tensor) -> Tensor:
    return (1 - c) * h + c * torch.tanh(x + (beta + 1) * h)


def _simplified_brc_slope(c: float, h: Tensor, x: Tensor, beta: Tensor) -> Tensor:
    return (1 - c) + c * (beta + 1) * (1 - torch.tanh(x + (beta + 1) * h) ** 2)


def _simplified_brc_turns(x: Tensor, beta: Tensor) -> Tensor:
    y_c = torch.asinh(beta.clamp(min=0).sqrt())  # (beta + 1) (1 - tanh(y)^2) = 1 at y = +-y_c
    both = torch.stack([-y_c - x, y_c - x], dim=-1) / (beta + 1)[..., None]
    return torch.where(beta[..., None] > 0, both, math.nan)


def brc() -> Field:
    """The bistable recurrent cell. With ``u_a = b_a`` and ``w_a = 0`` the simplified one with beta = tanh(b_a)."""
    return Field(_brc, constants={"w_a": 0.0, "w_c": 0.0}, drives={"u_h": 0.0, "u_a": 1.0, "u_c": 0.0})


def _brc(h: Tensor, u_h: Tensor, u_a: Tensor, u_c: Tensor, w_a: Tensor, w_c: Tensor) -> Tensor:
    keep = torch.sigmoid(u_c + w_c * h)
    return keep * h + (1 - keep) * torch.tanh(u_h + (1 + torch.tanh(u_a + w_a * h)) * h)


def nbrc() -> Field:
    """The neuromodulated bistable recurrent cell: w_a and w_c are matrices ``[N, N]``, so the units are coupled."""
    constants = {"w_a": 0.0, "w_c": 0.0}
    return Field(_nbrc, constants, {"u_h": 0.0, "u_a": 1.0, "u_c": 0.0}, coupled=True)


def _nbrc(h: Tensor, u_h: Tensor, u_a: Tensor, u_c: Tensor, w_a: Tensor, w_c: Tensor) -> Tensor:
    keep = torch.sigmoid(u_c + h @ w_c.mT)
    return keep * h + (1 - keep) * torch.tanh(u_h + (1 + torch.tanh(u_a + h @ w_a.mT)) * h)


def linear(a: float = 0.9) -> Linear:
    """``a h + x`` with a learnable ``a`` per unit; the argument is its initial value."""
    return Linear(_linear, constants={"a": a}, bounds=(-math.inf, math.inf), derivative=_linear_slope)


def _linear(h: Tensor, x: Tensor, a: Tensor) -> Tensor:
    return a * h + x


def _linear_slope(h: Tensor, x: Tensor, a: Tensor) -> Tensor:
    return a + torch.zeros_like(h + x)


def check_field(field: object) -> None:
    if not isinstance(field, Field):
        raise TypeError(f"field must be a Field, such as simplified_brc(), got {field!r}")


def damped(field: Field, c: float) -> Field:
    """``(1 - c) h + c f(h)``: the same equilibria, and a map that increases in h where ``c (1 - df/dh) <= 1``."""
    check_field(field)
    if field.coupled or isinstance(field, Linear):
        raise ValueError("field must be pointwise and nonlinear to be damped")
    if not 0 < c <= 1:
        raise ValueError(f"c must be positive and at most 1, got {c!r}")
    function = partial(_damped, field, c)
    cast(Any, function).__signature__ = inspect.signature(field.function)
    return replace(field, function=function, derivative=partial(_damped_slope, field, c))


def _damped(plain: Field, c: float, h: Tensor, *args: Tensor) -> Tensor:
    return (1 - c) * h + c * plain(h, *args)


def _damped_slope(plain: Field, c: float, h: Tensor, *args: Tensor) -> Tensor:
    return (1 - c) + c * plain.slope(h, *args)


FIELDS: dict[str, Callable[[], Field]] = {
    "simplified_brc": simplified_brc,
    "brc": brc,
    "nbrc": nbrc,
    "linear": linear,
}
"""Fields by name, for layers given by name (``clocked:brc:4``). Add your own before you build or load a model."""

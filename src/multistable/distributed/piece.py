"""A call of a scan on this rank's piece: its operator, on all steps or some, and the summary that other ranks need.

A piece of a latch or of a linear recurrence maps the state that enters it to its last state, ``P h + E``. For a latch
P is 1 where nothing was written and 0 elsewhere. So the pieces are themselves a sequence, of one step per rank, and the
operators that scan steps also scan pieces.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from multistable.ops.numerics import from_pairs, multiply, to_pairs, wide
from multistable.ops.operators import as_gate, compute

__all__ = ["Piece", "blocks", "piece_of"]

_BLOCK = 256  # steps to look at first: a unit that writes every tenth step has written in all but 1 of 10^11 cases
_GROWTH = 16  # of blocks: with 2, the kernels for a dozen lengths took half a minute to compile on a GPU
_HELD = 2.0  # stands for the state that enters, where written states are +1 and -1

Tensors = tuple[Tensor, ...]


def blocks(T: int, from_start: bool) -> Iterator[slice]:
    """Ranges of steps of growing length, from the first step on or from the last step back."""
    done, end = 0, _BLOCK
    while done < T:
        stop = min(T, end)
        yield slice(done, stop) if from_start else slice(T - stop, T - done)
        done, end = stop, _GROWTH * end


class Piece:
    """The arguments ``*inputs, h0, reset, *options`` of an operator, see :mod:`multistable.ops.operators`."""

    pairs = False

    def __init__(self, name: str, *args: Any) -> None:
        self.name, count = name, 3 if name == "bmru_scan" else 2
        self.given: tuple[Any, ...] = args[:count]
        self.h0: Tensor | None = args[count]
        self.reset: Tensor | None = args[count + 1]
        self.options: tuple[Any, ...] = args[count + 2 :]
        time_major = name == "bmru_layer" and self.options[2]
        self.axis, self.backend = 0 if time_major else 1, self.options[-1]
        self.reverse: bool = self.options[0 if name == "latch_scan" else 1]
        steps: Tensor = self.steps()
        self.T, self.B = steps.shape[self.axis], steps.shape[1 - self.axis]
        self.N = steps.shape[2] // (2 if name == "bmru_layer" else 1)
        self.dtype, self.device = steps.dtype, steps.device

    def steps(self) -> Tensor:
        """The input whose dtype the states have."""
        raise NotImplementedError

    def cut(self, x: Any, steps: slice) -> Any:
        """``x`` at some steps, if it has a time axis."""
        return x if x is None or x.ndim == 1 else x[(slice(None),) * self.axis + (steps,)]

    def forward(self, h0: Tensor | None, steps: slice = slice(None), inputs: Tensors | None = None) -> Tensors:
        """The states at ``steps``, and the last one, from the state ``h0`` before them."""
        given = [self.cut(x, steps) for x in (self.given if inputs is None else inputs)]
        return compute(self.name, *given, h0, self.marks(steps), *self.options)

    def backward(
        self, grad_h: Tensor | None, grad_last: Tensor | None, h0: Tensor, h: Tensor, steps: slice = slice(None)
    ) -> Tensors:
        """The gradients of the inputs at ``steps`` and of ``h0``."""
        given = [self.cut(x, steps) for x in (*self.kept(), h) if x is not None]
        tensors = *given[:-1], h0, self.marks(steps), given[-1]
        return compute(f"{self.name}_backward", self.cut(grad_h, steps), grad_last, *tensors, *self.options)

    def kept(self) -> tuple[Any, ...]:
        """The inputs that the backward reads, with None for one that it does not."""
        return self.given

    def marks(self, steps: slice) -> Tensor | None:
        return None if self.reset is None else self.reset[:, steps]

    def was_reset(self) -> Tensor:
        """``[B]``: whether a step of the piece is marked."""
        if self.reset is None:
            return torch.zeros(self.B, dtype=torch.bool, device=self.device)
        return self.reset.any(dim=1)

    def summary(self) -> Tensors:
        """What the other ranks need to know about this piece."""
        raise NotImplementedError

    def compose(self, *gathered: Tensor) -> Tensors:
        """From all ranks' summaries: the states after each piece ``[B, R, N]``, the last one, and P ``[B, R, N]``."""
        raise NotImplementedError

    def passed_back(self, grad_h: Tensor, h0: Tensor, h: Tensor, passes: Tensor) -> Tensor:
        """The gradient ``[B, N]`` of the state that enters, if no later piece reads the last state.

        ``passes [B, N]`` is this piece's P.
        """
        return self.backward(grad_h, None, h0, h)[-1]

    def compose_back(self, grads: Tensor, passes: Tensor) -> Tensor:
        """Gradients of the state before each piece, ``[B, R, N]``, from those that the pieces pass back by
        themselves."""
        passes = passes.to(grads.dtype)
        options = self.pairs, not self.reverse, self.backend
        return compute("linear_scan", self.conjugate(passes), grads, None, None, *options)[0]

    def conjugate(self, passes: Tensor) -> Tensor:
        if not self.pairs:
            return passes
        real, imag = passes.chunk(2, dim=-1)
        return torch.cat([real, -imag], dim=-1)

    def through(self, passes: Tensor, grad: Tensor) -> Tensor:
        """The gradient of the state before a piece, from that of its last state."""
        passes = self.conjugate(passes.to(grad.dtype))
        return multiply(passes, grad) if self.pairs else passes * grad


class LatchPiece(Piece):
    """``latch_scan``. The summary has a bit per unit, whether it wrote, and the last value written."""

    def steps(self) -> Tensor:
        return self.given[1]

    def wrote(self, steps: slice) -> Tensor:
        """``[B, N]``: whether a unit writes or is reset at one of these steps."""
        write = as_gate(self.cut(self.given[0], steps), self.cut(self.given[1], steps))[0].any(dim=1)
        marks = self.marks(steps)
        return write if marks is None else write | marks.any(dim=1)[:, None]

    def summary(self) -> Tensors:
        value = self.given[1]
        last, wrote = value.new_zeros(self.B, self.N), self.none_wrote()
        for steps in blocks(self.T, from_start=self.reverse):
            last = torch.where(wrote, last, self.forward(None, steps)[1])
            wrote = wrote | self.wrote(steps)
            if wrote.all():
                break
        return wrote, last

    def none_wrote(self) -> Tensor:
        return torch.zeros(self.B, self.N, dtype=torch.bool, device=self.device)

    def compose(self, *gathered: Tensor) -> Tensors:
        wrote, values = (x.transpose(0, 1).contiguous() for x in gathered)
        h0 = None if self.h0 is None else self.h0.to(self.dtype)
        return *compute("latch_scan", wrote, values, h0, None, self.reverse, self.backend), ~wrote

    def passed_back(self, grad_h: Tensor, h0: Tensor, h: Tensor, passes: Tensor) -> Tensor:
        """By the steps before the first write alone: often a small part of the piece."""
        wrote, first = self.none_wrote(), slice(0, self.T)
        for steps in () if passes.any() else blocks(self.T, from_start=not self.reverse):
            wrote = wrote | self.wrote(steps)
            if wrote.all():
                first = slice(steps.start, self.T) if self.reverse else slice(0, steps.stop)
                break
        return self.backward(grad_h, None, h0, h, first)[-1]


class BMRUPiece(LatchPiece):
    """``bmru_scan`` and ``bmru_layer``. The summary has two bits per unit, ``up`` and ``down``, for its last write
    since a reset: none (neither), +alpha, -alpha or NaN (both); and a bit per sequence, whether it was reset.
    """

    def steps(self) -> Tensor:
        return self.given[0]

    @property
    def alpha(self) -> Tensor:
        return self.given[-1]

    def last_side(self, steps: slice) -> Tensor:
        """``[B, N]``: the last that was written at these steps: +1, -1, NaN, 0 by a reset, or ``_HELD``."""
        sides = *self.given[:-1], torch.ones_like(self.alpha)
        start = torch.full((self.B, self.N), _HELD, dtype=self.dtype, device=self.device)
        return self.forward(start, steps, sides)[1]

    def wrote(self, steps: slice) -> Tensor:
        return self.last_side(steps) != _HELD

    def summary(self) -> Tensors:
        side = torch.full((self.B, self.N), _HELD, dtype=self.dtype, device=self.device)
        for steps in blocks(self.T, from_start=self.reverse):
            side = torch.where(side == _HELD, self.last_side(steps), side)
            if not (side == _HELD).any():
                break
        spoilt = side.isnan()
        return (side == 1) | spoilt, (side == -1) | spoilt, self.was_reset()

    def compose(self, *gathered: Tensor) -> Tensors:
        up, down, reset = (x.transpose(0, 1).contiguous() for x in gathered)
        side = torch.where(up & down, torch.nan, up.to(self.dtype) - down.to(self.dtype)).to(self.dtype)
        wrote = up | down
        h0 = None if self.h0 is None else self.h0.to(self.dtype)
        states = compute("latch_scan", wrote, self.alpha.to(self.dtype) * side, h0, reset, self.reverse, self.backend)
        return *states, ~(wrote | reset[..., None])


class LinearPiece(Piece):
    """``linear_scan``. The summary has the last state, if the piece starts from zero; its number of steps or, if
    coefficients vary, P; and a bit per sequence, whether it was reset."""

    def __init__(self, name: str, *args: Any) -> None:
        super().__init__(name, *args)
        self.pairs: bool = self.options[0]

    def steps(self) -> Tensor:
        return self.given[1]

    def kept(self) -> tuple[Any, ...]:
        return self.given[0], None

    def summary(self) -> Tensors:
        a, last = self.given[0], self.forward(None)[1]
        if a.ndim == 1:
            return last, torch.tensor([self.T], device=self.device), self.was_reset()
        a = a.to(wide(self.dtype))
        product = to_pairs(from_pairs(a).prod(dim=1)) if self.pairs else a.prod(dim=1)
        return last, product, self.was_reset()

    def compose(self, *gathered: Tensor) -> Tensors:
        last, how, reset = (x.transpose(0, 1) for x in gathered)
        a, dtype = self.given[0], wide(self.dtype)
        if a.ndim == 1:  # how: [1, R], numbers of steps
            how = _powers(a, how[0], self.pairs).expand(last.shape)
        h0 = None if self.h0 is None else self.h0.to(dtype)
        passes, ends, reset = how.to(dtype).contiguous(), last.to(dtype).contiguous(), reset.contiguous()
        states, end = compute("linear_scan", passes, ends, h0, reset, *self.options)
        return states.to(self.dtype), end.to(self.dtype), torch.where(reset[..., None], 0.0, passes)


def _powers(a: Tensor, steps: Tensor, pairs: bool) -> Tensor:
    """``a^steps [R, N]`` for ``a [N]``, ``steps [R]``; in float64: a power has ``steps`` times its base's error."""
    a, steps = a.double()[None], steps[:, None]
    if not pairs:
        return a**steps
    z = from_pairs(a)
    return to_pairs(torch.polar(z.abs() ** steps, z.angle() * steps))


_KINDS: dict[str, type[Piece]] = {
    "bmru_scan": BMRUPiece,
    "bmru_layer": BMRUPiece,
    "latch_scan": LatchPiece,
    "linear_scan": LinearPiece,
}


def piece_of(name: str, *args: Any) -> Piece:
    return _KINDS[name](name, *args)

"""The base of layers made from a field: an input projection gives its drives, each unit has its own constants."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from multistable.dynamics.fields import Field
from multistable.layers.base import Recurrent, init_linear, init_orthogonal
from multistable.layers.sequences import Steps
from multistable.ops import pieces
from multistable.ops.border import Border

__all__ = ["FieldLayer"]


class FieldLayer(Recurrent):
    """A layer whose units follow a field; a subclass defines :meth:`scan`.

    The drives of the field are ``W x + b``, in the order of its arguments, ``weight_ih [drives * N, D]``; its constants
    are parameters of their own, ``[N]`` (``[N, N]`` if it couples the units). The state is h.
    """

    field: Field
    in_turn: ClassVar[bool] = True
    """Whether the ranks of a cut sequence run one after the other: nothing can be computed without the state."""

    def scan(
        self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None, border: Border | None = None
    ) -> Tensor:
        """States ``[B, T, N]`` from the arguments of the field: drives ``[B, T, N]``, then constants.

        The state is ``h0 [B, N]`` before the first step (zero if None) and zero before steps that ``reset`` marks.
        ``border`` is that of a piece of a cut sequence; None for a whole one, and always None if ``in_turn``.
        """
        raise NotImplementedError

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        N, rows = self.hidden_size, len(self.field.drives) * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "bias_ih": (rows,)}
        return shapes | dict.fromkeys(self.field.constants, (N, N) if self.field.coupled else (N,))

    @torch.no_grad()
    def init_layer(self, layer: int, reverse: bool) -> None:
        """As ``nn.Linear``, plus the field's offset on each drive's bias; constants start at the field's values."""
        weight, bias, *constants = self.parameters_of(layer, reverse)
        init_linear(weight, bias)
        if bias is not None:
            for part, offset in zip(bias.chunk(len(self.field.drives)), self.field.drives.values(), strict=True):
                part.add_(offset)
        for constant, value in zip(constants, self.field.constants.values(), strict=True):
            nn.init.constant_(constant, value)
            if self.field.coupled:
                init_orthogonal(constant)

    def arguments(self, proj: Tensor, layer: int, reverse: bool = False) -> list[Tensor]:
        """Drives ``[..., N]`` out of the projection, then the constants in their own dtype."""
        _, _, *constants = self.parameters_of(layer, reverse)
        return [*proj.chunk(len(self.field.drives), dim=-1), *constants]

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        b, cut = self.project(x, layer, reverse), pieces.current()
        scan = partial(self._scan_drives, layer=layer, reverse=reverse, steps=steps)
        if cut is None:
            h, h_last = scan(b, h0)
        elif not self.in_turn:
            h, h_last = scan(b, h0, border=Border(cut, reverse, steps.lengths))
        else:
            start = b.new_zeros(steps.B, self.state_size) if h0 is None else h0.to(b.dtype)
            h, h_last = cut.in_turn(scan, b, start, reverse)
        return h, steps.at_last_segment(h, h_last, reverse)

    def _scan_drives(
        self, b: Tensor, h0: Tensor | None, *, layer: int, reverse: bool, steps: Steps, border: Border | None = None
    ) -> tuple[Tensor, Tensor]:
        """States in the layout of ``b``, the projected input, and the last one; in reverse by reversing the drives."""
        b, reset = (steps.reverse_valid(b), steps.reset_reversed()) if reverse else (b, steps.reset)
        args = self.arguments(steps.swap_layout(b), layer, reverse)
        h = self.scan(args, h0, reset=reset, border=border)
        h = steps.swap_layout(h)
        h = steps.reverse_valid(h) if reverse else h
        return h, steps.at_end(steps.swap_layout(h), h0, reverse)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        proj = self.project(x, layer)
        batch = proj.unsqueeze(0) if proj.ndim == 1 else proj  # [B, drives * N]
        h = self.scan(self.arguments(batch[:, None], layer), h.reshape(len(batch), self.hidden_size).to(proj.dtype))
        h = h.reshape(*x.shape[:-1], self.hidden_size)
        return h, h

"""The base of layers made from a field: an input projection gives its drives, each unit has its own constants."""

from __future__ import annotations  # those of nested functions stop the compiler of torch 2.8

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from multistable.dynamics.fields import Field
from multistable.layers.base import Recurrent, init_linear, init_orthogonal
from multistable.layers.sequences import Steps, scan_padded, scan_valid
from multistable.ops import pieces
from multistable.ops.border import Border

__all__ = ["FieldLayer"]


class FieldLayer(Recurrent):
    """A layer whose units follow a field; a subclass defines :meth:`scan` or, with ``in_turn = False``, `scan_piece`.

    The drives of the field are ``W x + b``, in the order of its arguments, ``weight_ih [drives * N, D]``; its constants
    are parameters of their own, ``[N]`` (``[N, N]`` if it couples the units). The state is h.
    """

    field: Field
    in_turn: ClassVar[bool] = True
    """Whether the ranks of a cut sequence run one after the other: nothing can be computed without the state."""

    def scan(self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None) -> Tensor:
        """States ``[B, T, N]`` from the arguments of the field: drives ``[B, T, N]``, then constants.

        The state is ``h0 [B, N]`` before the first step (zero if None) and zero before steps that ``reset`` marks.
        """
        return self.scan_piece(args, h0, reset, None)

    def scan_piece(self, args: list[Tensor], h0: Tensor | None, reset: Tensor | None, border: Border | None) -> Tensor:
        """:meth:`scan` of a piece of a cut sequence, or of a whole one if ``border`` is None."""
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
        backwards, cut = reverse, pieces.current()
        border = None if cut is None or self.in_turn else Border(cut, reverse, steps.lengths)

        def scan(b: Tensor, h0: Tensor | None, *, reset: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
            b = b if self.batch_first else b.transpose(0, 1)  # [B, T, drives * N]
            if reverse:
                b, reset = b.flip(1), None if reset is None else reset.flip(1)
            args = self.arguments(b, layer, backwards)
            h = self.scan(args, h0, reset=reset) if border is None else self.scan_piece(args, h0, reset, border)
            start = h.new_zeros(h.shape[0], h.shape[2]) if h0 is None else h0.to(h.dtype)
            h_last = h[:, -1] if h.shape[1] else start
            h = h.flip(1) if reverse else h
            return h if self.batch_first else h.transpose(0, 1), h_last

        b = self.project(x, layer, reverse)
        if cut is None:
            return scan_padded(scan, b, h0, steps, reverse)
        start = b.new_zeros(steps.B, self.state_size) if h0 is None else h0.to(b.dtype)
        if border is not None:
            h, own = scan_valid(scan, b, h0, steps, reverse)
            h_last = self._last_of_all(cut, h, own, start, steps, reverse)
        else:
            h, h_last = cut.in_turn(partial(scan_valid, scan, steps=steps, reverse=reverse), b, start, reverse)
        return h, steps.at_last_segment(h, h_last, reverse)

    def _last_of_all(
        self, cut: pieces.Pieces, h: Tensor, own: Tensor, start: Tensor, steps: Steps, reverse: bool
    ) -> Tensor:
        """The last state on the rank where the scan ends; ``own`` is this rank's last state."""
        time = 1 if self.batch_first else 0
        if h.shape[time] == 0:
            own = h.sum(dim=time)  # so that every rank has the same graph
        has = torch.full((steps.B,), h.shape[time] > 0, device=h.device)
        return cut.choose(own, has if steps.lengths is None else steps.lengths > 0, start.to(h.dtype), first=reverse)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        proj = self.project(x, layer)
        batch = proj.unsqueeze(0) if proj.ndim == 1 else proj  # [B, drives * N]
        h = self.scan(self.arguments(batch[:, None], layer), h.reshape(len(batch), self.hidden_size).to(proj.dtype))
        h = h.reshape(*x.shape[:-1], self.hidden_size)
        return h, h

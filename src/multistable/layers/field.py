"""What cells made from a field share: drives by an input projection, constants per unit, one scan."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.dynamics.fields import Field
from multistable.layers import sequences
from multistable.layers.base import Recurrent, reset_linear

__all__ = ["Driven"]


class Driven(Recurrent):
    """A cell whose units follow a field: ``scan(args, h0, reset=)`` maps its arguments ``[B, T, N]`` to states.

    The drives of the field are ``W x + b``, in the order of its arguments, ``weight_ih [drives * N, D]``; its constants
    are parameters of their own, ``[N]`` (``[N, N]`` if it couples the units). The state is h.
    """

    field: Field

    def make_layer(self, layer: int, suffix: str, width: int, empty: dict[str, Any]) -> None:
        N, rows = self.hidden_size, len(self.field.drives) * self.hidden_size
        self.register("weight_ih", layer, suffix, (rows, width), empty)
        if self.bias:
            self.register("bias_ih", layer, suffix, (rows,), empty)
        for name in self.field.constants:
            self.register(name, layer, suffix, (N, N) if self.field.coupled else (N,), empty)

    @torch.no_grad()
    def reset_layer(self, layer: int, suffix: str) -> None:
        """As ``nn.Linear``, plus the field's offset on each drive's bias; constants start at the field's values."""
        weight, bias = self.parameter("weight_ih", layer, suffix), self.bias_of(layer, suffix)
        reset_linear(weight, bias)
        if bias is not None:
            for part, offset in zip(bias.chunk(len(self.field.drives)), self.field.drives.values(), strict=True):
                part.add_(offset)
        for name, value in self.field.constants.items():
            nn.init.constant_(self.parameter(name, layer, suffix), value)
            if self.field.coupled:
                nn.init.orthogonal_(self.parameter(name, layer, suffix))

    def arguments(self, proj: Tensor, layer: int, suffix: str) -> list[Tensor]:
        """Drives ``[..., N]`` out of the projection, then the constants in their own dtype."""
        constants = [self.parameter(name, layer, suffix) for name in self.field.constants]
        return [*proj.chunk(len(self.field.drives), dim=-1), *constants]

    def scan(self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None) -> Tensor:
        """States ``[B, T, N]`` from the field's arguments, drives of that shape."""
        raise NotImplementedError

    def project(self, x: Tensor, layer: int, suffix: str) -> Tensor:
        return F.linear(x, self.parameter("weight_ih", layer, suffix), self.bias_of(layer, suffix))

    def run(
        self, x: Tensor, layer: int, suffix: str, h0: Tensor | None, steps: sequences.Steps
    ) -> tuple[Tensor, Tensor]:
        def law(proj: Tensor, h0: Tensor | None, *, reset: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
            proj = proj if self.batch_first else proj.transpose(0, 1)  # [B, T, drives * N]
            if reverse:
                proj, reset = proj.flip(1), None if reset is None else reset.flip(1)
            h = self.scan(self.arguments(proj, layer, suffix), h0, reset=reset)
            start = h.new_zeros(h.shape[0], h.shape[2]) if h0 is None else h0.to(h.dtype)
            h_last = h[:, -1] if h.shape[1] else start
            h = h.flip(1) if reverse else h
            return h if self.batch_first else h.transpose(0, 1), h_last

        return sequences.run_padded(law, self.project(x, layer, suffix), h0, steps, suffix == "_reverse")

    def advance(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        proj = self.project(x, layer, "")
        batch = proj.unsqueeze(0) if proj.ndim == 1 else proj  # [B, drives * N]
        h = self.scan(self.arguments(batch[:, None], layer, ""), h.reshape(len(batch), self.hidden_size).to(proj.dtype))
        h = h.reshape(*x.shape[:-1], self.hidden_size)
        return h, h

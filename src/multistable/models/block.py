"""One block: ``x + GLU(out_proj(cell(norm(x), position)) + skip * norm(x))``."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers import Recurrent
from multistable.layers.base import Part
from multistable.layers.sequences import Steps, last_valid
from multistable.models.norm import BatchNorm, LayerNorm
from multistable.ops import pieces

__all__ = ["Block", "ReadOut", "is_plain"]


class ReadOut(nn.Module):
    """Features ``[..., directions * F]`` -> ``[..., H]``: a matrix without bias, one parameter per part of the layer.

    The parts of a hybrid have separate matrices because they belong to different parameter groups of the optimiser.
    """

    def __init__(self, parts: tuple[Part, ...], directions: int, H: int, variance: float = 1.0) -> None:
        super().__init__()
        self.parts = parts
        self.directions = directions
        self.variance = variance
        for part in parts:
            self.register_parameter(part.name, nn.Parameter(torch.empty(H, directions * part.size)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw uniform weights of variance ``variance / (number of features)``; for pairs, which are complex features,
        normal ones of variance 2 / (number of features), Orvieto's 1 / (number of complex features)."""
        fan_in = self.directions * sum(part.size for part in self.parts)
        for part in self.parts:
            weight = getattr(self, part.name)
            if part.pairs:
                nn.init.normal_(weight, std=math.sqrt(2 / fan_in))
            else:
                bound = math.sqrt(3 * self.variance / fan_in)
                nn.init.uniform_(weight, -bound, bound)

    def matrix(self) -> Tensor:
        """The matrix of all parts, ``[H, directions * F]``."""
        weights = [getattr(self, part.name) for part in self.parts]
        if len(weights) == 1:
            return weights[0]
        # Features are ordered by direction, then by part.
        chunks = zip(*(weight.chunk(self.directions, dim=1) for weight in weights), strict=True)
        return torch.cat([weight for direction in chunks for weight in direction], dim=1)

    def narrow(self, features: Tensor) -> Tensor:
        """Features in the dtype of the matrix, if that is narrower: a Counter counts in float32."""
        weight: Tensor = getattr(self, self.parts[0].name)
        return features.to(weight.dtype) if features.itemsize > weight.itemsize else features

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(self.narrow(features), self.matrix())


class Block(nn.Module):
    """``x [B, T, H] -> x + GLU(out_proj(cell(norm(x), position)) + skip * norm(x))``, and the state of its layer.

    ``cell`` is the recurrent layer. ``skip [H]`` exists if that has one (the LRU's ``D``). GLU is a linear map to 2H,
    then ``a * sigmoid(b)``.
    """

    def __init__(
        self, norm: BatchNorm | LayerNorm, cell: Recurrent, out_proj: ReadOut, glu: nn.Linear, dropout: float
    ) -> None:
        super().__init__()
        self.norm = norm
        self.cell = cell
        self.out_proj = out_proj
        self.skip = nn.Parameter(torch.randn(glu.in_features)) if cell.has_skip else None
        self.glu = glu
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw ``skip ~ N(0, 1)``; submodules initialise their own parameters."""
        if self.skip is not None:
            nn.init.normal_(self.skip)

    def forward(
        self, x: Tensor, state: Tensor | None, steps: Steps, position: Tensor | None = None, last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """``position`` is ``[B, T, P]`` or ``[1, T, P]``, ``state`` and the new state are ``[directions, B, S]``. With
        ``last`` only the last valid step is returned, ``[B, H]``."""
        u = self.norm(x, steps.valid)
        features, h_n = self.cell(self.with_position(u, position), state, reset=steps.reset, lengths=steps.lengths)
        if last:
            both_ways = self.cell.bidirectional
            # Otherwise the last state has the features; slicing all states would cost the backward a pass over them.
            x, u, *read = at_last([x, u, features] if both_ways else [x, u], steps.lengths)
            features = read[0] if both_ways else h_n[0, :, : self.cell.feature_size]
        return self.mix(x, u, features, self.training), h_n

    def step(self, x: Tensor, state: Tensor, position: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One timestep, ``x [..., H]`` and ``position [..., P]``, without dropout and with the running statistics."""
        u = self.norm.step(x)
        features, state = self.cell.step(self.with_position(u, position), state)
        return self.mix(x, u, features, False), state

    def with_position(self, u: Tensor, position: Tensor | None) -> Tensor:
        """Append the position encoding if the layer reads one."""
        if position is None or self.cell.input_size == u.shape[-1]:  # a layer that reads positions is wider than H
            return u
        return torch.cat([u, position.to(u.dtype).expand(*u.shape[:-1], -1)], dim=-1)

    def mix(self, x: Tensor, u: Tensor, features: Tensor, training: bool) -> Tensor:
        """Everything after the layer: read-out, skip, GLU, dropout and residual; ``u`` is ``norm(x)``."""
        if training and self.skip is None and self._can_merge(features):
            y = F.linear(self.out_proj.narrow(features), self.glu.weight @ self.out_proj.matrix(), self.glu.bias)
        else:
            y = self.out_proj(features)
            y = self.glu(y if self.skip is None else y + self.skip.to(u.dtype) * u)
        return x + F.dropout(F.glu(y, dim=-1), self.dropout, training)

    def _can_merge(self, features: Tensor) -> bool:
        """Decide if the matrices of read-out and GLU are multiplied first, so that n steps need one product:
        ``2HHF + 2nHF`` multiplications instead of ``nHF + 2nHH``.

        Only where it is compiled, for training: that rounds otherwise than :meth:`step` and evaluation in any case. On
        an H200 two blocks of BMRUs then train 70 million timesteps per second instead of 65 (with :func:`encode`).
        """
        fewer = torch.compiler.is_compiling() and features.shape[-1] < 2 * self.glu.in_features
        return fewer and is_plain(self.glu, nn.Linear) and is_plain(self.out_proj, ReadOut)


def is_plain(module: Any, kind: type[nn.Module]) -> bool:
    """True if the module's weights can be used without calling it: it is not replaced and has no hooks."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return type(module) is kind and "forward" not in module.__dict__ and not any(hooks)


def at_last(xs: list[Tensor], lengths: Tensor | None) -> list[Tensor]:
    """Each ``x [B, T, H]`` at the last valid step of each sequence, ``[B, H]``; zeros where none is valid.

    If the sequence is cut, in one exchange for all of them.
    """
    here, cut = [last_valid(x, lengths) for x in xs], pieces.current()
    if cut is None:
        return here if lengths is None else [torch.where(lengths[:, None] > 0, x, 0.0) for x in here]
    joined = torch.cat(here, dim=-1)
    B, T = xs[0].shape[:2]
    chosen = cut.choose(joined, pieces.has_steps(lengths, B, T, joined.device), torch.zeros_like(joined))
    return list(torch.split(chosen, [x.shape[-1] for x in xs], dim=-1))

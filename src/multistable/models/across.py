"""Sums over all processes of ``torch.distributed``, with their gradient."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["over_processes", "several_processes"]


def several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def over_processes(x: Tensor) -> Tensor:
    """The sum of ``x`` over the processes; ``x`` itself where there is one process only."""
    return _Sum.apply(x) if several_processes() else x  # pyright: ignore[reportReturnType]


class _Sum(torch.autograd.Function):
    """``y = sum_p x_p`` in every process, so ``dL/dx_p = sum_q dL_q/dy`` with ``L = sum_q L_q``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Sum.apply(grads[0])  # pyright: ignore[reportReturnType]

"""Batch norm over the valid steps of a batch, optionally over those of all processes, and layer norm."""

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.ops import pieces
from multistable.ops.autograd import Function
from multistable.ops.numerics import wide

__all__ = ["BatchNorm", "LayerNorm"]


class LayerNorm(nn.LayerNorm):
    """``weight * (x - mean) / sqrt(var + eps) + bias`` over the features of each step; see :class:`BatchNorm`."""

    def forward(self, input: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(input)

    def step(self, x: Tensor) -> Tensor:
        return super().forward(x)


class BatchNorm(nn.Module):
    """``weight * (x - mean) / sqrt(var + eps) + bias`` per feature of ``x [B, T, H]``.

    Training uses the mean and variance of the valid timesteps of the batch and updates the running statistics
    (``running += momentum * (batch - running)``, with the unbiased variance, as in :class:`torch.nn.BatchNorm1d`).
    Evaluation and single steps ``[B, H]`` use the running statistics.

    If ``synchronized``, the batch is that of all processes of ``torch.distributed`` together, on any device
    (``torch.nn.SyncBatchNorm`` does not support the CPU, and counts padding). The pieces of a sequence that is cut over
    processes (:mod:`multistable.distributed`) always count together.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, H: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.synchronized = False
        self.weight = nn.Parameter(torch.empty(H))
        self.bias = nn.Parameter(torch.empty(H))
        self.register_buffer("running_mean", torch.empty(H))
        self.register_buffer("running_var", torch.empty(H))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for tensor, value in ((self.weight, 1), (self.bias, 0), (self.running_mean, 0), (self.running_var, 1)):
            nn.init.constant_(tensor, value)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Normalise ``x [B, T, H]``; ``valid [B, T, 1]`` marks the steps that count, None if all do."""
        if not self.training:
            return self.step(x)
        if valid is not None or self.synchronized or pieces.current() is not None:
            return self._normalize(x, torch.ones_like(x[..., :1], dtype=torch.bool) if valid is None else valid)
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        y = F.batch_norm(x.flatten(0, 1), *statistics, True, self.momentum, self.eps).view(x.shape)
        if y.requires_grad and not torch.compiler.is_compiling():
            # If positions are concatenated to the output, its gradient is a slice, for which torch falls back to a
            # kernel that takes 6 ms instead of 0.1 (H200, bfloat16, 256 x 784 x 256). The compiler has its own.
            cast(Any, y).register_hook(Tensor.contiguous)
        return y

    def step(self, x: Tensor) -> Tensor:
        """Normalise ``x [..., H]`` with the running statistics."""
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return F.batch_norm(x.reshape(-1, x.shape[-1]), *statistics, False, 0.0, self.eps).view(x.shape)

    def _normalize(self, x: Tensor, valid: Tensor) -> Tensor:
        """Normalise with the statistics of the valid steps, and update the running ones."""
        dtype, x = x.dtype, x.to(wide(x.dtype))
        total = self._sum_all(torch.where(valid, x, 0.0).sum(dim=(0, 1)))
        counted = self._sum_all(valid.sum())
        count = counted.clamp(min=1)
        mean = total / count
        var = self._sum_all(torch.where(valid, x - mean, 0.0).square().sum(dim=(0, 1))) / count
        with torch.no_grad():
            momentum = self.momentum * (counted > 0).to(self.running_mean.dtype)  # no update without a valid step
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        return ((x - mean) * (self.weight * torch.rsqrt(var + self.eps)) + self.bias).to(dtype)

    def _sum_all(self, x: Tensor) -> Tensor:
        """Sum ``x`` over the processes that share their statistics: all, or those with pieces of the same sequence."""
        if self.synchronized:
            return _SumOverProcesses.apply(x)
        cut = pieces.current()
        return x if cut is None else cut.sum(x)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, momentum={self.momentum}, synchronized={self.synchronized}"


class _SumOverProcesses(Function):
    """The sum over processes. It reaches the loss of every process, so its gradient is summed over them too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)  # pyright: ignore[reportUnknownMemberType]
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _SumOverProcesses.apply(grads[0])

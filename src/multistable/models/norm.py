"""Batch norm over batch and time that counts valid steps only."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.models.across import over_processes, several_processes
from multistable.ops.precision import wide

__all__ = ["BatchNorm"]


class BatchNorm(nn.Module):
    """``weight * (x - mean) / sqrt(var + eps) + bias`` per feature of ``x [B, T, H]``.

    In training, mean and variance are those of the valid timesteps of the batch, and the running statistics follow them
    (``running += momentum * (batch - running)``, the variance unbiased there, as in :class:`torch.nn.BatchNorm1d`).
    In evaluation, and for single steps ``[B, H]``, they are the running statistics.

    Where ``torch.distributed`` runs several processes, "the batch" is that of all of them together, on any device
    (``SyncBatchNorm`` refuses the CPU): every process must then take part in every forward pass in training mode.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, H: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(H))
        self.bias = nn.Parameter(torch.zeros(H))
        self.register_buffer("running_mean", torch.zeros(H))
        self.register_buffer("running_var", torch.ones(H))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """``valid [B, T, 1]``: the steps that count, or None if all do."""
        if not self.training:
            return self.step(x)
        if valid is None and several_processes():
            valid = x.new_ones(x.shape[0], x.shape[1], 1, dtype=torch.bool)
        if valid is not None:
            return self._normalize_valid(x, valid)
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return F.batch_norm(x.flatten(0, 1), *statistics, True, self.momentum, self.eps).view(x.shape)

    def step(self, x: Tensor) -> Tensor:
        """With the running statistics; ``x [..., H]``."""
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return F.batch_norm(x.reshape(-1, x.shape[-1]), *statistics, False, 0.0, self.eps).view(x.shape)

    def _normalize_valid(self, x: Tensor, valid: Tensor) -> Tensor:
        dtype, x = x.dtype, x.to(wide(x.dtype))
        count = over_processes(valid.sum()).clamp(min=1)
        mean = over_processes(torch.where(valid, x, 0.0).sum(dim=(0, 1))) / count
        var = over_processes(torch.where(valid, x - mean, 0.0).square().sum(dim=(0, 1))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return ((x - mean) * (self.weight * torch.rsqrt(var + self.eps)) + self.bias).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, momentum={self.momentum}"

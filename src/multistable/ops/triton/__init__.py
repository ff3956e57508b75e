"""The scans on a GPU: the kernels of ``latch*.py`` and ``linear*.py``, launched where the tensors are."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from multistable.ops.triton import latch, latch_backward, linear, linear_backward

__all__ = ["bmru_backward", "bmru_forward", "latch_backward", "latch_forward", "linear_backward", "linear_forward"]


def _where_the_tensors_are(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current GPU, which need not be that of the tensors."""

    @wraps(scan)
    def launch(*args: Any, **options: Any) -> Any:
        device = next(x for x in args if isinstance(x, Tensor)).device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return scan(*args, **options)
        with torch.cuda.device(device):
            return scan(*args, **options)

    return launch


bmru_forward = _where_the_tensors_are(latch.bmru_forward)
bmru_backward = _where_the_tensors_are(latch_backward.bmru_backward)
latch_forward = _where_the_tensors_are(latch.latch_forward)
latch_backward = _where_the_tensors_are(latch_backward.latch_backward)
linear_forward = _where_the_tensors_are(linear.linear_forward)
linear_backward = _where_the_tensors_are(linear_backward.linear_backward)

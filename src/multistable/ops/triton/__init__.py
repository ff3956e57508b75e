"""The scans on a GPU: the kernels of ``latch*.py``, ``linear*.py`` and ``map*.py``, launched on the tensors' device."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from multistable.ops.triton import latch, latch_grad, linear, linear_grad, maps

__all__ = [
    "bmru_backward",
    "bmru_forward",
    "latch_backward",
    "latch_forward",
    "linear_backward",
    "linear_forward",
    "map_adjoint",
    "map_forward",
    "map_pack",
]


def _on_device_of_tensors(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Make the tensors' GPU current: Triton launches on the current one."""

    @wraps(scan)
    def launch(*args: Any, **options: Any) -> Any:
        device = next(x for x in args if isinstance(x, Tensor)).device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return scan(*args, **options)
        with torch.cuda.device(device):
            return scan(*args, **options)

    return launch


bmru_forward = _on_device_of_tensors(latch.bmru_forward)
bmru_backward = _on_device_of_tensors(latch_grad.bmru_backward)
latch_forward = _on_device_of_tensors(latch.latch_forward)
latch_backward = _on_device_of_tensors(latch_grad.latch_backward)
linear_forward = _on_device_of_tensors(linear.linear_forward)
linear_backward = _on_device_of_tensors(linear_grad.linear_backward)
map_pack = _on_device_of_tensors(maps.map_pack)
map_forward = _on_device_of_tensors(maps.map_forward)
map_adjoint = _on_device_of_tensors(maps.map_adjoint)

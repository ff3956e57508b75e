"""The scans on a GPU: the kernels of ``latch*.py``, ``linear*.py`` and ``map*.py``, launched on the tensors' device."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from multistable.ops.triton import latch, latch_grad, linear, linear_grad, maps
from multistable.ops.triton.primitives import NotCompiledError, planning

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


def _launcher(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Make the tensors' GPU current, on which Triton launches, and compile the kernels that are missing."""

    @wraps(scan)
    def launch(*args: Any, **options: Any) -> Any:
        device = next(x for x in args if isinstance(x, Tensor)).device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return compile_and_launch(device, *args, **options)
        with torch.cuda.device(device):
            return compile_and_launch(device, *args, **options)

    def compile_and_launch(device: torch.device, *args: Any, **options: Any) -> Any:
        try:
            return scan(*args, **options)
        except NotCompiledError:  # the first of up to three kernels: at once 2.1 s instead of 2.6 (BMRU)
            from multistable.ops.triton.variants import compile_variants

            with planning() as plan:
                scan(*args, **options)
            compile_variants(plan, device)
        return scan(*args, **options)

    return launch


bmru_forward = _launcher(latch.bmru_forward)
bmru_backward = _launcher(latch_grad.bmru_backward)
latch_forward = _launcher(latch.latch_forward)
latch_backward = _launcher(latch_grad.latch_backward)
linear_forward = _launcher(linear.linear_forward)
linear_backward = _launcher(linear_grad.linear_backward)
map_pack = _launcher(maps.map_pack)
map_forward = _launcher(maps.map_forward)
map_adjoint = _launcher(maps.map_adjoint)

"""Random calls of the operators for ``torch.library.opcheck``: any shape, layout, dtype, direction, absent inputs."""

import random
from typing import Any

import torch
from torch import Tensor

from backends import FAST
from multistable import ops  # noqa: F401  # defines the operators
from nasty import SHAPES

__all__ = ["check", "draw"]

LAYOUTS = ("plain", "plain", "transposed", "expanded", "strided", "offset", "columns")
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


def draw(seed: int) -> tuple[str, list[Any]]:
    """The name of an operator and its arguments, forward or backward."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    name = pick.choice(["bmru_scan", "bmru_layer", "latch_scan", "linear_scan"])
    (B, T, N), dtype = pick.choice([*SHAPES, (2, 5, 3), (4, 9, 6)]), pick.choice(DTYPES)
    reverse, backend = pick.random() < 0.5, pick.choice(FAST)
    state_dtype = pick.choice([dtype, dtype, torch.float32])
    pairs, time_major, width = False, False, N

    def tensor(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return in_layout(pick.choice(LAYOUTS), torch.randn(shape).to(dtype))

    if name == "bmru_scan":
        inputs = [tensor(B, T, N), tensor(B, T, N), tensor(N, dtype=state_dtype)]
        options = [pick.choice([0.0, 1.0, 3.5]), reverse]
    elif name == "bmru_layer":
        time_major = pick.random() < 0.5
        inputs = [tensor(*((T, B) if time_major else (B, T)), 2 * N), tensor(N, dtype=state_dtype)]
        options = [1.0, reverse, time_major]
    elif name == "latch_scan":
        write = torch.rand(B, T, N) < 0.4
        write = write if pick.random() < 0.5 else write.to(dtype)
        inputs, options = [in_layout(pick.choice(LAYOUTS), write), tensor(B, T, N)], [reverse]
    else:
        pairs = pick.random() < 0.5
        width = 2 * N if pairs else N
        constant = pick.random() < 0.5
        a = tensor(width, dtype=state_dtype) if constant else tensor(B, T, width)
        inputs, options = [a / 4, tensor(B, T, width)], [pairs, reverse]  # larger ones overflow float16
    h0 = tensor(B, width, dtype=state_dtype) if pick.random() < 0.6 else None
    reset = in_layout(pick.choice(LAYOUTS), torch.rand(B, T) < 0.3) if pick.random() < 0.5 else None
    arguments = [*inputs, h0, reset, *options, backend]
    if pick.random() < 0.5:
        return name, [x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]
    h, h_last = getattr(torch.ops.multistable, name)(*arguments)
    grads = [tensor(*x.shape) if pick.random() < 0.8 else None for x in (h, h_last)]
    kept = inputs if name != "linear_scan" else inputs[:1]
    return f"{name}_backward", [*grads, *kept, h0, reset, h, *options, backend]


def in_layout(layout: str, x: Tensor) -> Tensor:
    """The same shape and, unless expanded, the same numbers in another layout."""
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "columns":
        return x.transpose(-1, 0).contiguous().transpose(-1, 0)
    if layout == "expanded" and x.ndim > 1 and x.shape[0]:
        return x[:1].expand_as(x)
    if layout == "expanded" and x.ndim > 1:
        return x.new_zeros(1, *x.shape[1:]).expand_as(x)
    if layout == "strided":
        return torch.stack([x, x], dim=-1)[..., 0]
    if layout == "offset":
        return torch.cat([x.flatten()[:1], x.flatten()])[min(1, x.numel()) :].view(x.shape)
    return x


def check(seed: int, **options: Any) -> None:
    """opcheck of one random call."""
    name, arguments = draw(seed)
    torch.library.opcheck(getattr(torch.ops.multistable, name).default, arguments, **options)

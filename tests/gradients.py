"""Gradients, by argument name, of a randomly weighted sum of the outputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["gradients", "weights_like"]


def weights_like(x: Tensor, seed: int = 1) -> Tensor:
    """Random cotangents, the same for every backend, rounded to bfloat16 so that they are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    real = torch.randn(x.shape, generator=generator).bfloat16().double()
    if x.is_complex():
        real = torch.complex(real, torch.randn(x.shape, generator=generator).double())
    return real.to(x.dtype)


def gradients(
    scan: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: dict[str, Any],
    names: list[str],
    through: tuple[int, ...] = (0,),
) -> dict[str, Tensor]:
    """Gradients of the named inputs through the chosen outputs. Raise if an input has no gradient."""
    leaves = {name: inputs[name].detach().clone().requires_grad_() for name in names}
    # A clone is contiguous. Scans that test a layout restore it with views, and the gradient must pass through them.
    outputs = scan(**(inputs | leaves))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    chosen = [outputs[i] for i in through]
    found = torch.autograd.grad(
        chosen, list(leaves.values()), [weights_like(x, seed=i) for i, x in enumerate(chosen, 1)]
    )
    for (name, leaf), grad in zip(leaves.items(), found, strict=True):
        assert grad.dtype == leaf.dtype, f"gradient of {name}: {grad.dtype}"
        assert grad.shape == leaf.shape, f"gradient of {name}: {list(grad.shape)}"
    return dict(zip(names, found, strict=True))

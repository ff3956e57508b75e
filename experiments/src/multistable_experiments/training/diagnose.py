"""Find where NaN or infinity came from: the first layer whose output is not finite."""

import torch
from torch import Tensor, nn

__all__ = ["first_bad_layer"]


@torch.no_grad()
def first_bad_layer(model: nn.Module, x: Tensor) -> str:
    """Describe the first bad layer in one sentence, in the order in which layers finish: parts before the whole."""
    if not finite(x):
        return "the input of the model is not finite"
    causes: list[str] = []

    def check(name: str):
        def hook(module: nn.Module, inputs: tuple, output: object) -> None:
            if not causes and not finite(output):
                weights = [key for key, value in module.named_parameters() if not finite(value)]
                cause = f", whose parameters {', '.join(weights)} are not finite" if weights else ""
                causes.append(f"first in the layer {name} ({type(module).__name__}){cause}")

        return hook

    handles = [module.register_forward_hook(check(name)) for name, module in model.named_modules() if name]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return causes[0] if causes else "all layers are finite: it appeared in the loss"


def finite(value: object) -> bool:
    """Return True if all tensors in a (nested) tuple, list or dictionary are finite."""
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex()) or bool(value.isfinite().all())
    if isinstance(value, dict):
        value = list(value.values())
    return all(map(finite, value)) if isinstance(value, list | tuple) else True

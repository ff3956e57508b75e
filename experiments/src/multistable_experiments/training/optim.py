"""The optimiser: AdamW with two weight decays, its state allocated from the start."""

import torch
from torch import Tensor, nn

from multistable.layers import BMRU
from multistable.models import SequenceModel
from multistable.models.block import ReadOut
from multistable_experiments.training.run import Decay

__all__ = ["bmru_parameters", "build_optimizer", "decay_groups", "set_rate"]


def bmru_parameters(model: SequenceModel) -> list[nn.Parameter]:
    """The parameters that get the paper's weight decay for BMRU: projections, alpha, and its part of read-outs."""
    parameters: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, BMRU):
            parameters += module.parameters()
        if isinstance(module, ReadOut):
            parameters += [weight for name, weight in module.named_parameters() if name == "bmru"]
    return parameters


def decay_groups(model: SequenceModel, decay: Decay) -> list[dict]:
    """Groups of parameters with one weight decay each."""
    bmru = {id(parameter) for parameter in bmru_parameters(model)}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if id(parameter) in bmru:
            strength = decay.bmru
        elif decay.reading == "usual" and parameter.ndim < 2:
            strength = 0.0
        else:
            strength = decay.other
        groups.setdefault(strength, []).append(parameter)
    return [{"params": parameters, "weight_decay": strength} for strength, parameters in groups.items()]


def build_optimizer(model: SequenceModel, decay: Decay) -> torch.optim.AdamW:
    """AdamW with a tensor as learning rate, and with its state allocated before the first step.

    Both allow a CUDA graph of the whole step, and every checkpoint has the same entries. The fused kernel also takes
    ``found_inf``, with which a step whose loss is not finite changes nothing.
    """
    device = next(model.parameters()).device
    rate = torch.zeros((), device=device)
    optimizer = torch.optim.AdamW(decay_groups(model, decay), lr=rate, fused=True, capturable=device.type == "cuda")
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


def optimizer_tensors(model: SequenceModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The live tensors of the optimiser's state, by ``parameter.entry``."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }

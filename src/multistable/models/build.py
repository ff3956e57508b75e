"""Build models: the only place where the numbers and names of a configuration become modules."""

import dataclasses
import inspect
import math

import torch
from torch import Tensor, nn

from multistable.layers import BMRU, Recurrent, find_layer
from multistable.models.block import Block, ReadOut
from multistable.models.config import ModelConfig, PositionConfig
from multistable.models.norm import BatchNorm, LayerNorm
from multistable.models.position import PositionEncoding
from multistable.models.sequence import Head, SequenceModel

__all__ = ["build_linear", "build_model", "init_unit"]


def build_model(config: ModelConfig) -> SequenceModel:
    """Build and initialise the model that ``config`` describes.

    >>> import torch
    >>> model = build_model(ModelConfig(cells=("lru", "bmru"), d_input=2, d_output=1, d_model=8, d_state=8))
    >>> y, state = model(torch.randn(4, 20, 2))
    >>> y.shape
    torch.Size([4, 1])
    """
    H, p = config.d_model, config.position
    model = SequenceModel(
        encoder=build_linear(config.d_input, H, config.initial),
        blocks=[build_block(name, config) for name in config.cells],
        head=build_head(config),
        position=None if p is None else build_position(p),
        config=config,
    )
    if p is not None and p.tuning > 0:
        tune(model, p)
    return model


def build_head(config: ModelConfig) -> Head:
    H = config.d_model
    fc1, fc2 = build_linear(H, H, config.initial), build_linear(H, config.d_output, config.initial)
    return Head(fc1, fc2, LayerNorm(H) if config.norm_out else None)


def build_position(config: PositionConfig) -> PositionEncoding:
    last = config.T - 1 if config.held and config.T is not None else None
    return PositionEncoding(config.dim, config.shortest, config.longest_wavelength, config.scale, last)


def build_block(name: str, config: ModelConfig) -> Block:
    """A block of width H around the layer of this name."""
    H, cell = config.d_model, build_layer(name, config)
    variance = 1 if config.initial == "unit" else 1 / 3
    out_proj = ReadOut(cell.parts, 2 if config.bidirectional else 1, H, variance)
    return Block(BatchNorm(H), cell, out_proj, build_linear(H, 2 * H, config.initial), config.dropout)


def build_linear(D: int, H: int, initial: str = "unit", bias: bool = True) -> nn.Linear:
    """A linear map; with ``initial="unit"`` its output has the variance of its input.

    torch's own initialisation leaves a third of the variance, and a 27th after three maps. With it a model of one block
    stayed at chance on Pathfinder's easy images; with ``"unit"`` and a slower start it learns them within two epochs
    (docs/log.md).
    """
    layer = nn.Linear(D, H, bias=bias)
    if initial == "unit":
        init_unit(layer)
    return layer


def init_unit(layer: nn.Linear) -> None:
    """Draw uniform weights of variance ``1 / in_features``."""
    bound = math.sqrt(3 / layer.in_features)
    nn.init.uniform_(layer.weight, -bound, bound)


def tune(model: SequenceModel, position: PositionConfig) -> None:
    """Tune each BMRU unit of each direction to a timestep of its own, drawn by :func:`spread`."""
    assert model.position is not None
    assert position.T is not None
    for bmru in model.modules():
        if isinstance(bmru, BMRU):
            steps = torch.stack([spread(bmru.hidden_size, position.T) for _ in bmru.directions])
            # The encoding's values are scale * sine, so this gain makes the threshold tuning * sum(1 - cosine).
            bmru.tune(model.position(steps, torch.float32), position.tuning / position.scale**2)


def spread(N: int, T: int) -> Tensor:
    """``[N]`` timesteps from 0 to T - 1 in increasing order, a random one from each stretch of T / N steps."""
    # Not in torch's default dtype: bfloat16 cannot tell 255 from 255.5. float32 may still round the last one up to T.
    return ((torch.arange(N) + torch.rand(N, dtype=torch.float32)) * (T / N)).long().clamp(max=T - 1)


def build_layer(name: str, config: ModelConfig) -> Recurrent:
    """A recurrent layer that reads ``H`` features, followed by the position encoding if it takes one.

    It gets those options of the configuration that its constructor has.
    """
    kind, options = find_layer(name)
    position = config.position
    P = position.dim if position is not None and (position.everywhere or kind.takes_position) else 0
    available = {
        "alpha_surr": config.alpha_surr,
        "beta_bias": config.beta_bias,
        "start": config.start,
        "thresholds": "paper",
        "position_size": 0 if position is None or position.everywhere else P,  # read by the BMRU of a hybrid only
        **dataclasses.asdict(config.lru),
    }
    options |= {key: value for key, value in available.items() if key in inspect.signature(kind).parameters}
    options |= {"input_size": config.d_model + P, **kind.size_options(config.d_state)}
    return kind(batch_first=True, bidirectional=config.bidirectional, **options)

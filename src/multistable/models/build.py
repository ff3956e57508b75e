"""From numbers and names to modules."""

import dataclasses
import inspect
import math

import torch
from torch import Tensor, nn

from multistable.layers import BMRU, Recurrent, find_layer
from multistable.models.block import Block, ReadOut
from multistable.models.config import ModelConfig, PositionConfig
from multistable.models.norm import BatchNorm
from multistable.models.position import PositionEncoding
from multistable.models.sequence import Head, SequenceModel

__all__ = ["build_model"]


def build_model(config: ModelConfig) -> SequenceModel:
    """The model that ``config`` describes, freshly initialised.

    >>> import torch
    >>> model = build_model(ModelConfig(cells=("lru", "bmru"), d_input=2, d_output=1, d_model=8, d_state=8))
    >>> y, state = model(torch.randn(4, 20, 2))
    >>> y.shape
    torch.Size([4, 1])
    """
    H = config.d_model
    position = config.position
    encoding = None
    if position is not None:
        encoding = PositionEncoding(position.dim, position.shortest, position.longest_wavelength, position.scale)
    model = SequenceModel(
        encoder=build_linear(config.d_input, H, config),
        blocks=[build_block(name, config) for name in config.cells],
        head=Head(build_linear(H, H, config), build_linear(H, config.d_output, config)),
        position=encoding,
        config=config,
    )
    if position is not None and encoding is not None and position.tuning > 0:
        for module in model.modules():
            if isinstance(module, BMRU):
                tune(module, encoding, position)
    return model


def build_block(name: str, config: ModelConfig) -> Block:
    H = config.d_model
    cell = build_cell(name, config)
    variance = 1 if config.initial == "unit" else 1 / 3
    out_proj = ReadOut(cell.parts, 2 if config.bidirectional else 1, H, variance)
    return Block(BatchNorm(H), cell, out_proj, build_linear(H, 2 * H, config), config.dropout)


def build_linear(D: int, H: int, config: ModelConfig) -> nn.Linear:
    """A linear map; with ``initial="unit"`` what comes out has the variance of what goes in.

    torch's own initialisation leaves a third of it, and a 27th behind three maps. With that, a model of one block
    stayed at chance on Pathfinder's easy images; with ``"unit"`` and a slower start it learns them within two epochs
    (docs/log.md).
    """
    layer = nn.Linear(D, H)
    if config.initial == "unit":
        nn.init.uniform_(layer.weight, -math.sqrt(3 / D), math.sqrt(3 / D))
    return layer


def tune(cell: BMRU, encoding: PositionEncoding, position: PositionConfig) -> None:
    """Give each unit a timestep of its own: in each direction a random one of each stretch of T / N steps."""
    assert position.T is not None
    steps = torch.stack([spread(cell.hidden_size, position.T) for _ in cell.directions])
    # The encoding's values are scale * sine, so this gain makes the threshold tuning * sum(1 - cosine).
    cell.tune(encoding(steps, torch.float32), position.tuning / position.scale**2)


def spread(N: int, T: int) -> Tensor:
    """``[N]``, timesteps from 0 to T - 1 in increasing order: a random one of each stretch of T / N."""
    # Not in torch's default dtype: bfloat16 does not tell 255 from 255.5. Float32 may still round the last one up to T.
    return ((torch.arange(N) + torch.rand(N, dtype=torch.float32)) * (T / N)).long().clamp(max=T - 1)


def build_cell(name: str, config: ModelConfig) -> Recurrent:
    """A cell of one layer that reads ``H`` features and, behind them, the position if it takes one."""
    kind, options = find_layer(name)
    position = config.position
    P = position.dim if position is not None and (position.everywhere or kind.takes_position) else 0
    apart = 0 if position is None or position.everywhere else P
    offered = {
        "alpha_surr": config.alpha_surr,
        "beta_bias": config.beta_bias,
        "position_size": apart,
        **dataclasses.asdict(config.lru),
    }
    options |= {key: value for key, value in offered.items() if key in inspect.signature(kind).parameters}
    options |= {"input_size": config.d_model + P, "hidden_size": config.d_state}
    return kind(batch_first=True, bidirectional=config.bidirectional, **options)

"""Configurations of models: frozen dataclasses that convert to JSON and back."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from multistable.layers.bmru import Start
from multistable.layers.registry import describe_names, find_layer
from multistable.ops.checks import check_choice, check_sizes

__all__ = ["LRUConfig", "ModelConfig", "PositionConfig"]

Pooling = Literal["last", "mean", "none"]
Initial = Literal["unit", "torch"]


@dataclass(frozen=True)
class LRUConfig:
    """The ring in which the eigenvalues of LRUs start; the defaults are the paper's."""

    r_min: float = 0.0
    r_max: float = 0.99
    theta_max: float = 2 * math.pi


@dataclass(frozen=True)
class PositionConfig:
    """Sinusoids of the timestep: ``dim / 2`` wavelengths in geometric progression, sine and cosine of each."""

    dim: int = 16
    shortest: float = 2.5
    """The shortest wavelength, in steps."""
    longest: float | None = None
    """The longest wavelength, in steps; None for ``2 T``."""
    scale: float = 4.0
    """The amplitude."""
    T: int | None = None
    """The length of the sequences."""
    everywhere: bool = False
    """Whether layers that take no positions by default (the LRU, also that of a hybrid) get them too."""
    tuning: float = 8.0
    """Each BMRU unit is initialised to write at one of the T timesteps only (:meth:`~multistable.BMRU.tune`): its
    threshold is ``tuning * sum(1 - cos(2 pi (t - own) / wavelength))``. This takes enough wavelengths to tell timesteps
    apart: at T = 784 the lowest threshold at another timestep is 19 with ``dim`` 16, 2.5 with 8 and 0.002 with 4, where
    candidates are about 0.6. With 0, units are initialised as without positions."""
    held: bool = True
    """Whether steps after the first T, if it is given, have the encoding of step T - 1, the last of the training. A
    BMRU trained on 2,000 steps keeps its 97 % over a million more; if positions go on, two seeds have 87 and 74 %
    (docs/results.md)."""

    def __post_init__(self) -> None:
        check_sizes(2, dim=self.dim)
        if self.dim % 2:
            raise ValueError(f"dim must be even (a sine and a cosine per wavelength), got {self.dim!r}")
        if self.T is not None:
            check_sizes(1, T=self.T)
        if self.longest is None and self.T is None:
            raise ValueError("PositionConfig needs T (the length of the sequences) or longest, got neither")
        if not 0 < self.shortest < self.longest_wavelength:
            raise ValueError(f"shortest must lie between 0 and {self.longest_wavelength} steps, got {self.shortest!r}")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale!r}")
        if not self.tuning >= 0:
            raise ValueError(f"tuning must not be negative, got {self.tuning!r}")
        if self.tuning > 0 and self.T is None:
            raise ValueError("PositionConfig needs T, the timesteps that BMRU units get, unless tuning is 0, got None")

    @property
    def longest_wavelength(self) -> float:
        """``longest``, or ``2 T`` where that is None."""
        return 2.0 * (self.T or 0) if self.longest is None else self.longest


@dataclass(frozen=True)
class ModelConfig:
    """A :class:`~multistable.SequenceModel`: one layer per block, sizes, and the paper's defaults for the rest."""

    cells: tuple[str, ...]
    """Names of layers, one per block: see :mod:`multistable.layers.registry`."""
    d_input: int
    d_output: int
    d_model: int = 256
    """H, the width between blocks."""
    d_state: int = 256
    """N, the units of a layer, per direction, as the paper counts them: an LRU has 2N numbers, a hybrid 3N / 2."""
    bidirectional: bool = False
    pooling: Pooling = "last"
    position: PositionConfig | None = None
    """The position encoding for the layers that take one; None for no encoding."""
    alpha_surr: float = 1.0
    """Sharpness of the surrogate derivative (:mod:`multistable.surrogate`)."""
    beta_bias: float = 0.0
    """Added to the initial bias of the BMRU's thresholds, except where positions set it."""
    start: Start = "zero"
    """The state of BMRU units before the first step of a sequence: zero, or on the upper branch, ``+alpha``."""
    initial: Initial = "unit"
    """Initialisation of the linear maps between the layers. ``"unit"`` draws weights of variance 1 / (number of
    inputs), which preserves the variance of the signal; ``"torch"`` is that of ``torch.nn.Linear``, a third of it."""
    lru: LRUConfig = LRUConfig()
    dropout: float = 0.0
    """Applied to the output of each block's GLU."""
    norm_out: bool = False
    """Whether a layer norm stands between the last block and the head, which the paper does not have. With it the head
    of six blocks stays alive at a rate of 1e-3, though not at 4e-3 (docs/log.md)."""

    def __post_init__(self) -> None:
        given = vars(self)  # a field may come from JSON and have another type than its annotation says
        if isinstance(given["cells"], str):
            raise ValueError(f"cells must be a tuple of names, one per block, got the string {self.cells!r}")
        object.__setattr__(self, "cells", tuple(self.cells))
        if not self.cells:
            raise ValueError(f"cells must be {describe_names()}, one per block, got none")
        for name in self.cells:
            find_layer(name)  # raises for an unknown name
        check_sizes(1, d_input=self.d_input, d_output=self.d_output, d_model=self.d_model, d_state=self.d_state)
        check_choice("pooling", self.pooling, get_args(Pooling))
        check_choice("start", self.start, get_args(Start))
        check_choice("initial", self.initial, get_args(Initial))
        if not isinstance(given["position"], PositionConfig | None):
            raise ValueError(f"position must be a PositionConfig or None, got {self.position!r}")
        if not isinstance(given["lru"], LRUConfig):
            raise ValueError(f"lru must be an LRUConfig, got {self.lru!r}")
        if not isinstance(given["dropout"], int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a probability below 1, got {self.dropout!r}")

    @property
    def has_bmru(self) -> bool:
        """True if the model has BMRU units, alone or in a hybrid."""
        return not {"bmru", "hybrid"}.isdisjoint(self.cells)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types: ``ModelConfig.from_dict(json.loads(json.dumps(c.to_dict()))) == c``."""
        return dataclasses.asdict(self) | {"cells": list(self.cells)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        """The inverse of :meth:`to_dict`. Missing fields take their defaults; unknown fields raise. Models saved before
        ``held`` existed keep their behaviour: their positions continue."""
        values = dict(values)
        for name, inner, before in (("position", PositionConfig, {"held": False}), ("lru", LRUConfig, {})):
            if isinstance(values.get(name), dict):
                values[name] = _from_fields(inner, before | values[name])
        return _from_fields(cls, values)


def _from_fields(cls: type, values: dict[str, Any]) -> Any:
    """``cls(**values)``, with a ValueError for names and types that do not fit."""
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(
            f"{cls.__name__} cannot be made from the fields {', '.join(values) or 'none'}: {error}"
        ) from error

"""What a model is made of, as numbers and names: frozen, and the same in JSON."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from multistable.layers.registry import describe_names, find_layer
from multistable.ops.checks import check_sizes

__all__ = ["LRUConfig", "ModelConfig", "PositionConfig"]

POOLINGS = ("last", "mean", "none")
INITIALS = ("unit", "torch")


@dataclass(frozen=True)
class LRUConfig:
    """The ring in which the eigenvalues of LRU cells start (the paper's values)."""

    r_min: float = 0.0
    r_max: float = 0.99
    theta_max: float = 2 * math.pi


@dataclass(frozen=True)
class PositionConfig:
    """Sinusoids of the timestep: ``dim / 2`` wavelengths, geometric from ``shortest`` to ``longest`` steps, sine and
    cosine of each, times ``scale``. ``longest`` is ``2 T`` unless given, with ``T`` the length of the sequences."""

    dim: int = 16
    shortest: float = 2.5
    longest: float | None = None
    scale: float = 4.0
    T: int | None = None
    everywhere: bool = False
    """Whether cells that take no positions by themselves (the LRU, also that of a hybrid) get them, too."""
    tuning: float = 8.0
    """Each BMRU unit starts with one of the T timesteps as its own, at which alone it writes
    (:meth:`~multistable.BMRU.tune`): its threshold is ``tuning * sum(1 - cos(2 pi (t - own) / wavelength))``. It needs
    enough wavelengths to tell timesteps apart: at T = 784 the least threshold elsewhere is 19 with ``dim`` 16, 2.5 with
    8 and 0.002 with 4, where candidates are about 0.6. With 0, units start as they do without positions."""

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"dim must be even and positive (a sine and a cosine per wavelength), got {self.dim!r}")
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
            raise ValueError(
                "PositionConfig needs T, the timesteps that BMRU units get as their own, unless tuning is 0"
            )

    @property
    def longest_wavelength(self) -> float:
        return 2.0 * (self.T or 0) if self.longest is None else self.longest


@dataclass(frozen=True)
class ModelConfig:
    """A :class:`~multistable.SequenceModel`: one cell name per block, sizes, and the paper's defaults for the rest."""

    cells: tuple[str, ...]
    """Names, see :mod:`multistable.layers.registry`."""
    d_input: int
    d_output: int
    d_model: int = 256
    """H, the width between blocks."""
    d_state: int = 256
    """N, the units of a cell, per direction."""
    bidirectional: bool = False
    pooling: Literal["last", "mean", "none"] = "last"
    position: PositionConfig | None = None
    """The encoding handed to the cells that take positions; None for none."""
    alpha_surr: float = 1.0
    beta_bias: float = 0.0
    """Added to the bias of the BMRU's thresholds at the start, where no positions set them."""
    initial: Literal["unit", "torch"] = "unit"
    """How linear maps between the cells start: with weights of variance 1 / (number of inputs), which keep the variance
    of what passes, or as ``torch.nn.Linear`` does, with a third of that."""
    lru: LRUConfig = LRUConfig()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.cells, str):
            raise ValueError(f"cells must be a tuple of names, one per block, got the string {self.cells!r}")
        object.__setattr__(self, "cells", tuple(self.cells))
        if not self.cells:
            raise ValueError(f"cells must be {describe_names()}, one per block, got none")
        for name in self.cells:
            find_layer(name)  # refuses a name that stands for nothing
        check_sizes(1, d_input=self.d_input, d_output=self.d_output, d_model=self.d_model, d_state=self.d_state)
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.initial not in INITIALS:
            raise ValueError(f"initial must be one of {', '.join(INITIALS)}, got {self.initial!r}")
        if self.position is not None and not isinstance(self.position, PositionConfig):
            raise ValueError(f"position must be a PositionConfig or None, got {self.position!r}")
        if not isinstance(self.lru, LRUConfig):
            raise ValueError(f"lru must be an LRUConfig, got {self.lru!r}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a probability below 1, got {self.dropout!r}")

    @property
    def has_bmru(self) -> bool:
        """Whether there are BMRU units in it, those of a hybrid included."""
        return not {"bmru", "hybrid"}.isdisjoint(self.cells)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: ``ModelConfig.from_dict(json.loads(json.dumps(c.to_dict()))) == c``."""
        return dataclasses.asdict(self) | {"cells": list(self.cells)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        """The inverse of :meth:`to_dict`. Fields left out take their defaults, unknown ones are refused."""
        values = dict(values)
        for name, inner in (("position", PositionConfig), ("lru", LRUConfig)):
            if isinstance(values.get(name), dict):
                values[name] = _strict(inner, values[name])
        return _strict(cls, values)


def _strict(cls: type, values: dict[str, Any]) -> Any:
    """``cls(**values)``, with a sentence about names that do not fit."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(fields)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{cls.__name__} needs {', '.join(missing)}, got {', '.join(values) or 'nothing'}")
    return cls(**values)

"""BMRU and LRU side by side: persistent and fading memory in one layer."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers.base import Part, Recurrent
from multistable.layers.bmru import BMRU, Start, Thresholds
from multistable.layers.lru import LRU
from multistable.layers.sequences import Steps
from multistable.ops.steps import is_one_kernel, launch_hybrid

__all__ = ["Hybrid"]

_OPTIONS_OF_PARTS = ("alpha_surr", "beta_bias", "start", "r_min", "r_max", "theta_max", "backend")


def _check_sizes(input_size: int, hidden_size: int, lru_size: object, position_size: object) -> None:
    if hidden_size < 3:
        raise ValueError(f"hidden_size must be at least 3: one bistable and one complex unit, got {hidden_size}")
    if lru_size is not None and (type(lru_size) is not int or lru_size % 2 or not 0 < lru_size < hidden_size):
        raise ValueError(f"lru_size must be even and lie between 0 and hidden_size, got {lru_size!r}")
    if type(position_size) is not int or not 0 <= position_size < input_size:
        raise ValueError(f"position_size must lie between 0 and input_size - 1, got {position_size!r}")


class Hybrid(Recurrent):
    r"""A BMRU and an LRU that read the same input, called like :class:`torch.nn.GRU`.

    State and features are the concatenation of both, ``hidden_size`` numbers. Half of them are bistable units, half
    (rounded down to an even number) are ``lru_size / 2`` complex linear units.

    Args:
        input_size: number of features of the input, ``D``, positions included.
        hidden_size: numbers of both kinds together, at least 3.
        num_layers, bias, batch_first, dropout, bidirectional, backend, device, dtype: as in
            :class:`~multistable.BMRU`; ``bias`` is that of the BMRU, the LRU has none.
        lru_size: how many of the numbers belong to the LRU, two per complex unit. The paper has as many complex units
            as bistable ones: ``lru_size = 2 / 3 * hidden_size``. Default: ``None``, half of them
        position_size: that many of the input's last features are a position encoding, which the BMRU reads and the LRU
            does not. Default: 0
        alpha_surr, beta_bias, thresholds, start: as in :class:`~multistable.BMRU`.
        r_min, r_max, theta_max: as in :class:`~multistable.LRU`.

    Inputs and outputs are those of :class:`~multistable.BMRU` with ``hidden_size`` for ``N``.

    Attributes:
        bmru, lru: the parts, one per layer.

    Example:
        >>> rnn = Hybrid(10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

    parallel = True
    copies_last = True
    takes_position = True
    has_skip = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        lru_size: int | None = None,
        position_size: int = 0,
        alpha_surr: float = 1.0,
        beta_bias: float = 0.0,
        thresholds: Thresholds = "spread",
        start: Start = "zero",
        r_min: float = 0.0,
        r_max: float = 0.99,
        theta_max: float = 2 * math.pi,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        _check_sizes(input_size, hidden_size, lru_size, position_size)
        self.lru_size = lru_size
        self.position_size = position_size
        self.alpha_surr, self.beta_bias, self.thresholds, self.start = alpha_surr, beta_bias, thresholds, start
        self.r_min, self.r_max, self.theta_max = r_min, r_max, theta_max
        common: dict[str, Any] = {"batch_first": batch_first, "bidirectional": bidirectional, "backend": backend}
        common |= {"device": device, "dtype": dtype}
        self.bmru, self.lru = nn.ModuleList(), nn.ModuleList()
        for layer in range(num_layers):
            width = self.width(layer)
            bistable: dict[str, Any] = {"alpha_surr": alpha_surr, "beta_bias": beta_bias, "start": start}
            bistable["thresholds"] = thresholds
            self.bmru.append(BMRU(width, self.parts[0].size, bias=bias, **bistable, **common))
            width = width - position_size if layer == 0 else width
            self.lru.append(LRU(width, self.parts[1].size, r_min=r_min, r_max=r_max, theta_max=theta_max, **common))

    def __setattr__(self, name: str, value: Any) -> None:
        """An option that is changed later is changed in the parts that have it: they read their own at every call."""
        super().__setattr__(name, value)
        if name in _OPTIONS_OF_PARTS and "lru" in self._modules:
            for part in (*self.bmru, *self.lru):
                if hasattr(part, name):
                    setattr(part, name, value)

    @property
    def parts(self) -> tuple[Part, ...]:
        size = max(2, self.hidden_size // 4 * 2) if self.lru_size is None else self.lru_size
        return Part("bmru", self.hidden_size - size), Part("lru", size, pairs=True)

    @staticmethod
    def size_options(units: int) -> dict[str, int]:
        """Half of the units bistable, half of them complex: the paper's division."""
        if units < 2:
            raise ValueError(f"a hybrid must have at least 2 units, one of each kind, got {units}")
        return {"hidden_size": units + units // 2, "lru_size": units // 2 * 2}

    def cells_of(self, layer: int) -> tuple[BMRU, LRU]:
        modules, key = cast(Any, self)._modules, str(layer)  # by index a ModuleList takes 1.3 us
        return modules["bmru"]._modules[key], modules["lru"]._modules[key]

    def parameters_of(self, layer: int, reverse: bool = False) -> list[Any]:
        """Those of the BMRU, then those of the LRU."""
        return [x for part in self.cells_of(layer) for x in part.parameters_of(0, reverse)]

    def init_layer(self, layer: int, reverse: bool) -> None:
        for part in self.cells_of(layer):
            part.init_layer(0, reverse)

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """A state ``[..., hidden_size]`` as that of the BMRU and that of the LRU."""
        N = self.parts[0].size
        return state[..., :N], state[..., N:]

    def start_state(self, layer: int, reverse: bool = False) -> Tensor | None:
        alpha = self.cells_of(layer)[0].start_state(0, reverse)
        return None if alpha is None else torch.cat([alpha, alpha.new_zeros(self.parts[1].size)])

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        bmru, lru = self.cells_of(layer)
        h0_bmru, h0_lru = (None, None) if h0 is None else self.split(h0)
        h_bmru, last_bmru = bmru.scan_layer(x, 0, reverse, h0_bmru, steps)
        h_lru, last_lru = lru.scan_layer(x[..., : lru.input_size], 0, reverse, h0_lru, steps)
        return torch.cat([h_bmru, h_lru], dim=-1), torch.cat([last_bmru, last_lru], dim=-1)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        bmru, lru = self.cells_of(layer)
        read = x if x.shape[-1] == lru.input_size else x[..., : lru.input_size]
        (weight, _, alpha), (matrix, bias, *polar) = bmru.parameters_of(0), lru.parameters_of(0)
        if is_one_kernel(x, weight, alpha, matrix, *polar, h):
            return launch_hybrid(bmru.project(x, 0), alpha, F.linear(read, matrix, bias), polar, h)
        h_bmru, h_lru = self.split(h)
        h = torch.cat([bmru.step_layer(x, 0, h_bmru)[0], lru.step_layer(read, 0, h_lru)[0]], dim=-1)
        return h, h

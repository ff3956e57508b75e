"""The linear recurrent unit (Orvieto et al. 2023) with the interface of ``torch.nn.GRU``."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers import sequences
from multistable.layers.base import Part, Recurrent
from multistable.ops import linear_layer, numerics

__all__ = ["LRU"]


class LRU(Recurrent):
    r"""A multi-layer linear recurrent unit, called like :class:`torch.nn.GRU`.

    For each element of the input sequence, each layer computes the complex state

    .. math::
        \begin{aligned}
            \lambda &= \exp(-\exp(\nu^{\log}) + i \exp(\theta^{\log})) && \text{one number per unit, } |\lambda| < 1 \\
            h_t     &= \lambda \odot h_{t-1} + \exp(\gamma^{\log}) \odot (B x_t)  && \text{state}
        \end{aligned}

    Its memory fades: what a unit holds shrinks by :math:`|\lambda|` at every step. The eigenvalues start uniformly
    distributed on the ring :math:`r_{min} \le |\lambda| \le r_{max}`, with phases up to :math:`\theta_{max}`, and
    :math:`\gamma` at :math:`\sqrt{1 - |\lambda|^2}`, which makes white input give every unit the same variance.

    Complex numbers are stored as pairs, all real parts and then all imaginary parts, so that states and features are
    real ``[..., 2N]`` and half precision works.

    Args:
        input_size: number of features of the input, ``D``.
        hidden_size: number of complex units, ``N``.
        num_layers, batch_first, dropout, bidirectional, backend, device, dtype: as in :class:`~multistable.BMRU`.
        bias: whether to add a complex bias to ``B x``. Default: ``False``, as in the paper
        r_min, r_max: the ring in which the eigenvalues start. Default: 0 and 0.99
        theta_max: the largest phase at the start. Default: :math:`2 \pi`

    Inputs and outputs are those of :class:`~multistable.BMRU` (``reset`` and ``lengths`` included) with ``2N`` for
    ``N``: **output** ``[..., directions * 2N]``, **h_n** ``[num_layers * directions, B, 2N]``.

    Attributes:
        weight_ih_l[k]: ``[2N, D]``: the real part of ``B`` over its imaginary part.
        bias_ih_l[k]: ``[2N]``, if ``bias``.
        log_nu_l[k], log_theta_l[k], log_gamma_l[k]: ``[N]``.
        weight_ih_l[k]_reverse and so on: those of the reverse direction.

    The read-out of the paper, ``Re(C h) + D x``, belongs to the block (:mod:`multistable.models`).

    Example:
        >>> rnn = LRU(10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 40]), torch.Size([1, 3, 40]))
    """

    has_skip = True
    parallel = True
    options: ClassVar[dict[str, Any]] = {"bias": False, "r_min": 0.0, "r_max": 0.99, "theta_max": 2 * math.pi}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
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
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"r_min and r_max must satisfy 0 <= r_min < r_max <= 1, got {r_min!r} and {r_max!r}")
        if not theta_max > 0:
            raise ValueError(f"theta_max must be positive, got {theta_max!r}")
        self.r_min, self.r_max, self.theta_max = r_min, r_max, theta_max
        self.make_layers(device, dtype)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part("lru", 2 * self.hidden_size, pairs=True),)

    def make_layer(self, layer: int, suffix: str, width: int, empty: dict[str, Any]) -> None:
        N = self.hidden_size
        self.register("weight_ih", layer, suffix, (2 * N, width), empty)
        if self.bias:
            self.register("bias_ih", layer, suffix, (2 * N,), empty)
        for name in ("log_nu", "log_theta", "log_gamma"):
            self.register(name, layer, suffix, (N,), empty)

    @torch.no_grad()
    def reset_layer(self, layer: int, suffix: str) -> None:
        weight = self.parameter("weight_ih", layer, suffix)
        nn.init.normal_(weight, std=1 / math.sqrt(2 * weight.shape[1]))
        if self.bias:
            nn.init.zeros_(self.parameter("bias_ih", layer, suffix))
        # Computed in float64 and kept off the ends of the interval, where a logarithm is infinite.
        area, phase = (torch.rand(self.hidden_size, dtype=torch.float64).clamp(1e-6, 1 - 1e-6) for _ in range(2))
        squared = area * (self.r_max**2 - self.r_min**2) + self.r_min**2  # |lambda|^2: uniform on the ring's area
        self.parameter("log_nu", layer, suffix).copy_((-0.5 * squared.log()).log())
        self.parameter("log_theta", layer, suffix).copy_((self.theta_max * phase).log())
        self.parameter("log_gamma", layer, suffix).copy_(0.5 * (1 - squared).log())

    def eigenvalues(self, layer: int = 0, suffix: str = "") -> Tensor:
        """``lambda`` as pairs, ``[2N]``: real parts, then imaginary ones."""
        radius = torch.exp(-torch.exp(self.parameter("log_nu", layer, suffix)))
        theta = torch.exp(self.parameter("log_theta", layer, suffix))
        return torch.cat([radius * torch.cos(theta), radius * torch.sin(theta)])

    def project(self, x: Tensor, layer: int, suffix: str) -> Tensor:
        """``exp(log_gamma) * (B x)`` as pairs; gamma scales the matrix, which is smaller than the sequence."""
        gamma = torch.exp(self.parameter("log_gamma", layer, suffix)).repeat(2)
        bias = self.bias_of(layer, suffix)
        weight = gamma[:, None] * self.parameter("weight_ih", layer, suffix)
        return F.linear(x, weight, None if bias is None else gamma * bias)

    def run(
        self, x: Tensor, layer: int, suffix: str, h0: Tensor | None, steps: sequences.Steps
    ) -> tuple[Tensor, Tensor]:
        lam = self.eigenvalues(layer, suffix)

        def scan(b: Tensor, h0: Tensor | None, *, reset: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
            layout = {"time_major": not self.batch_first, "backend": self.backend}
            return linear_layer(lam, b, h0, pairs=True, reset=reset, reverse=reverse, **layout)

        return sequences.run_padded(scan, self.project(x, layer, suffix), h0, steps, suffix == "_reverse")

    def advance(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        b = self.project(x, layer, "")
        h = (numerics.multiply(self.eigenvalues(layer), h) + b).to(b.dtype)
        return h, h

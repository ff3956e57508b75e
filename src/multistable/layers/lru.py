"""The linear recurrent unit (Orvieto et al. 2023) with the interface of ``torch.nn.GRU``."""

import math
import warnings
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers.base import Part, Recurrent
from multistable.layers.sequences import Steps, scan_linear
from multistable.ops import numerics, pieces
from multistable.ops.checks import check_numbers
from multistable.ops.layer_scans import linear_layer
from multistable.ops.steps import is_one_kernel, launch_lru

__all__ = ["LRU"]


class LRU(Recurrent):
    r"""A multi-layer linear recurrent unit, called like :class:`torch.nn.GRU`.

    For each element of the input sequence, each layer computes the complex state

    .. math::
        \begin{aligned}
            \lambda &= \exp(-\exp(\nu^{\log}) + i \exp(\theta^{\log})) && \text{one number per unit, } |\lambda| < 1 \\
            h_t     &= \lambda \odot h_{t-1} + \exp(\gamma^{\log}) \odot (B x_t)  && \text{state}
        \end{aligned}

    Its memory fades: the state of a unit shrinks by :math:`|\lambda|` at every step. The eigenvalues start uniformly
    distributed on the ring :math:`r_{min} \le |\lambda| \le r_{max}`, with phases up to :math:`\theta_{max}`, and
    :math:`\gamma` at :math:`\sqrt{1 - |\lambda|^2}`, which makes white input give every unit the same variance.

    Complex numbers are stored as pairs, all real parts and then all imaginary parts, so that states and features are
    real and half precision works. As in every layer, ``hidden_size`` counts the numbers of output and state: there are
    ``N = hidden_size / 2`` complex units.

    Args:
        input_size: number of features of the input, ``D``.
        hidden_size: twice the number of complex units, ``2N``; even.
        num_layers, batch_first, dropout, bidirectional, backend, device, dtype: as in :class:`~multistable.BMRU`.
        bias: whether to add a complex bias to ``B x``. Default: ``False``, as in the paper
        r_min, r_max: the ring in which the eigenvalues start. Default: 0 and 0.99
        theta_max: the largest phase at the start. Default: :math:`2 \pi`

    Inputs and outputs are those of :class:`~multistable.BMRU`: **output** ``[..., directions * hidden_size]``, **h_n**
    ``[num_layers * directions, B, hidden_size]``.

    Nothing is nonlinear: several layers on each other are one linear map, and the constructor warns of it.
    :class:`~multistable.Stack` puts a nonlinearity between them.

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
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

    has_skip = True
    parallel = True
    copies_last = True

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
        if hidden_size % 2:
            raise ValueError(
                f"hidden_size of an LRU must be even (a real and an imaginary part per unit), got {hidden_size}"
            )
        if num_layers > 1:
            warnings.warn(
                f"LRU(num_layers={num_layers}) is one linear map: nothing is nonlinear between the layers, as it is in "
                'Stack("lru", ...)',
                stacklevel=2,
            )
        check_numbers(r_min=r_min, r_max=r_max, theta_max=theta_max)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"r_min and r_max must satisfy 0 <= r_min < r_max <= 1, got {r_min!r} and {r_max!r}")
        if not 0 < theta_max < math.inf:
            raise ValueError(f"theta_max must be positive and finite, got {theta_max!r}")
        self.r_min, self.r_max, self.theta_max = r_min, r_max, theta_max
        self.create_parameters(device, dtype)
        cast(Any, self).register_load_state_dict_pre_hook(_explain_size)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part("lru", self.hidden_size, pairs=True),)

    @staticmethod
    def size_options(units: int) -> dict[str, int]:
        return {"hidden_size": 2 * units}

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        N = self.hidden_size // 2
        return {"weight_ih": (2 * N, width), "bias_ih": (2 * N,), "log_nu": (N,), "log_theta": (N,), "log_gamma": (N,)}

    @torch.no_grad()
    def init_layer(self, layer: int, reverse: bool) -> None:
        weight, bias, log_nu, log_theta, log_gamma = self.parameters_of(layer, reverse)
        nn.init.normal_(weight, std=1 / math.sqrt(2 * weight.shape[1]))
        if bias is not None:
            nn.init.zeros_(bias)
        # In float64, which mps lacks, and kept off the ends of the interval, where a logarithm is infinite.
        options: dict[str, Any] = {"dtype": torch.float64, "device": "meta" if log_nu.is_meta else "cpu"}
        area, phase = (torch.rand(len(log_nu), **options).clamp(1e-6, 1 - 1e-6) for _ in range(2))
        squared = area * (self.r_max**2 - self.r_min**2) + self.r_min**2  # |lambda|^2: uniform on the ring's area
        log_nu.copy_((-0.5 * squared.log()).log())
        log_theta.copy_((self.theta_max * phase).log())
        log_gamma.copy_(0.5 * (1 - squared).log())

    def eigenvalues(self, layer: int = 0, reverse: bool = False) -> Tensor:
        """``lambda`` as pairs, ``[hidden_size]``: real parts, then imaginary ones."""
        _, _, log_nu, log_theta, _ = self.parameters_of(layer, reverse)
        radius, theta = torch.exp(-torch.exp(log_nu)), torch.exp(log_theta)
        return torch.cat([radius * torch.cos(theta), radius * torch.sin(theta)])

    def project(self, x: Tensor, layer: int, reverse: bool = False) -> Tensor:
        """``exp(log_gamma) * (B x)`` as pairs; gamma scales the matrix, which is smaller than the sequence."""
        weight, bias, _, _, log_gamma = self.parameters_of(layer, reverse)
        gamma = torch.exp(log_gamma).repeat(2)
        return F.linear(x, gamma[:, None] * weight, None if bias is None else gamma * bias)

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        lam, reset = self.eigenvalues(layer, reverse), steps.reset_of(reverse)
        if steps.valid is not None and pieces.current() is not None:
            return self._scan_piece(lam, x, layer, reverse, h0, steps)
        b, padded = self.project(x, layer, reverse), steps.valid is not None
        turned = reverse and padded  # the valid parts come first, before padding that changes the state
        if turned:
            b, reset = steps.reverse_valid(b), steps.reset_reversed()
        options: dict[str, Any] = {"pairs": True, "time_major": not steps.batch_first, "backend": self.backend}
        h, h_last = linear_layer(lam, b, h0, reset=reset, reverse=reverse and not padded, **options)
        h = steps.reverse_valid(h) if turned else h
        h_last = steps.at_end(steps.swap_layout(h), h0, reverse) if padded else h_last
        return h, steps.at_last_segment(h, h_last, reverse)

    def _scan_piece(
        self, lam: Tensor, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        """A padded piece of a sequence: padding keeps the state, h = 1 * h + 0, for the pieces after it."""
        assert steps.valid is not None
        one = torch.cat([torch.ones_like(lam[: len(lam) // 2]), torch.zeros_like(lam[len(lam) // 2 :])])
        a, b = torch.where(steps.valid, lam, one), torch.where(steps.valid, self.project(x, layer, reverse), 0.0)
        return scan_linear(a, b, h0, steps, reverse, pairs=True, backend=self.backend)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias, *polar = self.parameters_of(layer)
        if is_one_kernel(x, weight, h, *polar):
            return launch_lru(F.linear(x, weight, bias), h, *polar)
        b = self.project(x, layer)
        h = (numerics.multiply(self.eigenvalues(layer), h.to(b.dtype)) + b).to(b.dtype)
        return h, h


def _explain_size(lru: LRU, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    """Explain the shapes of weights that were saved when ``hidden_size`` counted complex units."""
    saved, errors = state_dict.get(f"{prefix}weight_ih_l0"), args[-1]
    if isinstance(saved, Tensor) and len(saved) == 2 * lru.hidden_size:
        errors.append(
            f"{prefix or 'LRU'}: hidden_size counts numbers now, two per complex unit: these weights are those of "
            f"LRU({lru.input_size}, {len(saved)})"
        )

"""The bistable recurrent cells of Vecoven et al. (2021), step by step: :class:`BRC` and :class:`NBRC`."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers import sequences
from multistable.layers.base import Recurrent

__all__ = ["BRC", "NBRC"]


class BRC(Recurrent):
    r"""A multi-layer bistable recurrent cell, called like :class:`torch.nn.GRU`.

    .. math::
        \begin{aligned}
            c_t &= \sigma(U_c x_t + w_c \odot h_{t-1} + b_c)      && \text{update gate} \\
            a_t &= 1 + \tanh(U_a x_t + w_a \odot h_{t-1} + b_a)   && \text{feedback, bistable above 1} \\
            h_t &= c_t \odot h_{t-1} + (1 - c_t) \odot \tanh(U_h x_t + a_t \odot h_{t-1} + b_h)
        \end{aligned}

    The gates look at the state before, so the timesteps cannot be computed in parallel: this is a loop, the unit from
    which the BMRU is derived and a baseline for it.

    Arguments, inputs and outputs are those of :class:`~multistable.BMRU`, without ``alpha_surr`` and ``backend``.

    Attributes:
        weight_ih_l[k]: ``[3N, D]``: ``U_c`` over ``U_a`` over ``U_h``. bias_ih_l[k]: ``[3N]``.
        weight_hh_l[k]: ``[2N]``: ``w_c`` and ``w_a``.

    They start as in the authors' code: Glorot uniform (each matrix apart), zeros, and ones for ``weight_hh``.

    Example:
        >>> rnn = BRC(10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.make_layers(device, dtype)

    @property
    def feedback_shape(self) -> tuple[int, ...]:
        """The shape of ``weight_hh``."""
        return (2 * self.hidden_size,)

    def make_layer(self, layer: int, suffix: str, width: int, empty: dict[str, Any]) -> None:
        self.register("weight_ih", layer, suffix, (3 * self.hidden_size, width), empty)
        if self.bias:
            self.register("bias_ih", layer, suffix, (3 * self.hidden_size,), empty)
        self.register("weight_hh", layer, suffix, self.feedback_shape, empty)

    def reset_layer(self, layer: int, suffix: str) -> None:
        for weight in self.parameter("weight_ih", layer, suffix).chunk(3):
            nn.init.xavier_uniform_(weight)
        if self.bias:
            nn.init.zeros_(self.parameter("bias_ih", layer, suffix))
        self.reset_feedback(self.parameter("weight_hh", layer, suffix))

    def reset_feedback(self, weight: Tensor) -> None:
        nn.init.ones_(weight)

    def feedback(self, h: Tensor, weight: Tensor) -> Tensor:
        """What the gates see of the state, ``[..., 2N]``."""
        return weight * torch.cat([h, h], dim=-1)

    def law(self, proj: Tensor, h: Tensor, weight_hh: Tensor) -> Tensor:
        """One timestep: ``proj [..., 3N]`` is ``U x + b``, ``h [..., N]``."""
        gates, inner = proj.split([2 * self.hidden_size, self.hidden_size], dim=-1)
        c, a = (gates + self.feedback(h, weight_hh)).chunk(2, dim=-1)
        c, a = torch.sigmoid(c), 1 + torch.tanh(a)
        return (c * h + (1 - c) * torch.tanh(inner + a * h)).to(proj.dtype)

    def project(self, x: Tensor, layer: int, suffix: str) -> Tensor:
        return F.linear(x, self.parameter("weight_ih", layer, suffix), self.bias_of(layer, suffix))

    def run(
        self, x: Tensor, layer: int, suffix: str, h0: Tensor | None, steps: sequences.Steps
    ) -> tuple[Tensor, Tensor]:
        proj, weight_hh = self.project(x, layer, suffix), self.parameter("weight_hh", layer, suffix)
        h0 = proj.new_zeros(steps.B, self.hidden_size) if h0 is None else h0
        return sequences.run_loop(partial(self.law, weight_hh=weight_hh), proj, h0, steps, suffix == "_reverse")

    def advance(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.law(self.project(x, layer, ""), h, self.parameter("weight_hh", layer, ""))
        return h, h


class NBRC(BRC):
    r"""A multi-layer recurrently neuromodulated bistable recurrent cell: :class:`BRC` with gates that see all units.

    :math:`c_t` and :math:`a_t` use matrices, :math:`W_c h_{t-1}` and :math:`W_a h_{t-1}`, instead of
    :math:`w_c \odot h_{t-1}` and :math:`w_a \odot h_{t-1}`.

    Attributes:
        weight_hh_l[k]: ``[2N, N]``: ``W_c`` over ``W_a``; each starts orthogonal, as in the authors' code.
    """

    @property
    def feedback_shape(self) -> tuple[int, ...]:
        return (2 * self.hidden_size, self.hidden_size)

    def reset_feedback(self, weight: Tensor) -> None:
        for matrix in weight.chunk(2):
            nn.init.orthogonal_(matrix)

    def feedback(self, h: Tensor, weight: Tensor) -> Tensor:
        return F.linear(h, weight)

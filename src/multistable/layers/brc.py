"""The bistable recurrent cells of Vecoven et al. (2021), their fields applied once per step: BRC and NBRC."""

import torch
from torch import Tensor, nn

from multistable.dynamics.fields import brc, nbrc
from multistable.layers.base import init_orthogonal
from multistable.layers.clocked import ClockedRNN
from multistable.ops.border import Border

__all__ = ["BRC", "NBRC"]


class BRC(ClockedRNN):
    r"""A multi-layer bistable recurrent cell, called like :class:`torch.nn.GRU`.

    .. math::
        \begin{aligned}
            c_t &= \sigma(U_c x_t + w_c \odot h_{t-1} + b_c)      && \text{update gate} \\
            a_t &= 1 + \tanh(U_a x_t + w_a \odot h_{t-1} + b_a)   && \text{feedback, bistable above 1} \\
            h_t &= c_t \odot h_{t-1} + (1 - c_t) \odot \tanh(U_h x_t + a_t \odot h_{t-1} + b_h)
        \end{aligned}

    The gates read the previous state, so the timesteps cannot be computed in parallel: this is a loop. The BMRU is
    derived from a simplified form of this unit.

    Arguments are those of :class:`torch.nn.GRU`, inputs and outputs those of :class:`~multistable.BMRU`.

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

    field = brc()

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
        sizes = input_size, hidden_size, num_layers
        super().__init__(self.field, *sizes, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        N = self.hidden_size
        weight_hh = (2 * N, N) if self.field.coupled else (2 * N,)
        return {"weight_ih": (3 * N, width), "bias_ih": (3 * N,), "weight_hh": weight_hh}

    def init_layer(self, layer: int, reverse: bool) -> None:
        weight_ih, bias_ih, weight_hh = self.parameters_of(layer, reverse)
        for weight in weight_ih.chunk(3):
            nn.init.xavier_uniform_(weight)
        if bias_ih is not None:
            nn.init.zeros_(bias_ih)
        for weight in weight_hh.chunk(2):
            (init_orthogonal if self.field.coupled else nn.init.ones_)(weight)

    def arguments(self, proj: Tensor, layer: int, reverse: bool = False) -> list[Tensor]:
        u_c, u_a, u_h = proj.chunk(3, dim=-1)
        w_c, w_a = self.parameters_of(layer, reverse)[2].chunk(2)
        return [u_h, u_a, u_c, w_a, w_c]

    def scan(
        self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None, border: Border | None = None
    ) -> Tensor:
        return self.loop(args, h0, reset)  # constants keep their dtype: under autocast BRC's gates are float32

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        proj = self.project(x, layer)
        h = self.field(h.to(proj.dtype), *self.arguments(proj, layer)).to(proj.dtype)
        return h, h


class NBRC(BRC):
    r"""A multi-layer recurrently neuromodulated bistable recurrent cell: :class:`BRC` with gates that read all units.

    :math:`c_t` and :math:`a_t` use matrices, :math:`W_c h_{t-1}` and :math:`W_a h_{t-1}`, instead of
    :math:`w_c \odot h_{t-1}` and :math:`w_a \odot h_{t-1}`.

    Attributes:
        weight_hh_l[k]: ``[2N, N]``: ``W_c`` over ``W_a``; each starts orthogonal, as in the authors' code.
    """

    field = nbrc()

"""The minimal gated recurrent unit (Feng et al. 2024): a GRU whose gate does not look at the state."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.layers import sequences
from multistable.layers.base import Recurrent, reset_linear
from multistable.ops import linear_layer

__all__ = ["MinGRU"]


class MinGRU(Recurrent):
    r"""A multi-layer minimal GRU, called like :class:`torch.nn.GRU`.

    .. math::
        \begin{aligned}
            z_t         &= \sigma(W_z x_t + b_z)       && \text{update gate} \\
            \tilde h_t  &= W_h x_t + b_h               && \text{candidate} \\
            h_t         &= (1 - z_t) \odot h_{t-1} + z_t \odot \tilde h_t
        \end{aligned}

    Linear in the state, hence a parallel scan. Its memory fades: :math:`z_t > 0`, so every step forgets a little.

    The authors' other variant passes candidates through a positive function :math:`g` so that the scan can run on
    logarithms. The scan here needs none, so candidates may be negative, as in the equations above.

    Arguments, inputs and outputs are those of :class:`~multistable.BMRU`, without ``alpha_surr`` and ``beta_bias``.

    Attributes:
        weight_ih_l[k]: ``[2N, D]``: ``W_z`` over ``W_h``. bias_ih_l[k]: ``[2N]``. Both start as in ``nn.Linear``.

    Example:
        >>> rnn = MinGRU(10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

    parallel = True

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
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        self.make_layers(device, dtype)

    def make_layer(self, layer: int, suffix: str, width: int, empty: dict[str, Any]) -> None:
        self.register("weight_ih", layer, suffix, (2 * self.hidden_size, width), empty)
        if self.bias:
            self.register("bias_ih", layer, suffix, (2 * self.hidden_size,), empty)

    def reset_layer(self, layer: int, suffix: str) -> None:
        reset_linear(self.parameter("weight_ih", layer, suffix), self.bias_of(layer, suffix))

    def coefficients(self, x: Tensor, layer: int, suffix: str) -> tuple[Tensor, Tensor]:
        """``a_t = 1 - z_t`` and ``b_t = z_t * candidate_t`` of the linear recurrence, ``[..., N]`` each."""
        proj = F.linear(x, self.parameter("weight_ih", layer, suffix), self.bias_of(layer, suffix))
        gate, candidate = proj.chunk(2, dim=-1)
        return torch.sigmoid(-gate), torch.sigmoid(gate) * candidate

    def run(
        self, x: Tensor, layer: int, suffix: str, h0: Tensor | None, steps: sequences.Steps
    ) -> tuple[Tensor, Tensor]:
        a, b = self.coefficients(x, layer, suffix)
        if steps.valid is not None:  # padding keeps the state: h = 1 * h + 0
            a, b = torch.where(steps.valid, a, 1.0), torch.where(steps.valid, b, 0.0)
        reverse = suffix == "_reverse"
        layout = {"time_major": not self.batch_first, "backend": self.backend}
        h, h_last = linear_layer(a, b, h0, pairs=False, reset=steps.resets(reverse), reverse=reverse, **layout)
        return h, steps.last_state(h, h_last, reverse)

    def advance(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.coefficients(x, layer, "")
        h = (a * h + b).to(b.dtype)
        return h, h

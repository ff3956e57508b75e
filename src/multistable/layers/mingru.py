"""The minimal gated recurrent unit (Feng et al. 2024): a GRU whose gate does not read the state."""

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.layers.base import Recurrent, init_linear
from multistable.layers.sequences import Steps, scan_linear
from multistable.ops.steps import is_one_kernel, launch_mingru

__all__ = ["MinGRU"]


class MinGRU(Recurrent):
    r"""A multi-layer minimal GRU, called like :class:`torch.nn.GRU`.

    .. math::
        \begin{aligned}
            z_t         &= \sigma(W_z x_t + b_z)       && \text{update gate} \\
            \tilde h_t  &= W_h x_t + b_h               && \text{candidate} \\
            h_t         &= (1 - z_t) \odot h_{t-1} + z_t \odot \tilde h_t
        \end{aligned}

    It is linear in the state, hence a parallel scan. Its memory fades: :math:`z_t > 0`, so every step forgets a little.

    The authors' other variant passes candidates through a positive function :math:`g` so that the scan can run on
    logarithms. This scan does not need that, so candidates may be negative, as in the equations above.

    Arguments are those of :class:`torch.nn.GRU`, and ``backend`` as in :class:`~multistable.BMRU`. Inputs and outputs
    are those of :class:`~multistable.BMRU`.

    Attributes:
        weight_ih_l[k]: ``[2N, D]``: ``W_z`` over ``W_h``. bias_ih_l[k]: ``[2N]``. Both start as in ``nn.Linear``.

    Example:
        >>> rnn = MinGRU(10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

    parallel = True
    copies_last = True

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
        self.create_parameters(device, dtype)

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        return {"weight_ih": (2 * self.hidden_size, width), "bias_ih": (2 * self.hidden_size,)}

    def init_layer(self, layer: int, reverse: bool) -> None:
        init_linear(*self.parameters_of(layer, reverse))

    def coefficients(self, x: Tensor, layer: int, reverse: bool = False) -> tuple[Tensor, Tensor]:
        """``a_t = 1 - z_t`` and ``b_t = z_t * candidate_t`` of the linear recurrence, ``[..., N]`` each."""
        gate, candidate = self.project(x, layer, reverse).chunk(2, dim=-1)
        return torch.sigmoid(-gate), torch.sigmoid(gate) * candidate

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        a, b = self.coefficients(x, layer, reverse)
        if steps.valid is not None:  # padding keeps the state: h = 1 * h + 0
            a, b = torch.where(steps.valid, a, 1.0), torch.where(steps.valid, b, 0.0)
        return scan_linear(a, b, h0, steps, reverse, pairs=False, backend=self.backend)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.parameters_of(layer)
        if is_one_kernel(x, weight, h):
            return launch_mingru(F.linear(x, weight, bias), h)
        a, b = self.coefficients(x, layer)
        h = (a * h.to(b.dtype) + b).to(b.dtype)
        return h, h

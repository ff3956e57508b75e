"""Units that count, with the interface of ``torch.nn.GRU``: :class:`Counter`."""

import torch
from torch import Tensor

from multistable.layers.base import Recurrent, init_linear
from multistable.layers.sequences import Steps, scan_linear
from multistable.ops.checks import check_alpha_surr
from multistable.ops.numerics import wide
from multistable.surrogate import heaviside, sign

__all__ = ["Counter"]


class Counter(Recurrent):
    r"""Units that count up or down when their input is strong enough, called like :class:`torch.nn.GRU`.

    .. math::
        \hat h_t = W_x x_t + b_x, \qquad
        \beta_t = |W_\beta x_t + b_\beta|, \qquad
        h_t = h_{t-1} + H(|\hat h_t| - \beta_t) \odot S(\hat h_t)

    with the gates and surrogate derivatives of a :class:`~multistable.BMRU`. A BMRU's write erases the state, and with
    it the gradient to everything before; here the derivative of :math:`h_t` with respect to :math:`h_{t-1}` is 1 at
    every step, written or not. The idea that a write should let the gradient pass is that of arXiv 2605.11855, whose
    equations were not available; this form is ours.

    States are whole numbers, if :math:`h_0` is, and exact up to :math:`2^{24}`: they are float32 (or float64), also
    under autocast. They grow with the length; ``FSM(..., transitions="count")`` counts within a range.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout: as in :class:`~multistable.BMRU`.
        bidirectional, alpha_surr, backend, device, dtype: as in :class:`~multistable.BMRU`.

    Inputs and outputs are those of :class:`~multistable.BMRU`.

    Attributes:
        weight_ih_l[k]: ``[2N, D]``, ``W_x`` over ``W_beta``. bias_ih_l[k]: ``[2N]``.

    Example:
        >>> rnn = Counter(10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, bool((output == output.round()).all())
        (torch.Size([5, 3, 20]), True)
    """

    parallel = True
    takes_position = True

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
        alpha_surr: float = 1.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        check_alpha_surr(alpha_surr)
        self.alpha_surr = alpha_surr
        self.create_parameters(device, dtype)

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        return {"weight_ih": (2 * self.hidden_size, width), "bias_ih": (2 * self.hidden_size,)}

    def init_layer(self, layer: int, reverse: bool) -> None:
        init_linear(*self.parameters_of(layer, reverse))

    def moves(self, x: Tensor, layer: int, reverse: bool = False) -> Tensor:
        """The change of the count at each step, ``[..., N]``: -1, 0 or +1; NaN if the candidate or threshold is NaN."""
        weight: Tensor = self.parameters_of(layer, reverse)[0]  # the counts of the layer before may be wider than it
        cand, beta = self.project(x.to(weight.dtype), layer, reverse).chunk(2, dim=-1)
        cand, beta = cand.to(wide(cand.dtype)), beta.to(wide(beta.dtype))
        return heaviside(cand.abs() - beta.abs(), self.alpha_surr) * sign(cand, self.alpha_surr)

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        b = self.moves(x, layer, reverse)
        if steps.valid is not None:
            b = torch.where(steps.valid, b, 0.0)
        a = torch.ones(self.hidden_size, dtype=b.dtype, device=b.device)
        return scan_linear(a, b, h0, steps, reverse, pairs=False, backend=self.backend)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        moves = self.moves(x, layer)
        h = h.to(moves.dtype) + moves
        return h, h

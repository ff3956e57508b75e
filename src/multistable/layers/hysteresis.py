"""The exact hysteresis unit that the BMRU approximates: :class:`HysteresisMRU`."""

import torch
from torch import Tensor

from multistable.dynamics.fields import simplified_brc
from multistable.dynamics.hysteresis import check_backend, hysteresis_scan
from multistable.layers.field import FieldLayer
from multistable.ops.border import Border
from multistable.ops.checks import check_gradient

__all__ = ["HysteresisMRU"]


class HysteresisMRU(FieldLayer):
    r"""A multi-layer memory recurrent unit of the hysteresis bifurcation, called like :class:`torch.nn.GRU`.

    For each element of the input sequence, each layer computes the equilibrium

    .. math::
        h_t = \tanh(\hat x_t + (\beta_t + 1) h_t), \qquad
        \hat x_t = W_x x_t + b_x, \quad \beta_t = W_\beta x_t + b_\beta

    to which :math:`h_{t-1}` flows. For :math:`\beta_t > 0` and :math:`|\hat x_t| < x_c(\beta_t)` there are two, and
    the unit stays on its side of the unstable one between them; otherwise there is one, and the past is overwritten.
    So a unit stores one bit forever and reads it together with the present input. The BMRU is this unit with the
    branches flattened to :math:`\pm\alpha` and :math:`x_c(\beta) = \sqrt{\beta (\beta + 1)} - \sinh^{-1}\!\sqrt\beta`
    replaced by :math:`\beta`.

    Nothing is approximated, and all timesteps are computed in parallel: both branches of every step are solved by
    Newton's (Halley's) method from a closed-form start, and the bit is a latch
    (:func:`~multistable.dynamics.hysteresis.hysteresis_scan`). At (32, 1024, 256) in float32 the forward takes 14 to 15
    times as long as that of a BMRU layer, a training step 7 to 8 times (two cores).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend, device, dtype: as in
            :class:`~multistable.BMRU`.
        alpha_surr: sharpness of the surrogate gradient on the choice of branch, that of a BMRU with threshold
            :math:`x_c`; ``None`` for the exact gradient, which cannot teach a unit what to store. Default: 1.0
        max_gain: bound on the implicit gradient :math:`dh/d\hat x`, which is infinite at a fold. Default: 10

    Inputs and outputs are those of :class:`~multistable.BMRU`. ``h_0`` receives the surrogate gradient of its sign, so
    between chunks that are trained one by one the gradient of a kept bit shrinks. Zeros given as ``h_0``, which is what
    :meth:`step` starts from, have the states of no ``h_0`` but another gradient: a zero counts as a bit on the upper
    branch that the first input may keep, and without ``h_0`` there is no bit.

    Attributes:
        weight_ih_l[k]: ``[2N, D]``: ``W_x`` over ``W_beta``. bias_ih_l[k]: ``[2N]``: ``b_x`` and ``b_beta``.

    They start as those of ``nn.Linear``, with 1 added to ``b_beta``, so that units start bistable: for beta <= 0
    nothing is remembered, and the choice has no gradient.

    Example:
        >>> rnn = HysteresisMRU(10, 20, num_layers=2)
        >>> output, h_n = rnn(torch.randn(5, 3, 10), torch.zeros(2, 3, 20))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    parallel = True
    in_turn = False
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
        alpha_surr: float | None = 1.0,
        max_gain: float = 10.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        check_gradient(alpha_surr, max_gain)
        check_backend(backend)
        self.field = simplified_brc()
        self.alpha_surr = alpha_surr
        self.max_gain = max_gain
        self.create_parameters(device, dtype)

    def scan(
        self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None, border: Border | None = None
    ) -> Tensor:
        x, beta = args
        return hysteresis_scan(
            x,
            beta,
            h0,
            reset=reset,
            alpha_surr=self.alpha_surr,
            max_gain=self.max_gain,
            backend=self.backend,
            border=border,
        )

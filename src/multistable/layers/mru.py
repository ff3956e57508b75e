"""The memory recurrent unit of any pointwise field: :class:`MRU`."""

import torch
from torch import Tensor

from multistable.dynamics.branches import branch_scan, check_branches
from multistable.dynamics.fields import Field, Linear, check_field
from multistable.layers.field import FieldLayer
from multistable.ops.border import Border
from multistable.ops.checks import check_gradient, check_sizes

__all__ = ["MRU"]


class MRU(FieldLayer):
    r"""Units that converge at every timestep: purely persistent memory, called like :class:`torch.nn.GRU`.

    .. math::
        h_t = \lim_{n \to \infty} f_c^n(h_{t-1}, x_t), \quad f_c = (1 - c) h + c f,
        \qquad \text{so} \qquad h_t = f(h_t, x_t)

    for every c that is small enough for :math:`f_c` to increase in h; c does not change the equilibria. All equilibria
    of all timesteps are computed at once; an associative scan over maps of branches then gives the branch that each
    unit is on (:mod:`multistable.dynamics.branches`). A unit remembers its branch forever and reads the value that the
    present input gives to it.

    The value has the gradient of the implicit function theorem. It is infinite at a fold, where a branch ends, so its
    gain :math:`1 / (1 - df/dh)` is bounded by ``max_gain``. The choice of the branch has no exact gradient; with
    ``alpha_surr`` the comparison of :math:`h_{t-1}` with each unstable equilibrium receives a surrogate, and so does
    passing the place of a branch that the input has removed, see :func:`~multistable.dynamics.branches.branch_scan`.
    The credit of a kept branch ends at ``h_0``: chunks of a sequence that are trained one by one do not share it.

    A bias beyond the folds of the field keeps a unit on one branch for any input: where the folds are narrower than the
    initial biases of ``nn.Linear``, use ``bias=False`` or smaller biases.

    Equilibria are always computed in float64. For the hysteresis field :class:`~multistable.HysteresisMRU` is the same
    unit and about fifty times faster (a training step at (8, 256, 64) on one core takes 0.02 s instead of 1.0).

    Args:
        field: pointwise, with at most ``max_branches`` stable equilibria.
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`~multistable.BMRU`.
        max_branches: K, at most 16. Default: 2
        alpha_surr: sharpness of the surrogate gradient on the choice; ``None`` for the exact gradient alone. Default: 1
        max_gain: bound on the gain of implicit gradients. Default: 10
        n_grid: cells of the grid on which equilibria are bracketed. Default: 64

    Inputs and outputs are those of :class:`~multistable.BMRU`.

    Example:
        >>> from multistable.dynamics import simplified_brc
        >>> rnn = MRU(simplified_brc(c=0.1), 10, 20)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

    in_turn = False
    takes_position = True

    def __init__(
        self,
        field: Field,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        max_branches: int = 2,
        alpha_surr: float | None = 1.0,
        max_gain: float = 10.0,
        n_grid: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_field(field)
        if field.coupled:
            raise ValueError("field must be pointwise: one that couples its units has no branches unit by unit")
        if isinstance(field, Linear):
            raise ValueError("field must be nonlinear: a linear one has one equilibrium, see ClockedRNN(n_clock=inf)")
        check_gradient(alpha_surr, max_gain)
        check_branches(max_branches)
        check_sizes(1, n_grid=n_grid)
        self.field = field
        self.max_branches = max_branches
        self.alpha_surr = alpha_surr
        self.max_gain = max_gain
        self.n_grid = n_grid
        self.create_parameters(device, dtype)

    def scan(
        self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None, border: Border | None = None
    ) -> Tensor:
        return branch_scan(
            self.field,
            [x.to(args[0].dtype) for x in args],
            h0,
            reset=reset,
            max_branches=self.max_branches,
            alpha_surr=self.alpha_surr,
            max_gain=self.max_gain,
            n_grid=self.n_grid,
            border=border,
        )

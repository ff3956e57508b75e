"""Recurrent units with an internal clock: :class:`ClockedRNN`."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from multistable.dynamics.branches import branch_scan, check_branches
from multistable.dynamics.fields import Field, Linear, check_field
from multistable.layers.field import FieldLayer
from multistable.ops import linear_scan
from multistable.ops.border import Border

__all__ = ["ClockedRNN"]


class ClockedRNN(FieldLayer):
    r"""Units that apply their field :math:`N_c` times within each timestep, called like :class:`torch.nn.GRU`.

    .. math::
        \tilde h[0] = h_{t-1}, \qquad \tilde h[n] = f(\tilde h[n - 1], x_t), \qquad h_t = \tilde h[N_c]

    With ``n_clock = 1`` this is the plain recurrent cell of the field. A finite number is a loop over time and clock,
    differentiated by unrolling. ``math.inf`` takes the limit instead: all equilibria are computed at once and a scan
    chooses the branches, with the exact gradient (:class:`~multistable.MRU` adds a surrogate for the choice). A linear
    field has closed forms for both, in parallel over time.

    Args:
        field: the map to iterate, see :mod:`multistable.dynamics.fields`.
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as in
            :class:`~multistable.BMRU`.
        n_clock: iterations per timestep: a positive integer, one for each unit (a sequence of ``hidden_size``), or
            ``math.inf``. Default: 1
        max_branches: for ``math.inf``, the most stable equilibria the field may have. Default: 2

    Inputs and outputs are those of :class:`~multistable.BMRU`.

    Attributes:
        weight_ih_l[k], bias_ih_l[k]: the drives of the field, one block of N rows each.
        (constants)_l[k]: ``[N]``, under the names the field gives them.

    Example:
        >>> from multistable.dynamics import simplified_brc
        >>> rnn = ClockedRNN(simplified_brc(c=0.5), 10, 20, n_clock=4)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

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
        n_clock: int | float | Sequence[int] = 1,
        max_branches: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        check_field(field)
        check_branches(max_branches)
        self.field = field
        self.max_branches = max_branches
        clocks = list(n_clock) if isinstance(n_clock, Iterable) else [n_clock]
        if clocks != [math.inf] and not all(type(n) is int and n >= 1 for n in clocks):
            raise ValueError(f"n_clock must be positive integers, or math.inf for all units, got {n_clock!r}")
        if len(clocks) not in (1, hidden_size):
            raise ValueError(f"n_clock must be one number or {hidden_size} (one per unit), got {len(clocks)}")
        if field.coupled and clocks == [math.inf]:
            raise ValueError("n_clock must be finite for a field that couples its units: they have no separate limits")
        self.n_clock = clocks[0] if len(clocks) == 1 else tuple(clocks)
        self.create_parameters(device, dtype)

    def scan(
        self, args: list[Tensor], h0: Tensor | None, *, reset: Tensor | None = None, border: Border | None = None
    ) -> Tensor:
        if isinstance(self.field, Linear):
            x, a = args
            n = torch.tensor(self.n_clock, device=x.device) if isinstance(self.n_clock, tuple) else self.n_clock
            kept, gain = self.field.iterated(n, a)  # not in the dtype of x: in bfloat16 a decay of 0.999 is 1
            return linear_scan(kept, (gain * x).to(x.dtype), h0, reset=reset)
        args = [x.to(args[0].dtype) for x in args]
        if self.n_clock == math.inf:
            return branch_scan(self.field, args, h0, reset=reset, max_branches=self.max_branches)
        return self.loop(args, h0, reset)

    def loop(self, args: list[Tensor], h0: Tensor | None, reset: Tensor | None) -> Tensor:
        """States ``[B, T, N]`` step by step, in the dtype of the drives."""
        B, _, N = args[0].shape
        dtype = args[0].dtype
        h = args[0].new_zeros(B, N) if h0 is None else h0.to(dtype)
        count = len(self.field.drives)
        constants = args[count:]
        states: list[Tensor] = []  # `list[Tensor]()` breaks the graph of torch.compile
        # Cut once: the backward of a slice per step would write T gradients of the whole sequence.
        marks = None if reset is None else reset[..., None].unbind(1)  # [B, 1] each
        for t, drives in enumerate(zip(*(x.unbind(1) for x in args[:count]), strict=True)):
            if marks is not None:
                h = torch.where(marks[t], torch.zeros_like(h), h)
            h = self.tick(h, *drives, *constants).to(dtype)
            states.append(h)
        return torch.stack(states, dim=1) if states else args[0]

    def tick(self, h: Tensor, *args: Tensor) -> Tensor:
        """All iterations of one timestep, from ``h [B, N]``."""
        if not isinstance(self.n_clock, tuple):
            for _ in range(int(self.n_clock)):
                h = self.field(h, *args)
            return h
        clocks = torch.tensor(self.n_clock, device=h.device)
        for n in range(int(max(self.n_clock))):
            h = torch.where(n < clocks, self.field(h, *args), h)
        return h

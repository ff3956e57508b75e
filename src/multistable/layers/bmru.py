"""The bistable memory recurrent unit with the interface of ``torch.nn.GRU``: :class:`BMRU` and :class:`BMRUCell`."""

import math
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers.base import Recurrent, changed_arguments, init_linear
from multistable.layers.checks import check_input, check_state
from multistable.layers.sequences import Steps
from multistable.ops import bmru_step, reference
from multistable.ops.checks import check_alpha_surr, check_choice, check_numbers, check_sizes
from multistable.ops.fused_layer import fused_backend, project_and_scan
from multistable.ops.layer_scans import bmru_layer
from multistable.ops.restart import bmru_layer_on_branch
from multistable.ops.steps import is_one_kernel, launch_bmru

__all__ = ["BMRU", "BMRUCell", "Start", "Thresholds"]

Start = Literal["zero", "branch"]
Thresholds = Literal["spread", "paper"]
SPREAD = 2.0
"""What ``thresholds="spread"`` adds to the threshold of the last unit."""


def empty_offset(
    N: int, bias: bool, thresholds: Thresholds, device: torch.device | str | None, dtype: torch.dtype | None
) -> Tensor | None:
    """Memory for what is added to the bias of candidates and thresholds, ``[2N]``; None for nothing."""
    return torch.empty(2 * N, device=device, dtype=dtype) if bias and thresholds == "spread" else None


@torch.no_grad()
def init_projection(
    weight: Tensor, bias: Tensor | None, alpha: Tensor, offset: Tensor | None, beta_bias: float
) -> None:
    """Initialise the projection like ``nn.Linear`` and alpha with 1. ``beta_bias`` is added to the thresholds: in the
    offset, which spreads them, or in the bias if there is none."""
    init_linear(weight, bias)
    nn.init.ones_(alpha)
    N = len(alpha)
    if offset is not None:
        offset[:N] = 0
        offset[N:] = beta_bias + torch.linspace(0, SPREAD, N, device="cpu").to(offset)
    elif bias is not None:
        bias[N:] += beta_bias


def check_options(alpha_surr: float, beta_bias: float, bias: bool, thresholds: str, start: str) -> None:
    """Raise for an option of BMRU or BMRUCell that has a wrong value."""
    check_alpha_surr(alpha_surr)
    check_choice("thresholds", thresholds, get_args(Thresholds))
    check_choice("start", start, get_args(Start))
    check_numbers(beta_bias=beta_bias)
    if not math.isfinite(beta_bias):
        raise ValueError(f"beta_bias must be finite, got {beta_bias!r}")
    if beta_bias != 0 and not bias:
        raise ValueError(f"beta_bias must be 0 for units without a bias, got {beta_bias!r}")


class BMRU(Recurrent):
    r"""A multi-layer bistable memory recurrent unit, called like :class:`torch.nn.GRU`.

    For each element of the input sequence, each layer computes

    .. math::
        \begin{aligned}
            \hat h_t &= W_x x_t + b_x                   && \text{candidate} \\
            \beta_t  &= |W_\beta x_t + b_\beta + c|     && \text{half-width of the bistable region} \\
            z_t      &= H(|\hat h_t| - \beta_t)         && \text{write gate, 0 or 1} \\
            h_t      &= z_t \odot S(\hat h_t) \odot \alpha + (1 - z_t) \odot h_{t-1} && \text{state}
        \end{aligned}

    where :math:`H` is the Heaviside function with :math:`H(0) = 1`, :math:`S` the sign function with
    :math:`S(0) = 1`, and :math:`\odot` the Hadamard product. A unit either takes one of its two stable values
    :math:`\pm\alpha` or keeps its state *unchanged, forever*: nothing decays, and the gradient through a kept state is
    exactly 1. No gate depends on the previous state, so all timesteps are computed in parallel. Backward, the
    derivative of :math:`H(x)` is replaced by :math:`1 / (1 + (\alpha_{surr} \pi x)^2)`, that of :math:`S` by twice it.

    In a multi-layer BMRU the input of layer :math:`l \ge 2` is the state of the layer before, times dropout.

    Args:
        input_size: number of features of the input, ``D``.
        hidden_size: number of units, ``N``.
        num_layers: layers stacked on each other. Default: 1
        bias: whether the layers use ``b_x`` and ``b_beta``. Default: ``True``
        batch_first: input and output are ``[B, T, D]`` instead of ``[T, B, D]``. Default: ``False``
        dropout: probability of dropout on the output of each layer but the last. Default: 0
        bidirectional: add a second set of units that reads the sequence backwards. Default: ``False``
        alpha_surr: sharpness of the surrogate derivative; 0 is the straight-through estimator. Default: 1.0
        thresholds: ``"spread"`` adds a constant ``c`` to the thresholds, from 0 for the first unit to 2 for the last.
            At the beginning the first ones write at every other timestep and the last ones hold, as an LSTM does with
            its forget bias: a compromise over six tasks (docs/defaults.md). ``c`` is a buffer, so that code that sets
            all biases to zero leaves it alone. ``"paper"`` is the paper's equation, ``c = 0``, as is ``bias=False``.
            Default: ``"spread"``
        beta_bias: added to all thresholds: to ``c``, or, with ``"paper"``, to the random initial value of ``b_beta``.
            With more than the usual size of candidates (about 0.6 for inputs of variance 1) every unit starts by
            holding. On copy-first-input, 4 divided the error of ``"paper"`` by five; on sequences a hundred times as
            long the error was 0.004 and 0.017 with two seeds instead of 0.14 and 0.05 (docs/log.md). Default: 0.0
        start: the state before the first step of a sequence, to which ``reset`` returns. ``"zero"`` lies between the
            two stable states, so that a unit that was never written is recognisable. ``"branch"`` is
            :math:`\alpha \odot S(0) = +\alpha`, a stable state, as the paper's derivation assumes; it has a gradient
            with respect to :math:`\alpha`. An explicit ``h_0`` is used as it is. Default: ``"zero"``
        backend: which backend computes the scan, see :func:`multistable.ops.explain`. Default: ``"auto"``
        device, dtype: of the parameters.

    Inputs: input, h_0, reset, lengths, mask
        * **input**: ``[T, D]``, ``[T, B, D]``, ``[B, T, D]`` if ``batch_first``, or a
          :class:`~torch.nn.utils.rnn.PackedSequence`.
        * **h_0** (argument ``hx``): ``[num_layers * directions, B, N]``, without B for unbatched input. Default:
          ``start``.
        * **reset** (keyword): booleans in the layout of the input, ``[T]``, ``[T, B]`` or ``[B, T]``. The state is that
          of ``start``, zero by default, just before a marked step. A mark starts a segment, so the reverse direction
          starts anew at each segment's end.
        * **lengths** (keyword): ``[B]``, the number of valid steps of each right-padded sequence. Padding is
          ignored: output there is zero, and ``h_n`` is that of the sequence alone. For left padding, mark the
          first valid step with ``reset``.
        * **mask** (keyword): booleans, ``[T, B]`` or ``[B, T]``, true at the valid steps of right-padded sequences: for
          callers such as TorchRL's ``GRUModule``, in place of ``lengths``.

    Outputs: output, h_n
        * **output**: the states of the last layer in the layout of the input, ``[..., directions * N]``.
        * **h_n**: the last state of each layer and direction, shaped like ``h_0``. With ``reset`` it is that of the
          last segment, in both directions.

    Attributes:
        weight_ih_l[k]: ``[2N, D]`` (``[2N, directions * N]`` for k > 0): ``W_x`` over ``W_beta`` of layer k.
        bias_ih_l[k]: ``[2N]``: ``b_x`` and ``b_beta``.
        alpha_l[k]: ``[N]``: the level of the stable states.
        offset_l[k]: ``[2N]``, a buffer: zeros, then ``c``; None with ``thresholds="paper"``.
        weight_ih_l[k]_reverse, bias_ih_l[k]_reverse, alpha_l[k]_reverse: those of the reverse direction.

    Where the paper is silent: weights and biases start as those of ``nn.Linear`` (uniform in
    :math:`\pm 1/\sqrt{D}`), ``alpha`` at 1, ``h_0`` at 0 (``start``).

    Where this differs from the paper: by ``c``, unless ``thresholds="paper"``. A NaN in a candidate or threshold counts
    as a write of NaN, so that a diverged model does not look like one that remembers.

    Where it differs from :class:`torch.nn.GRU`: there is no ``weight_hh``, because no gate reads the state, and no
    ``proj_size``. The backward pass reads the output, so changing the output in place before it raises an error that
    says what to do.

    Under autocast the states have the dtype of the projection (bfloat16); ``alpha`` is rounded to it once, gradients
    accumulate in float32.

    Example:
        >>> rnn = BMRU(10, 20, num_layers=2)
        >>> output, h_n = rnn(torch.randn(5, 3, 10), torch.zeros(2, 3, 20))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    parallel = True
    takes_position = True
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
        alpha_surr: float = 1.0,
        beta_bias: float = 0.0,
        thresholds: Thresholds = "spread",
        start: Start = "zero",
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        check_options(alpha_surr, beta_bias, bias, thresholds, start)
        self.alpha_surr = alpha_surr
        self.beta_bias = beta_bias
        self.thresholds: Thresholds = thresholds
        self.start: Start = start
        for name in self.offset_names():
            self.register_buffer(name, empty_offset(hidden_size, bias, thresholds, device, dtype))
        self.create_parameters(device, dtype)
        cast(Any, self).register_load_state_dict_pre_hook(_add_offsets)

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        N = self.hidden_size
        return {"weight_ih": (2 * N, width), "bias_ih": (2 * N,), "alpha": (N,)}

    def init_layer(self, layer: int, reverse: bool) -> None:
        weight, bias, alpha = self.parameters_of(layer, reverse)
        init_projection(weight, bias, alpha, self.offset_of(layer, reverse), self.beta_bias)

    def offset_names(self) -> list[str]:
        """The names of the buffers, for each layer and direction."""
        ends = ["", "_reverse"] if self.bidirectional else [""]
        return [f"offset_l{layer}{end}" for layer in range(self.num_layers) for end in ends]

    def offset_of(self, layer: int, reverse: bool = False) -> Tensor | None:
        """What is added to the bias, ``[2N]``: zeros, then ``c``; None for nothing."""
        own, name = cast(Any, self)._buffers, f"offset_l{layer}{'_reverse' if reverse else ''}"
        return own[name] if name in own else getattr(self, name)  # as in parameters_of

    def projection_of(self, layer: int, reverse: bool = False) -> tuple[Tensor, Tensor | None, Tensor]:
        """``W [2N, D]``, the whole bias ``[2N]`` or None, and alpha."""
        weight, bias, alpha = self.parameters_of(layer, reverse)
        offset = self.offset_of(layer, reverse)
        return weight, bias if offset is None else bias + offset, alpha

    def project(self, x: Tensor, layer: int, reverse: bool = False) -> Tensor:
        weight, bias, _ = self.projection_of(layer, reverse)
        return F.linear(x, weight, bias)

    @torch.no_grad()
    def tune(self, codes: Tensor, gain: float = 1.0) -> None:
        r"""Assign each unit of the first layer a timestep, the only one at which it initially writes.

        The inputs must end in a code :math:`e_t` of the timestep whose norm is the same at all timesteps, such as
        sinusoids. Unit i of a direction gets the timestep :math:`\tau_i` with the code ``codes [directions, N, P]``:

        .. math:: \beta_t = \text{gain} \, (|e_{\tau_i}|^2 - e_{\tau_i} \cdot e_t), \qquad \hat h_t = W_x x_t + b_x

        The threshold is zero at :math:`t = \tau_i` and positive elsewhere, and the candidate ignores the code. The
        layer starts as a memory of N of the inputs, one bit of each. With the usual initialisation a unit writes at
        every other timestep, and neither states nor gradients reach further than a few.

        The difference is between large numbers: in bfloat16 the threshold at :math:`\tau_i` is some 0.04 with the
        codes of :class:`~multistable.models.PositionConfig`, and one write in twenty is missed. ``reset_parameters``
        undoes the assignment.
        """
        P = codes.shape[-1]
        expected = (len(self.directions), self.hidden_size, P)
        if codes.shape != expected or not 0 < P < self.input_size or not self.bias:
            raise ValueError(
                f"codes must have shape [{expected[0]}, {expected[1]}, P] with P below the input's {self.input_size} "
                f"features, and the layer a bias, got {list(codes.shape)} and bias={self.bias}"
            )
        for reverse, own in zip(self.directions, codes, strict=True):
            weight, bias, _ = self.parameters_of(0, reverse)
            if (offset := self.offset_of(0, reverse)) is not None:
                offset.zero_()
            weight[: self.hidden_size, -P:] = 0
            weight[self.hidden_size :, :-P] = 0
            weight[self.hidden_size :, -P:] = -gain * own
            bias[self.hidden_size :] = gain * own.square().sum(-1)

    def start_state(self, layer: int, reverse: bool = False) -> Tensor | None:
        return self.parameters_of(layer, reverse)[2] if self.start == "branch" else None

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        weight, bias, alpha = self.projection_of(layer, reverse)
        reset = steps.reset_of(reverse)
        options: dict[str, Any] = {"alpha_surr": self.alpha_surr, "reset": reset, "reverse": reverse}
        options["time_major"] = not steps.batch_first
        restart = reset is not None and self.start == "branch"
        fused = None if restart else fused_backend(x, weight, self.backend, bias, alpha, h0)
        if fused is not None:
            h, h_last = project_and_scan(x, weight, bias, alpha, h0, valid=steps.valid, backend=fused, **options)
        else:
            proj = F.linear(x, weight, bias)
            if steps.valid is not None:  # padding gets candidate 0 and threshold 1, which never writes
                neutral = torch.cat([torch.zeros_like(alpha), torch.ones_like(alpha)]).to(proj.dtype)
                proj = torch.where(steps.valid, proj, neutral)
            scan: Any = bmru_layer_on_branch if restart else bmru_layer
            h, h_last = scan(proj, alpha, h0, backend=self.backend, **options)
        return h, steps.at_last_segment(h, h_last, reverse)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias, alpha = self.projection_of(layer)
        proj = F.linear(x, weight, bias)
        if is_one_kernel(proj, alpha, h):
            return launch_bmru(proj, alpha, h)
        cand, beta = proj.chunk(2, dim=-1)
        h = reference.bmru_step(cand, beta, alpha, h, alpha_surr=self.alpha_surr)
        return h, h


def _add_offsets(module: "BMRU | BMRUCell", state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Biases that were saved before there were offsets have none beside them."""
    for name in module.offset_names():
        offset, saved = getattr(module, name), state_dict.get(prefix + name.replace("offset", "bias_ih"))
        if offset is not None and saved is not None:  # with strict=False a bias may be missing
            state_dict.setdefault(prefix + name, torch.zeros_like(offset, device=saved.device))


class BMRUCell(nn.Module):
    r"""One timestep of a bistable memory recurrent unit, called like :class:`torch.nn.GRUCell`.

    The equations are those of :class:`BMRU`.

    Args:
        input_size: number of features of the input, ``D``.
        hidden_size: number of units, ``N``.
        bias: whether to use ``b_x`` and ``b_beta``. Default: ``True``
        alpha_surr: sharpness of the surrogate derivative. Default: 1.0
        thresholds, beta_bias: as in :class:`BMRU`. Default: ``"spread"`` and 0.0
        start: as in :class:`BMRU`: what ``hx`` is if not given. Default: ``"zero"``
        device, dtype: of the parameters.

    Inputs: input, hx
        * **input**: ``[B, D]`` or ``[D]``.
        * **hx**: the state before, ``[B, N]`` or ``[N]``. Default: zeros, or ``alpha`` with ``start="branch"``.

    Output: the new state, ``[B, N]`` or ``[N]``.

    Attributes:
        weight_ih: ``[2N, D]``, ``W_x`` over ``W_beta``. bias_ih: ``[2N]``. alpha: ``[N]``. offset: ``[2N]``, a buffer.

    Example:
        >>> cell = BMRUCell(10, 20)
        >>> h = None
        >>> for x in torch.randn(6, 3, 10):
        ...     h = cell(x, h)
        >>> h.shape
        torch.Size([3, 20])
    """

    offset: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        alpha_surr: float = 1.0,
        beta_bias: float = 0.0,
        thresholds: Thresholds = "spread",
        start: Start = "zero",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(1, input_size=input_size, hidden_size=hidden_size)
        check_options(alpha_surr, beta_bias, bias, thresholds, start)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self.alpha_surr = alpha_surr
        self.beta_bias = beta_bias
        self.thresholds: Thresholds = thresholds
        self.start = start
        self.weight_ih = nn.Parameter(torch.empty(2 * hidden_size, input_size, device=device, dtype=dtype))
        self.bias_ih = nn.Parameter(torch.empty(2 * hidden_size, device=device, dtype=dtype)) if bias else None
        self.alpha = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_buffer("offset", empty_offset(hidden_size, bias, thresholds, device, dtype))
        cast(Any, self).register_load_state_dict_pre_hook(_add_offsets)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_projection(self.weight_ih, self.bias_ih, self.alpha, self.offset, self.beta_bias)

    def offset_names(self) -> list[str]:
        return ["offset"]

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        check_input(self, "input", input)
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"input must have shape [B, {self.input_size}] or [{self.input_size}], got {list(input.shape)}"
            )
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            hx = input.new_zeros(shape) if self.start == "zero" else self.alpha.expand(shape)
        else:
            check_state("hx", hx, shape, input)
        bias = self.bias_ih if self.offset is None or self.bias_ih is None else self.bias_ih + self.offset
        cand, beta = F.linear(input, self.weight_ih, bias).chunk(2, dim=-1)
        return bmru_step(cand, beta, self.alpha, hx, alpha_surr=self.alpha_surr)

    def extra_repr(self) -> str:
        return changed_arguments(self)

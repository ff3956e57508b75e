"""The interface of ``torch.nn.GRU`` around any recurrence: layers, directions, layouts, dropout, single steps."""

import inspect
import math
import warnings
from functools import cache
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from multistable.layers.checks import as_tensor, check_input, check_state, lengths_of
from multistable.layers.sequences import Steps
from multistable.ops import pieces
from multistable.ops.checks import check_sizes
from multistable.ops.dispatch import check_name
from multistable.ops.numerics import wide

__all__ = ["Part", "Recurrent", "changed_arguments", "init_linear", "init_orthogonal"]


class Part(NamedTuple):
    """A range of a layer's features with its own read-out matrix: the kind of unit it comes from and its size.

    With ``pairs`` the features are complex numbers, first all real parts and then all imaginary ones.
    """

    name: str
    size: int
    pairs: bool = False


class Recurrent(nn.Module):
    """A multi-layer recurrent network with the constructor and the call contract of :class:`torch.nn.GRU`.

    A subclass defines one layer in one direction::

        parameter_shapes(width)                    name -> shape of its parameters; width is that of its input
        init_layer(layer, reverse)                 initialises them
        scan_layer(x, layer, reverse, h0, steps)   a sequence in the layout of the input -> features, last state [B, S]
        step_layer(x, layer, h)                    one timestep, x [..., D] and h [..., S] -> features [..., F], state:
                                                   one tensor twice, or two, each in memory of its own

    and calls :meth:`create_parameters` at the end of its constructor, or defines :meth:`run_layers` and
    :meth:`step_layers`, which run all layers. The features are the first F entries of the state, and for most layers
    all of them (those of a :class:`~multistable.Stack` are not part of its state). Constructor arguments are stored
    under their own names, for ``repr``.
    """

    takes_position: ClassVar[bool] = False
    """Whether a position encoding helps this layer: blocks then append one to its input."""
    parallel: ClassVar[bool] = False
    """Whether all timesteps are computed at once. ``torch.compile`` would unroll a loop over them: 0.1 s per step."""
    has_skip: ClassVar[bool] = False
    """Whether the layer's read-out includes a multiple of its input, ``skip * x``."""
    runs_pieces: ClassVar[bool] = True
    """Whether its input can be a piece of a sequence, see :mod:`multistable.distributed`."""
    copies_last: ClassVar[bool] = False
    """Whether the last state of ``scan_layer`` has memory of its own, and is not a view of all states or of ``h0``. Not
    inherited by a subclass with a scan of its own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if ("scan_layer" in own or "run_layers" in own) and "copies_last" not in own:
            cls.copies_last = False

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
    ) -> None:
        super().__init__()
        check_sizes(1, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        _check_flags(bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        _check_dropout(dropout)
        if dropout > 0 and num_layers == 1:
            warnings.warn(f"dropout={dropout} does nothing with num_layers=1: it acts between layers", stacklevel=3)
        check_name(backend)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.backend = backend
        self.directions = (False, True) if bidirectional else (False,)  # reverse or not
        self.parameter_names: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The features of one direction, in order."""
        return (Part(type(self).__name__.lower(), self.hidden_size),)

    @staticmethod
    def size_options(units: int) -> dict[str, int]:
        """The constructor arguments of a layer of ``units`` units as the paper counts them, complex ones as one."""
        return {"hidden_size": units}

    @property  # not cached: in Python 3.11 that takes a lock, on which torch.compile breaks the graph
    def feature_size(self) -> int:
        """F, the number of features of one direction."""
        return sum(part.size for part in self.parts)

    @property
    def state_size(self) -> int:
        """S, how many numbers one direction carries from step to step."""
        return self.feature_size

    def width(self, layer: int) -> int:
        """The number of features that ``layer`` reads."""
        return self.input_size if layer == 0 else self.feature_size * len(self.directions)

    def create_parameters(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Register and initialise the parameters, with the names of ``nn.GRU``: ``weight_ih_l0_reverse``."""
        for layer in range(self.num_layers):
            shapes = self.parameter_shapes(self.width(layer))
            self.parameter_names = tuple(shapes)
            for reverse in self.directions:
                for name, shape in shapes.items():
                    used = self.bias or name != "bias_ih"
                    parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if used else None
                    self.register_parameter(f"{name}_l{layer}{'_reverse' if reverse else ''}", parameter)
        self.reset_parameters()

    def parameters_of(self, layer: int, reverse: bool = False) -> list[Any]:
        """The tensors of one layer and direction in the order of :meth:`parameter_shapes`; None for a missing bias."""
        suffix = f"_l{layer}{'_reverse' if reverse else ''}"
        own = cast(Any, self)._parameters  # 0.1 us each; by getattr 0.6, which finds those that are computed, too
        names = [name + suffix for name in self.parameter_names]
        return [own[name] if name in own else getattr(self, name) for name in names]

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, as in ``nn.GRU``."""
        pairs = [(layer, reverse) for layer in range(self.num_layers) for reverse in self.directions]
        return [[x for x in self.parameters_of(*pair) if x is not None] for pair in pairs]

    def reset_parameters(self) -> None:
        for layer in range(self.num_layers):
            for reverse in self.directions:
                self.init_layer(layer, reverse)

    def flatten_parameters(self) -> None:
        """Do nothing; code written for ``nn.GRU`` calls it."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """Features of a whole sequence and the last states ``[num_layers * directions, B, S]``, as ``nn.GRU``.

        ``mask``, booleans in the layout of a batched input, is ``lengths`` in other words: with it TorchRL's
        ``GRUModule`` marks the valid steps of right-padded sequences.
        """
        if mask is not None:
            if lengths is not None or not isinstance(input, Tensor) or input.ndim != 3:
                raise ValueError("mask goes with padded, batched input, and without lengths")
            lengths = lengths_of(mask, input.shape[:2], self.batch_first)
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, reset, lengths)
        check_input(self, "input", input)
        if input.ndim == 2:
            return self._forward_unbatched(input, hx, reset, lengths)
        self._check_pieces()
        steps = Steps.of(input, self.batch_first, reset, lengths, self.bidirectional)
        h0 = self.initial_states(input, steps.B, hx)
        x = steps.zero_padding(input)  # a NaN in it would reach the gradient of the weights, as 0 * NaN
        x, h_n = self.run_layers(x, h0, steps)
        output = steps.zero_padding(x).contiguous()  # `view` works on the output of nn.GRU
        return output, stack_states(h_n, self.copies_last)

    def _check_pieces(self) -> None:
        """Raise if the input is a piece of a sequence, and the layer can only run whole ones."""
        if pieces.current() is None:
            return
        if not self.runs_pieces:
            raise NotImplementedError(
                f"sequence_parallel does not support {type(self).__name__}: it runs whole sequences"
            )
        check_name(self.backend)

    def run_layers(self, x: Tensor, h0: list[Tensor | None], steps: Steps) -> tuple[Tensor, list[Tensor]]:
        """Features of a batch in the layout of the input, and the last state ``[B, S]`` of each layer and direction."""
        h_n: list[Tensor] = []
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout > 0:
                x = F.dropout(x, self.dropout, self.training)
            outputs: list[Tensor] = []
            for reverse in self.directions:
                h, h_last = self.scan_layer(x, layer, reverse, h0[len(h_n)], steps)
                outputs.append(h)
                h_n.append(h_last)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return x, h_n

    def _forward_unbatched(
        self, x: Tensor, hx: Tensor | None, reset: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One sequence ``[T, D]``, as a batch of one."""
        if lengths is not None:
            raise ValueError("lengths needs batched input: an unbatched sequence can be cut instead")
        if isinstance(hx, Tensor):
            if hx.ndim != 2:
                raise ValueError(f"hx must have 2 dimensions for unbatched input, got {hx.ndim}")
            hx = hx.unsqueeze(1)
        axis = 0 if self.batch_first else 1
        if reset is not None:
            reset = as_tensor("reset", reset)
            if reset.shape != x.shape[:1]:
                got = f"{reset.dtype} {list(reset.shape)}"
                raise ValueError(f"reset must be boolean of shape {list(x.shape[:1])} for unbatched input, got {got}")
            reset = reset.unsqueeze(axis)
        output, h_n = self.forward(x.unsqueeze(axis), hx, reset=reset)  # not __call__: hooks have seen this call
        return output.squeeze(axis), h_n.squeeze(1)

    def _forward_packed(
        self, packed: PackedSequence, hx: Tensor | None, reset: Tensor | None, lengths: Tensor | None
    ) -> tuple[PackedSequence, Tensor]:
        """A packed batch, as a padded one. ``hx`` and ``h_n`` are in the caller's order of sequences."""
        if pieces.current() is not None:
            raise NotImplementedError("sequence_parallel needs padded input, got a PackedSequence")
        if reset is not None or lengths is not None:
            raise ValueError("reset and lengths go with padded input: a PackedSequence has its own lengths")
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        check_input(self, "input", data)
        if data.ndim != 2:
            shape = ", ".join(["T", *map(str, data.shape[1:])])
            raise ValueError(f"input must be packed sequences [T, {self.input_size}], got sequences [{shape}]")
        x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first=self.batch_first)
        if hx is not None and sorted_indices is not None:
            self.initial_states(x, int(batch_sizes[0]), hx)  # raises for a wrong hx before it is reordered
            hx = hx.index_select(1, sorted_indices)
        output, h_n = self.forward(x, hx, lengths=lengths)
        output = pack_padded_sequence(output, lengths, batch_first=self.batch_first).data
        h_n = h_n if unsorted_indices is None else h_n.index_select(1, unsorted_indices)
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), h_n

    def initial_states(self, x: Tensor, B: int, hx: Tensor | None) -> list[Tensor | None]:
        """The state ``[B, S]`` before each layer and direction, or None for zeros; raise if x or hx do not fit."""
        if x.shape[-1] != self.input_size:
            raise ValueError(f"input must have {self.input_size} features (input_size), got {x.shape[-1]}")
        starts = [self.start_state(layer, reverse) for layer in range(self.num_layers) for reverse in self.directions]
        count = len(starts)
        if hx is None:
            return [None if start is None else start.repeat(B, 1) for start in starts]
        layout = "[B, T, D]" if self.batch_first else "[T, B, D]"
        axes = f" (layers * directions, B, state_size; input is {layout})"
        check_state("hx", hx, (count, B, self.state_size), x, axes)
        return list(hx.unbind(0))

    def start_state(self, layer: int, reverse: bool = False) -> Tensor | None:
        """The state of one layer and direction before the first step of every sequence, ``[S]``, or None for zeros."""
        return None

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The state before the first step, ``[num_layers * directions, *shape, S]`` with ``shape`` (B,) or ().

        Where it is zero it has the dtype and device of ``like``.
        """
        starts = [self.start_state(layer, reverse) for layer in range(self.num_layers) for reverse in self.directions]
        zeros = like.new_zeros(*shape, self.state_size)
        return torch.stack([zeros if start is None else start.expand_as(zeros) for start in starts])

    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One timestep: ``x [B, D]``, ``state [num_layers, B, S]`` (or both without B) -> ``[B, F]``, new state.

        The same law as :meth:`forward`, for streaming; the state goes in and comes out. Features, the state before and
        the state after have memory of their own.
        """
        if self.bidirectional:
            name = type(self).__name__
            raise RuntimeError(
                f"step needs a unidirectional {name}: the reverse direction starts at the end of the sequence"
            )
        check_input(self, "x", x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(f"x must have shape [B, {self.input_size}] or [{self.input_size}], got {list(x.shape)}")
        shape = (self.num_layers, *x.shape[:-1], self.state_size)
        if state is None:
            state = self.initial_state(shape[1:-1], x)
        else:
            check_state("state", state, shape, x)
        return self.step_layers(x, state)

    def step_layers(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One timestep of all layers: ``x [..., D]``, ``state [num_layers, ..., S]``."""
        if self.num_layers == 1:
            x, h = self.step_layer(x, 0, state.squeeze(0))
            return x, stack_states([h], h is not x)  # two tensors have memory of their own
        states: list[Tensor] = []
        for layer, h in enumerate(state.unbind(0)):
            if layer > 0 and self.dropout > 0:
                x = F.dropout(x, self.dropout, self.training)
            x, h = self.step_layer(x, layer, h)
            states.append(h)
        return x, torch.stack(states)

    def project(self, x: Tensor, layer: int, reverse: bool = False) -> Tensor:
        """``W x + b`` of one layer and direction; ``weight_ih`` and ``bias_ih`` must be its first parameters."""
        weight, bias = self.parameters_of(layer, reverse)[:2]
        return F.linear(x, weight, bias)

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError

    def init_layer(self, layer: int, reverse: bool) -> None:
        raise NotImplementedError

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return changed_arguments(self)


def stack_states(states: list[Tensor], own: bool) -> Tensor:
    """``torch.stack(states)``; without gradients one state that has memory of its ``own`` is not copied, which takes 20
    us on a GPU, a fifth of a small layer's forward.

    Nor is it a view: callers of ``nn.GRU`` write ``h_n.detach_()``, which views refuse. With gradients, torch must see
    when somebody changes in place what a backward reads. While it is traced, neither: a trace serves both cases.
    """
    untyped: Any = torch
    if len(states) > 1 or not own or torch.is_grad_enabled() or untyped.jit.is_tracing():
        return torch.stack(states)
    return untyped.ops.aten._unsafe_view.default(states[0], (1, *states[0].shape))


def init_linear(weight: Tensor, bias: Tensor | None) -> None:
    """``nn.Linear``'s initialisation of ``weight [.., D]`` and bias: uniform between -1 / sqrt(D) and 1 / sqrt(D)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


@torch.no_grad()
def init_orthogonal(weight: Tensor) -> None:
    """An orthogonal matrix, drawn in float32 if ``weight`` is in half precision, for which LAPACK has no routine."""
    weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=wide(weight.dtype))))


def changed_arguments(module: nn.Module) -> str:
    """The constructor's arguments without a default and those that differ from it, as a caller would write them.

    Each is an attribute of its own name. A subclass whose constructor has others is written with those of its base
    class. ``device`` and ``dtype`` are left out: they are the parameters' own.
    """
    constructors = map(_defaults, type(module).mro())
    defaults = next(names for names in constructors if names and all(hasattr(module, name) for name in names))
    words: list[str] = []
    for name, default in defaults.items():
        value = getattr(module, name)
        if default is inspect.Parameter.empty:
            words.append(repr(value))
        elif value != default:
            words.append(f"{name}={value!r}")
    return ", ".join(words)


@cache
def _defaults(kind: type) -> dict[str, Any]:
    arguments = inspect.signature(kind).parameters.values()
    named = [x for x in arguments if x.kind is not x.VAR_KEYWORD and x.name not in ("device", "dtype")]
    return {argument.name: argument.default for argument in named}


def _check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")


def _check_dropout(dropout: object) -> None:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout must be a probability between 0 and 1, got {dropout!r}")

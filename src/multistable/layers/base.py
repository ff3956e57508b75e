"""The interface of ``torch.nn.GRU`` around any recurrence: layers, directions, layouts, dropout, single steps."""

import math
import warnings
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multistable.layers import sequences
from multistable.ops.checks import check_sizes
from multistable.ops.dispatch import check_name

__all__ = ["Part", "Recurrent", "reset_linear"]


def reset_linear(weight: Tensor, bias: Tensor | None) -> None:
    """``nn.Linear``'s initialisation of ``weight [.., D]`` and bias: uniform between -1 / sqrt(D) and 1 / sqrt(D)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


class Part(NamedTuple):
    """A stretch of a cell's features that has a read-out matrix of its own: the cell it comes from and its size.

    ``pairs`` says that the features are complex numbers, first all real parts and then all imaginary ones.
    """

    name: str
    size: int
    pairs: bool = False


class Recurrent(nn.Module):
    """A multi-layer recurrent cell with the constructor and the call contract of :class:`torch.nn.GRU`.

    A cell is made by saying how one layer and direction works::

        make_layer(layer, suffix, width, empty)   registers its parameters; width is that of its input
        reset_layer(layer, suffix)                initialises them
        run(x, layer, suffix, h0, steps)          a sequence in the layout of the input -> features, last state [B, S]
        advance(x, layer, h)                      one timestep, x [..., D] and h [..., S] -> features [..., F], state

    ``suffix`` is ``""``, or ``"_reverse"`` for the direction that reads backwards. The features are the first F
    entries of the state, and for most cells all of them.
    """

    takes_position: ClassVar[bool] = False
    """Whether a position encoding helps this cell: blocks then add one to its input."""
    parallel: ClassVar[bool] = False
    """Whether all timesteps are computed at once. ``torch.compile`` would unroll a loop over them: 0.1 s per step."""
    has_skip: ClassVar[bool] = False
    """Whether the cell's read-out includes a multiple of its input, ``skip * x``."""
    options: ClassVar[dict[str, Any]] = {}
    """The cell's own keyword arguments and their defaults, for ``repr``."""

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
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be a probability between 0 and 1, got {dropout!r}")
        for name, value in {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}.items():
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
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
        self.suffixes = ("", "_reverse") if bidirectional else ("",)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The features of one direction, in order."""
        return (Part(type(self).__name__.lower(), self.hidden_size),)

    @property  # not cached: in Python 3.11 that takes a lock, on which torch.compile breaks the graph
    def feature_size(self) -> int:
        """F, the features of one direction."""
        return sum(part.size for part in self.parts)

    @property
    def state_size(self) -> int:
        """S, the numbers that one direction carries from step to step."""
        return self.feature_size

    def make_layers(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Register and initialise the parameters: the last thing a cell's constructor does."""
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else self.feature_size * len(self.suffixes)
            for suffix in self.suffixes:
                self.make_layer(layer, suffix, width, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def register(self, name: str, layer: int, suffix: str, shape: tuple[int, ...], empty: dict[str, Any]) -> None:
        """A parameter of one layer and direction, named as in ``nn.GRU``: ``name_l0``, ``name_l0_reverse``."""
        self.register_parameter(f"{name}_l{layer}{suffix}", nn.Parameter(torch.empty(shape, **empty)))

    def parameter(self, name: str, layer: int, suffix: str) -> Tensor:
        return getattr(self, f"{name}_l{layer}{suffix}")

    def bias_of(self, layer: int, suffix: str) -> Tensor | None:
        return self.parameter("bias_ih", layer, suffix) if self.bias else None

    def reset_parameters(self) -> None:
        for layer in range(self.num_layers):
            for suffix in self.suffixes:
                self.reset_layer(layer, suffix)

    def flatten_parameters(self) -> None:
        """Nothing to flatten; here because code written for ``nn.GRU`` calls it."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """Features of a whole sequence and the last states ``[num_layers * directions, B, S]``, as ``nn.GRU``."""
        if hx is not None and not isinstance(hx, Tensor):
            raise TypeError(f"hx must be one tensor, got {type(hx).__name__}")
        if isinstance(input, PackedSequence):
            return sequences.run_packed(self, input, hx, reset, lengths)
        sequences.check_input(self, "input", input)
        if input.ndim == 2:
            return sequences.run_unbatched(self, input, hx, reset, lengths)
        return self.run_batch(input, hx, reset, lengths)

    def run_batch(
        self, input: Tensor, hx: Tensor | None, reset: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`forward` of a padded batch; packed and unbatched input come here too, past the module's hooks."""
        steps = sequences.Steps.of(input, self.batch_first, reset, lengths)
        h0 = sequences.initial_states(self, input, steps.B, hx)
        x, last = steps.zero_padding(input), []  # a NaN in it would reach the gradient of the weights, as 0 * NaN
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout > 0:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for direction, suffix in enumerate(self.suffixes):
                h, h_last = self.run(x, layer, suffix, h0[layer * len(self.suffixes) + direction], steps)
                outputs.append(h)
                last.append(h_last)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return steps.zero_padding(x), torch.stack(last)

    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One timestep: ``x [B, D]``, ``state [num_layers, B, S]`` (or both without B) -> ``[B, F]``, new state.

        The same law as :meth:`forward`, for streaming; the state goes in and comes out.
        """
        if self.bidirectional:
            name = type(self).__name__
            raise RuntimeError(
                f"step needs a unidirectional {name}: the reverse direction starts at the end of the sequence"
            )
        sequences.check_input(self, "x", x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(f"x must have shape [B, {self.input_size}] or [{self.input_size}], got {list(x.shape)}")
        shape = (self.num_layers, *x.shape[:-1], self.state_size)
        if state is None:
            state = x.new_zeros(shape)
        else:
            sequences.check_step_state("state", state, shape, x)
        states = []
        for layer, h in enumerate(state.unbind(0)):
            if layer > 0 and self.dropout > 0:
                x = F.dropout(x, self.dropout, self.training)
            x, h = self.advance(x, layer, h)
            states.append(h)
        return x, torch.stack(states)

    def make_layer(self, layer: int, suffix: str, width: int, empty: dict[str, Any]) -> None:
        raise NotImplementedError

    def reset_layer(self, layer: int, suffix: str) -> None:
        raise NotImplementedError

    def run(
        self, x: Tensor, layer: int, suffix: str, h0: Tensor | None, steps: sequences.Steps
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def advance(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def extra_repr(self) -> str:
        words = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        defaults |= self.options | {"backend": "auto"}
        words += [f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value]
        return ", ".join(words)

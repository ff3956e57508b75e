"""The paper's blocks as a layer with the interface of ``torch.nn.GRU``: :class:`Stack`."""

import inspect
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from multistable.layers.base import Recurrent
from multistable.layers.registry import find_layer
from multistable.layers.sequences import Steps
from multistable.models.block import Block, ReadOut
from multistable.models.build import build_linear, init_unit
from multistable.models.norm import BatchNorm, LayerNorm
from multistable.ops.checks import check_choice

__all__ = ["Stack"]

Norm = Literal["layer", "batch"]


class Stack(Recurrent):
    r"""Blocks around recurrent layers of any kind, called like :class:`torch.nn.GRU`.

    .. math::
        \begin{aligned}
            y^0     &= W x + b                                            && \text{encoder} \\
            y^l     &= y^{l-1} + \mathrm{GLU}(C \, \mathrm{cell}(u) + D \odot u), \quad u = \mathrm{norm}(y^{l-1})
                    && \text{block } l = 1 \dots \text{num\_layers} \\
            output  &= \mathrm{norm}(y^{\text{num\_layers}})
        \end{aligned}

    The cells of the paper are linear or constant between their jumps; norm, gate and residual between them are what
    makes several of them learn like a GRU. :math:`D \odot u` exists for cells that contain an LRU.

    Args:
        cell: the name of a layer (:mod:`multistable.layers.registry`), such as ``"hybrid"``, ``"bmru"`` or ``"lru"``,
            or one name for each block.
        input_size: number of features of the input, ``D``.
        hidden_size: numbers of output and state per direction, ``N``. Blocks are ``directions * N`` wide.
        num_layers: number of blocks. Default: 1
        bias: whether encoder, gates and cells have biases (an LRU has none). Default: ``True``
        batch_first, bidirectional, device, dtype: as in :class:`~multistable.BMRU`.
        dropout: probability of dropout on what each block but the last adds. Default: 0
        norm: ``"layer"``, or the paper's ``"batch"``, which depends on the other sequences of a training batch and on
            running statistics in evaluation and in :meth:`step`. Default: ``"layer"``
        backend: of the cells, see :func:`multistable.ops.explain`. Default: ``"auto"``
        options: further arguments of the cells, such as ``beta_bias`` or ``r_max``; each cell gets those it has.

    Inputs and outputs are those of :class:`~multistable.BMRU`: **output** ``[..., directions * N]``, **h_n**
    ``[num_layers * directions, B, N]`` (more than N for ``"lstm"`` and ``"fsm:K"``), the states of the cells. Unlike
    those of a GRU they are not outputs: read the last output and not ``h_n[-1]``. The output of a bidirectional stack
    mixes both directions.

    Attributes:
        encoder: ``nn.Linear``. blocks: one :class:`~multistable.models.block.Block` per layer. norm_out: the last norm.

    Example:
        >>> rnn = Stack("hybrid", 10, 20, num_layers=2)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    def __init__(
        self,
        cell: str | tuple[str, ...],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        norm: Norm = "layer",
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        names = _check_cells(cell, num_layers)
        check_choice("norm", norm, get_args(Norm))
        self.cell = cell if isinstance(cell, str) else names
        self.norm: Norm = norm
        self.options = options
        _check_options(names, options if backend == "auto" else {"backend": backend, **options})
        H = hidden_size * len(self.directions)
        self.encoder = build_linear(input_size, H, bias=bias)
        self.blocks = nn.ModuleList(
            self._build_block(name, H, dropout=dropout if i < num_layers - 1 else 0.0) for i, name in enumerate(names)
        )
        self.norm_out = _build_norm(norm, H)
        sizes = {block.cell.state_size for block in self._blocks}
        if len(sizes) > 1:
            raise ValueError(f"cells must have states of one size, got {names!r} with {sorted(sizes)} numbers")
        self.to(device=device, dtype=dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        """As of a GRU, ``dropout`` may be changed later, and ``backend``: blocks and cells have copies of their own."""
        super().__setattr__(name, value)
        if name in ("dropout", "backend") and "blocks" in self._modules:
            for block in self._blocks[:-1] if name == "dropout" else self._blocks:
                setattr(block if name == "dropout" else block.cell, name, value)

    def _build_block(self, name: str, H: int, dropout: float) -> Block:
        kind, fixed = find_layer(name)
        arguments = inspect.signature(kind).parameters
        # An LRU has no bias by default: the norm before it has one.
        available: dict[str, Any] = {
            "backend": self.backend,
            "bias": self.bias and arguments["bias"].default,
            **self.options,
        }
        chosen = {key: value for key, value in available.items() if key in arguments}
        sizes: dict[str, Any] = {"input_size": H, "hidden_size": self.hidden_size}
        cell = kind(**sizes, batch_first=True, bidirectional=self.bidirectional, **chosen | fixed)
        read_out = ReadOut(cell.parts, len(self.directions), H)
        return Block(_build_norm(self.norm, H), cell, read_out, build_linear(H, 2 * H, bias=self.bias), dropout)

    @property
    def state_size(self) -> int:
        return self._blocks[0].cell.state_size

    @property
    def _blocks(self) -> list[Block]:
        return cast("list[Block]", self.blocks)

    def parameters_of(self, layer: int, reverse: bool = False) -> list[Any]:
        """Those of the block's cell: the rest of a block belongs to no direction."""
        return self._blocks[layer].cell.parameters_of(0, reverse)

    def reset_parameters(self) -> None:
        for module in self.modules():
            if module is not self and callable(reset := getattr(module, "reset_parameters", None)):
                reset()
            if isinstance(module, nn.Linear):
                init_unit(module)

    def start_state(self, layer: int, reverse: bool = False) -> Tensor | None:
        return self._blocks[layer].cell.start_state(0, reverse)

    def run_layers(self, x: Tensor, h0: list[Tensor | None], steps: Steps) -> tuple[Tensor, list[Tensor]]:
        inside = steps.with_batch_first()
        x = self.encoder(steps.swap_layout(x))
        count = len(self.directions)
        h_n: list[Tensor] = []
        for i, block in enumerate(self._blocks):
            states = h0[i * count : (i + 1) * count]
            given = [h for h in states if h is not None]  # all or none
            x, h = block(x, torch.stack(given) if given else None, inside)
            h_n += h.unbind(0)
        return steps.swap_layout(self.norm_out(x, inside.valid)), h_n

    def step_layers(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Without dropout, and with the running statistics of batch norm."""
        x = self.encoder(x)
        states: list[Tensor] = []
        for block, h in zip(self._blocks, state.unbind(0), strict=True):
            x, h = block.step(x, h.unsqueeze(0))
            states.append(h.squeeze(0))
        return self.norm_out.step(x), torch.stack(states)

    def extra_repr(self) -> str:
        words = [super().extra_repr(), *(f"{name}={value!r}" for name, value in self.options.items())]
        return ", ".join(words)


def _build_norm(norm: Norm, H: int) -> BatchNorm | LayerNorm:
    return LayerNorm(H) if norm == "layer" else BatchNorm(H)


def _check_cells(cell: object, num_layers: int) -> tuple[str, ...]:
    names = (cell,) * num_layers if isinstance(cell, str) else cell
    if not isinstance(names, tuple | list) or len(cast("list[Any]", names)) != num_layers:
        raise ValueError(
            "cell, the first argument, must be the name of a layer such as 'hybrid', or a list of num_layers names, "
            f"here {num_layers}, got {cell!r}"
        )
    return tuple(cast("list[str]", names))


def _check_options(names: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise for an option that no cell has, or that the name of a cell decides."""
    layers = {name: find_layer(name, "cell") for name in names}
    known = set[str]().union(*(inspect.signature(kind).parameters for kind, _ in layers.values()))
    for option in options:
        if option not in known:
            raise TypeError(f"Stack got the option {option!r}, which {' and '.join(sorted(layers))} does not have")
        for name, (_, fixed) in layers.items():
            if option in fixed:
                raise TypeError(f"Stack got the option {option!r}, which the name {name!r} decides")

"""Gradients of one long sequence on one device, piece by piece, in memory that does not grow with its length."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from multistable.layers.bmru import BMRU
from multistable.layers.hysteresis import HysteresisMRU
from multistable.layers.mru import MRU
from multistable.models.norm import BatchNorm
from multistable.ops.bits import pack_bits, unpack_bits
from multistable.ops.checks import check_sizes
from multistable.ops.numerics import wide

__all__ = ["Streamed", "streamed"]


class Streamed(NamedTuple):
    """Result of :func:`streamed`: the sum of the losses, the state after the last piece, and the gradient of the
    initial state (None if no state was given)."""

    loss: Tensor
    state: Any
    grad_state: Any


def streamed(
    module: nn.Module,
    piece: Callable[[int], Tensor],
    count: int,
    loss: Callable[[Tensor, int], Tensor],
    state: Any = None,
    parameters: Iterable[Tensor] | None = None,
) -> Streamed:
    """Add the gradients of ``sum_i loss(output_i, i)`` over one sequence to ``.grad``::

        output_i, state_{i+1} = module(piece(i), state_i)        i = 0 ... count - 1

    The forward pass keeps only the states between pieces. The backward pass runs from the last piece to the first,
    recomputes each one, and passes the gradient of its state to the piece before. The gradients equal those of the
    whole sequence, but memory holds one piece and ``count`` states at a time. States of a :class:`~multistable.BMRU`
    take two bits per unit, others are stored as they are.

    Args:
        module: a layer, a :class:`~multistable.Stack` or a :class:`~multistable.SequenceModel` with pooling
            ``"none"``, not bidirectional, and without batch norm in training mode, whose statistics need all pieces.
            Neither a HysteresisMRU nor an MRU, whose surrogate gradient does not pass through the state alone.
        piece: the input of piece i. It is called twice and must return the same. It may depend on ``parameters``.
        count: the number of pieces.
        loss: of the output of piece i, a scalar.
        state: before the first piece. None as in a call of the module.
        parameters: to differentiate. Default: those of the module; ``piece`` and ``loss`` must then have no others

    Gradients are summed over the pieces in float32, or float64. In half precision the gradient of the state is rounded
    once per piece. Random numbers, for dropout, are drawn from a seed for each piece, the same in both passes.

    Example:
        >>> from multistable import BMRU
        >>> rnn, x = BMRU(3, 5, batch_first=True), torch.randn(2, 1000, 3)
        >>> step = streamed(rnn, lambda i: x[:, 100 * i : 100 * i + 100], 10, lambda output, i: output.square().sum())
        >>> torch.allclose(step.loss, rnn(x)[0].square().sum())
        True
    """
    _check(module)
    check_sizes(1, count=count)
    leaves = [x for x in (module.parameters() if parameters is None else parameters) if x.requires_grad]
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    kept = _Kept(module, state)
    with torch.no_grad():
        for i in range(count - 1):
            with _seeded(seed + i):
                state = module(piece(i), state)[1]
            kept.append(state)
    sums = [torch.zeros_like(x, dtype=wide(x.dtype)) for x in leaves]
    total, last, into = torch.zeros((), device="cpu"), state, list[Tensor]()
    for i in reversed(range(count)):
        enters = kept.pop()
        starts = _floats(enters)
        with torch.enable_grad(), _seeded(seed + i):
            output, after = module(piece(i), enters)
            value = loss(output, i)
            _check_loss(value)
        if parameters is None:
            _check_leaves([value, *_floats(after)], [*leaves, *starts])
        reached = [value, *(_floats(after) if into else [])]
        found = _gradients(reached, [*leaves, *starts], [torch.ones_like(value), *into])
        for own, grad in zip(sums, found, strict=False):
            own.add_(grad)
        into = found[len(leaves) :]
        total = value.detach() + total.to(value.device)
        last = pytree.tree_map_only(Tensor, Tensor.detach, after) if i == count - 1 else last
    for x, own in zip(leaves, sums, strict=True):
        x.grad = own.to(x.dtype) if x.grad is None else x.grad + own.to(x.dtype)
    return Streamed(total, last, into[0] if len(into) == 1 else into or None)


def _gradients(outputs: list[Tensor], inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients of the inputs, zeros where no output depends on one; an empty piece may depend on none."""
    reached = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad]
    if not reached:
        return [torch.zeros_like(x) for x in inputs]
    outputs, grads = (list(x) for x in zip(*reached, strict=True))
    found: Any = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, found, strict=True)]


class _Kept:
    """A stack of states between pieces. Those of a BMRU are +alpha, -alpha or the initial state: two bits per unit."""

    def __init__(self, module: nn.Module, initial: Any) -> None:
        self.levels = None
        if isinstance(module, BMRU):
            levels = [module.parameters_of(layer)[2] for layer in range(module.num_layers)]
            self.levels = torch.stack(levels).detach()  # [L, N]
        self.initial = initial
        self.states: list[Any] = [initial]

    def append(self, state: Any) -> None:
        if self.levels is None:
            self.states.append(state)
            return
        up, down, start = self._values(state)
        bits = state == up, state == down
        known = bits[0] | bits[1] | (state == start)
        packed = _Packed(pack_bits(bits[0]), pack_bits(bits[1]), state.shape, state.dtype)
        self.states.append(packed if bool(known.all()) else state)  # not if a NaN was written

    def pop(self) -> Any:
        """The last state, ready to receive gradients."""
        state = self.states.pop()
        if isinstance(state, _Packed):
            up, down, start = self._values(state.up.new_empty((), dtype=state.dtype).expand(state.shape))
            is_up, is_down = (unpack_bits(x, state.shape) for x in (state.up, state.down))
            state = torch.where(is_up, up, torch.where(is_down, down, start))
        return pytree.tree_map_only(Tensor, lambda x: x.detach().requires_grad_(x.is_floating_point()), state)

    def _values(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.levels is not None
        levels = self.levels if like.ndim == 2 else self.levels[:, None]  # [L, N], of a batch [L, 1, N]
        up = levels.to(like.dtype).expand_as(like)
        return up, -up, torch.zeros_like(like) if self.initial is None else self.initial.to(like.dtype)


class _Packed(NamedTuple):
    """Where a state is +alpha and where it is -alpha, as bits."""

    up: Tensor
    down: Tensor
    shape: torch.Size
    dtype: torch.dtype


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Draw random numbers from this seed; afterwards every generator continues where it was."""
    random: Any = torch.random
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # `manual_seed` seeds all
    with random.fork_rng(devices, device_type="cuda"):
        random.manual_seed(seed)
        yield


def _floats(state: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor) and x.is_floating_point()]


def _check_loss(value: object) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must return one number, a tensor of shape [], got {got}")


def _check_leaves(outputs: list[Tensor], known: list[Tensor]) -> None:
    """Refuse leaves that would silently get no gradient, such as a read-out that only ``loss`` uses."""
    nodes: Any = [x.grad_fn or x for x in outputs if x.requires_grad]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        leaf = node if isinstance(node, Tensor) else getattr(node, "variable", None)
        if leaf is not None and not any(leaf is x for x in known):
            raise ValueError(
                f"parameters must be given: piece or loss uses one of shape {list(leaf.shape)} that is not the module's"
            )
        following = {x for x, _ in getattr(node, "next_functions", ()) if x is not None} - seen
        seen |= following
        nodes.extend(following)


def _check(module: nn.Module) -> None:
    if any(getattr(x, "bidirectional", False) for x in module.modules()):
        raise ValueError("module must not be bidirectional: its reverse direction starts at the end of the sequence")
    exact = [type(x).__name__ for x in module.modules() if isinstance(x, HysteresisMRU | MRU)]
    if exact:
        raise ValueError(f"module must not have a {exact[0]}: its choice of branch gets no gradient from later pieces")
    norms = (BatchNorm, nn.modules.batchnorm._BatchNorm)  # pyright: ignore[reportPrivateUsage]
    if any(isinstance(x, norms) and x.training for x in module.modules()):
        raise ValueError("module must not have batch norm in training mode: its statistics need the whole sequence")

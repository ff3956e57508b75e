"""One timestep as a CUDA graph: all its kernels are launched by one call, without Python and torch in between."""

from typing import Any, cast

import torch
from torch import Tensor

from multistable.layers import Recurrent
from multistable.models.sequence import ModelState, SequenceModel

__all__ = ["StepGraph"]

Stepping = Recurrent | SequenceModel
State = Tensor | ModelState


class StepGraph:
    """``module.step`` without gradients, captured once and replayed for every timestep.

    The weights are those of the module, also when they change in place. The output of a call and the state after it
    are overwritten by the next one: clone what is to stay.

    Args:
        module: a layer, a :class:`~multistable.Stack`, a :class:`~multistable.SequenceModel`.
        x: an example of the input of one timestep, ``[B, D]`` on a GPU.
        state: the state before the first step. Default: that of the module.

    Attributes:
        state: the state after the last step, a tensor or a :class:`~multistable.ModelState`.

    Example::

        step = StepGraph(BMRU(8, 64, device="cuda"), torch.zeros(1, 8, device="cuda"))
        for x in stream:
            y = step(x)
    """

    @torch.no_grad()
    def __init__(self, module: Stepping, x: Tensor, state: State | None = None) -> None:
        if not x.is_cuda:
            raise ValueError(f"x must be on a GPU: a CUDA graph runs nowhere else, got {x.device}")
        # The graph reads the weights, so their memory must not be freed, not even if the module moves to the CPU.
        self._kept = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        self._module, self._x = module, x.clone()
        with _autocast_without_cache():
            self._capture(cast(Any, module).step, state)

    def _capture(self, step: Any, state: State | None) -> None:
        module, x = self._module, self._x
        stream = torch.cuda.Stream(x.device)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):  # compiles the kernels, and finds the first state if none is given
            before = _first_state(module, x) if state is None else state
            for _ in range(2):
                step(x, before)
        torch.cuda.current_stream(x.device).wait_stream(stream)
        self._first, self.state = _clone(before), _clone(before)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):  # torch's own stream is on the device of its first graph
            self._y, after = step(x, self.state)
            _copy(self.state, after)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The output of the next timestep, ``[B, F]``."""
        _check("x", x, self._x)
        self._x.copy_(x)
        self._graph.replay()
        return self._y

    @torch.no_grad()
    def reset(self, state: State | None = None) -> None:
        """Set the state, to the first one by default."""
        state = self._first if state is None else state
        for own, given in zip(_tensors(self.state), _tensors(state), strict=True):
            _check("state", given, own)
        _copy(self.state, state)


def _autocast_without_cache() -> torch.autocast:
    """Autocast as it is now. Its cache of cast weights is emptied later, while the graph would still read from it."""
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=False)


def _check(name: str, x: Tensor, own: Tensor) -> None:
    """Raise unless x can take the place of ``own``: ``copy_`` would expand and convert it."""
    if x.shape != own.shape or x.dtype != own.dtype:
        raise ValueError(
            f"{name} must be like the first one, {own.dtype} of shape {list(own.shape)}, "
            f"got {x.dtype} of shape {list(x.shape)}"
        )


def _first_state(module: Stepping, x: Tensor) -> State:
    if isinstance(module, SequenceModel):
        return module.initial_state(x.shape[0], x)
    assert isinstance(module, Recurrent)
    return module.initial_state(x.shape[:-1], x)


def _clone(state: State) -> State:
    if isinstance(state, Tensor):
        return state.clone()
    return ModelState(state.position.clone(), tuple(x.clone() for x in state.cells))


def _copy(target: State, source: State) -> None:
    for x, y in zip(_tensors(target), _tensors(source), strict=True):
        x.copy_(y)


def _tensors(state: State) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [state.position, *state.cells]

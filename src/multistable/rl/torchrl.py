"""Any layer in the place of TorchRL's ``GRUModule``: :class:`RecurrentModule`."""

# TorchRL and tensordict are only partly typed.
# pyright: basic

from typing import Any

import torch
from tensordict import TensorDictBase, unravel_key_list
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer
from torchrl.modules import recurrent_mode

from multistable.layers.base import Recurrent

__all__ = ["RecurrentModule"]

Key = Any  # a string, or a tuple of strings for a nested entry


class RecurrentModule(TensorDictModuleBase):
    """A layer or a :class:`~multistable.Stack` that reads and writes tensordicts, as ``torchrl.modules.GRUModule``.

    Step mode, in collectors: one timestep of every environment. A tensordict of any batch size, with the input
    ``[*, D]``, the state ``[*, num_layers, S]`` and ``is_init [*, 1]``, gets the output ``[*, F]`` and the new state.

    Recurrent mode, in losses (``torchrl.modules.set_recurrent_mode``): the last batch axis is time, and all timesteps
    are computed in one call. Only the state at the first timestep is read. Of the new states only the one behind the
    last timestep is given, and zeros elsewhere.

    In both modes the state starts anew *before* a timestep with ``is_init``: at zero, or where the layer starts. So
    the first observation of an episode is remembered, and nothing before it.

    Args:
        rnn: the layer, with ``batch_first=True``.
        in_key, out_key: input and output; the state is then ``"recurrent_state"``. Or:
        in_keys, out_keys: input and state; output and new state, such as ``("next", "state")``.
        default_recurrent_mode: the mode outside of ``set_recurrent_mode``. Default: ``False``

    Unlike ``GRUModule``, it gives no state at the ends of episodes inside a sequence in recurrent mode, and the state
    that an episode starts from in the middle of a sequence is not read from the tensordict.

    Example:
        >>> from tensordict import TensorDict
        >>> from multistable import Stack
        >>> rnn = RecurrentModule(Stack("hybrid", 3, 8, batch_first=True), in_key="observation", out_key="features")
        >>> step = TensorDict({"observation": torch.randn(5, 3), "is_init": torch.ones(5, 1, dtype=torch.bool)}, [5])
        >>> step = rnn(step)
        >>> step["features"].shape, step["next", "recurrent_state"].shape
        (torch.Size([5, 8]), torch.Size([5, 1, 8]))
    """

    def __init__(
        self,
        rnn: Recurrent,
        *,
        in_key: Key | None = None,
        in_keys: list[Key] | None = None,
        out_key: Key | None = None,
        out_keys: list[Key] | None = None,
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        if not rnn.batch_first:
            raise ValueError("rnn must have batch_first=True")
        self.rnn = rnn
        self.in_keys = [*_pair("in", in_key, in_keys, "recurrent_state"), "is_init"]
        self.out_keys = _pair("out", out_key, out_keys, ("next", "recurrent_state"))
        self.default_recurrent_mode = default_recurrent_mode

    @property
    def recurrent_mode(self) -> bool:
        """True if the last batch axis is time: set by ``set_recurrent_mode``, otherwise the default."""
        mode = recurrent_mode()
        return self.default_recurrent_mode if mode is None else mode

    @property
    def state_shape(self) -> tuple[int, int]:
        return self.rnn.num_layers * len(self.rnn.directions), self.rnn.state_size

    @dispatch()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        x, is_init = tensordict.get(self.in_keys[0]), tensordict.get("is_init", None)
        if x is None:
            raise KeyError(f"the tensordict has no {self.in_keys[0]!r}")
        if is_init is None:
            raise KeyError(
                'the tensordict has no "is_init": give the environment the transform torchrl.envs.InitTracker'
            )
        run = self._run_sequence if self.recurrent_mode else self._run_step
        output, state = run(x, tensordict.get(self.in_keys[1], None), is_init, tensordict.batch_size)
        tensordict.set(self.out_keys[0], output)
        tensordict.set(self.out_keys[1], state)
        return tensordict

    def _run_step(self, x: Tensor, state: Tensor | None, is_init: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        x = x.reshape(-1, x.shape[-1])
        start = self.rnn.initial_state((len(x),), x)  # [L, B, S]
        if state is not None:
            state = state.reshape(-1, *self.state_shape).transpose(0, 1)
            start = torch.where(is_init.reshape(1, -1, 1), start, state.to(start.dtype))
        output, state = self.rnn.step(x, start)
        return output.reshape(*shape, -1), state.transpose(0, 1).reshape(*shape, *self.state_shape)

    def _run_sequence(
        self, x: Tensor, state: Tensor | None, is_init: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        if not shape:
            raise ValueError("in recurrent mode the last batch axis is time: the tensordict must have one")
        x = x.reshape(-1, shape[-1], x.shape[-1])  # [B, T, D]
        if state is not None:
            state = state.reshape(*x.shape[:2], *self.state_shape)[:, 0].transpose(0, 1).to(x.dtype).contiguous()
        output, h_n = self.rnn(x, state, reset=is_init.reshape(x.shape[:2]))
        last = h_n.transpose(0, 1).unsqueeze(1)  # [B, 1, L, S]
        states = torch.cat([last.new_zeros(len(x), shape[-1] - 1, *self.state_shape), last], dim=1)
        return output.reshape(*shape, -1), states.reshape(*shape, *self.state_shape)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The environment's transform that adds the state, so that it is passed on from step to step."""
        if self.out_keys[1] != ("next", *_as_tuple(self.in_keys[1])):
            raise RuntimeError(
                f"a primer needs the new state under ('next', key of the state), got {self.out_keys[1]!r} "
                f"for the state {self.in_keys[1]!r}"
            )
        dtype = next((parameter.dtype for parameter in self.rnn.parameters()), torch.float32)
        return TensorDictPrimer(
            {self.in_keys[1]: Unbounded(torch.Size(self.state_shape), dtype=dtype)}, expand_specs=True
        )


def _pair(which: str, key: Key | None, keys: list[Key] | None, state: Key) -> list[Key]:
    """The keys of the value and of the state, from one key or from two."""
    if (key is None) == (keys is None):
        raise ValueError(f"give either {which}_key or {which}_keys, got {key!r} and {keys!r}")
    pair = unravel_key_list([key, state] if keys is None else list(keys))
    if which == "in" and pair[-1] == "is_init":
        pair = pair[:-1]
    if len(pair) != 2:
        raise ValueError(f"{which}_keys must be a value and a state, got {keys!r}")
    return pair


def _as_tuple(key: Key) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)

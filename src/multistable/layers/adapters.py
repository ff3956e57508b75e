"""Adapters for code that was written for other modules: :class:`LikeLSTM`."""

from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multistable.layers.base import Recurrent

__all__ = ["LikeLSTM"]


class LikeLSTM(nn.Module):
    """Any layer in the place of :class:`torch.nn.LSTM`: states are pairs ``(h, c)``.

    ``c`` is the state of the layer and ``h`` a copy of it, so that code that reads ``h_n`` gets the last states. Only
    ``c`` is read: it is what the layer carries on.

    Args:
        rnn: a layer of this library or a :class:`~multistable.Stack`.

    Inputs and outputs are those of ``rnn`` with ``(h, c)`` for each state. The usual attributes of an LSTM
    (``hidden_size``, ``num_layers``, ``batch_first``, ...) are those of ``rnn``.

    Example:
        >>> import torch
        >>> from multistable import BMRU
        >>> rnn = LikeLSTM(BMRU(10, 20))
        >>> output, (h_n, c_n) = rnn(torch.randn(5, 3, 10))
        >>> output, state = rnn(torch.randn(5, 3, 10), (h_n, c_n))
        >>> output.shape, c_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 20]))
    """

    proj_size = 0

    def __init__(self, rnn: Recurrent) -> None:
        super().__init__()
        if isinstance(rnn, nn.LSTM | LikeLSTM):
            kind = "nn.LSTM" if isinstance(rnn, nn.LSTM) else "LikeLSTM"
            raise TypeError(f"rnn must be a layer of this library, got {kind}, whose states are pairs already")
        self.rnn = rnn

    def forward(
        self, input: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None = None, **options: Any
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """``options`` are ``reset``, ``lengths`` and ``mask``."""
        output, state = self.rnn(input, _state_of("hx", hx), **options)
        return output, (state.clone(), state)

    def step(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, new = self.rnn.step(x, _state_of("state", state))
        return output, (new.clone(), new)

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        state = self.rnn.initial_state(shape, like)
        return state.clone(), state

    def flatten_parameters(self) -> None:
        """Do nothing; code written for ``nn.LSTM`` calls it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("batch_first", "dropout"):  # as of an LSTM, they may be changed
            setattr(self.rnn, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "rnn" or name.startswith("__"):
                raise
            return getattr(self.rnn, name)


def _state_of(name: str, pair: object) -> Tensor | None:
    if pair is None:
        return None
    kind, parts = type(pair).__name__, cast("list[object]", pair if isinstance(pair, tuple | list) else [])
    if len(parts) != 2 or not isinstance(parts[0], Tensor) or not isinstance(parts[1], Tensor):
        raise TypeError(f"{name} must be a pair of tensors (h, c), got {kind}")
    return parts[1]

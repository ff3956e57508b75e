"""Any layer in the recurrent policies of sb3-contrib: :class:`RecurrentPolicy`."""

# Stable-Baselines3 is only partly typed.
# pyright: basic

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from multistable.layers.base import Recurrent
from multistable.layers.bmru import BMRU
from multistable.models.stack import Stack

__all__ = ["RecurrentPolicy"]


class RecurrentPolicy(RecurrentActorCriticPolicy):
    """The policy of ``sb3_contrib.RecurrentPPO`` with any layer in the place of ``nn.LSTM``.

    A rollout is recomputed in one call, in which ``reset`` restarts the state before the first step of each episode;
    sb3-contrib loops over time if an episode starts within the sequence.

    Args:
        rnn: what is called in the place of ``nn.LSTM``: a layer's class, or for the blocks
            ``functools.partial(Stack, "hybrid")``. Default: :class:`~multistable.BMRU`
        lstm_hidden_size, n_lstm_layers, lstm_kwargs: sizes and further arguments of ``rnn``.

    The other arguments are those of ``RecurrentActorCriticPolicy``. For images hand on
    ``features_extractor_class=NatureCNN``, for dictionaries ``CombinedExtractor``.

    Example:
        >>> from functools import partial
        >>> from multistable import Stack
        >>> from sb3_contrib import RecurrentPPO
        >>> settings = dict(rnn=partial(Stack, "hybrid"), lstm_hidden_size=16)
        >>> model = RecurrentPPO(RecurrentPolicy, "CartPole-v1", policy_kwargs=settings, device="cpu")
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *args: Any,
        rnn: Callable[..., Recurrent] = BMRU,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(rnn) or rnn is Stack:
            raise TypeError(f"rnn must be a layer's class, or functools.partial(Stack, 'hybrid'), got {rnn!r}")
        sizes: dict[str, Any] = {"lstm_hidden_size": lstm_hidden_size, "n_lstm_layers": n_lstm_layers}
        super().__init__(observation_space, action_space, lr_schedule, *args, **sizes, **kwargs)
        self.constructor_options = sizes | {"rnn": rnn, "lstm_kwargs": lstm_kwargs}
        self.lstm_kwargs = lstm_kwargs or {}
        names = ["lstm_actor"] if self.lstm_critic is None else ["lstm_actor", "lstm_critic"]
        for name in names:
            layer = rnn(
                self.features_dim, lstm_hidden_size, num_layers=n_lstm_layers, batch_first=True, **self.lstm_kwargs
            )
            setattr(self, name, _WithLSTMSizes(layer))
        self.lstm_hidden_state_shape = (n_lstm_layers, 1, self.lstm_actor.hidden_size)
        # The parent's optimiser holds the parameters of its LSTMs.
        options: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **options)

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: "_WithLSTMSizes"
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Features ``[B * T, D]`` of B sequences, their states and their marks -> outputs ``[B * T, F]``, states."""
        B = lstm_states[1].shape[1]
        x, reset = features.reshape(B, -1, lstm.input_size), episode_starts.reshape(B, -1) > 0
        output, state = lstm.rnn(x, lstm_states[1], reset=reset)
        return output.flatten(0, 1), (state, state)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """As in the parent class; without a state, every environment starts in the layer's initial state."""
        if state is None:
            batch, _ = self.obs_to_tensor(observation)
            episode_start = np.ones(len(next(iter(batch.values())) if isinstance(batch, dict) else batch), dtype=bool)
        return super().predict(observation, state, episode_start, deterministic)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Arguments that ``save`` stores; sb3-contrib leaves out the sizes of the LSTM."""
        options = {"shared_lstm": self.shared_lstm, "enable_critic_lstm": self.enable_critic_lstm}
        return super()._get_constructor_parameters() | self.constructor_options | options


class _WithLSTMSizes(nn.Module):
    """A layer with the sizes of ``nn.LSTM`` by which RecurrentPPO allocates ``(h, c)``; both are the layer's state."""

    def __init__(self, rnn: Recurrent) -> None:
        super().__init__()
        self.rnn = rnn
        self.input_size = rnn.input_size
        self.num_layers = rnn.num_layers
        self.hidden_size = rnn.state_size

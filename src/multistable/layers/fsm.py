"""Finite state machines as units, with the interface of ``torch.nn.GRU``: :class:`FSM`."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from multistable.layers.base import Recurrent, init_linear
from multistable.layers.sequences import Steps
from multistable.ops import pieces
from multistable.ops.checks import check_alpha_surr, check_choice, check_sizes
from multistable.ops.layer_scans import map_path, map_states, pack_maps
from multistable.ops.maps import MOST_STATES
from multistable.ops.numerics import aligned, wide
from multistable.ops.portable import previous
from multistable.surrogate import largest

__all__ = ["FSM", "Surrogate", "Transitions"]

Transitions = Literal["any", "set", "count"]
Surrogate = Literal["softmax", "margin", "gumbel"]


class FSM(Recurrent):
    r"""Finite state machines whose input chooses their transitions, called like :class:`torch.nn.GRU`.

    Each of N units has a state :math:`s_t` out of K. The input scores every transition from i to j, the largest score
    of each i decides, and a value vector reads the state out:

    .. math::
        a_t = W x_t + b, \qquad
        m_t(i) = \arg\max_j a_{t, ij}, \qquad
        s_t = m_t(s_{t-1}), \qquad
        h_t = v_{s_t}

    The maps :math:`m_t` do not depend on the state, so all timesteps are computed in parallel
    (:func:`~multistable.ops.map_scan`). States are numbers that are looked up: a machine that is right is right at
    every length.

    Backward, with :math:`\lambda_t(k)` the loss, to first order, of being in state k at step t,

    .. math:: \lambda_t(k) = \langle \nabla_{h_t} L, v_k \rangle + \lambda_{t+1}(m_{t+1}(k)),

    the scores :math:`a_{t, ij}` of the realised column, :math:`i = s_{t-1}`, receive the gradient of a choice that is
    worth :math:`\lambda_t(j)`, see ``surrogate``. It neither fades nor grows with the length.

    Args:
        input_size, num_layers, bias, batch_first, dropout, bidirectional, backend, device, dtype: as in
            :class:`~multistable.BMRU`.
        hidden_size: number of features, ``N * value_size``.
        n_states: K, from 1 to 16. Default: 4
        value_size: the length of value vectors; ``hidden_size`` must be a multiple of it. With 1 a linear read-out sees
            a level of each unit, with K it can tell all states apart. Default: 1
        transitions: ``"any"``: every map of the K states, :math:`K^2` scores per unit. ``"set"``: set the state to one
            of K or keep it, K + 1 scores; with K = 2 that is a :class:`~multistable.BMRU`. ``"count"``: to the next
            state, to the one before, or keep it, 3 scores; the first and the last state are where counting ends.
            Default: ``"any"``
        surrogate: the gradient of a choice (:func:`multistable.surrogate.largest`). ``"softmax"``: the derivative of a
            softmax. ``"margin"``: each comparison of the largest score with another has the BMRU's surrogate
            derivative. ``"gumbel"``: the softmax, and in training the scores have Gumbel noise, forward and backward,
            so that transitions are drawn with the softmax's probabilities. The word problem of S3 was learnt with 5 of
            5, 5 of 5 and 4 of 5 seeds (docs/machines.md). Default: ``"softmax"``
        alpha_surr: sharpness of the surrogate ``"margin"``. Default: 1.0

    Inputs and outputs are those of :class:`~multistable.BMRU`, but the carried state has more entries than features:
    first the ``hidden_size`` features, then the states as one-hot vectors, ``N * K`` numbers, which carry the gradient
    from chunk to chunk. Zeros, the default, and ``reset`` mean state 0 of every unit.

    Attributes:
        weight_ih_l[k]: ``[N * M, D]``, M = ``K * K`` scores per unit, from state i to j at ``i * K + j``, or as many as
            there are transitions to choose from, in the order above.
        bias_ih_l[k]: ``[N * M]``.
        value_l[k]: ``[N, K, value_size]``. Initially levels from 1 to -1, or normal for vectors.

    A NaN among the scores that decide makes that step's features NaN, and its state 0.

    Example:
        >>> rnn = FSM(10, 20, n_states=3)
        >>> output, h_n = rnn(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([1, 3, 80]))
    """

    parallel = True

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
        n_states: int = 4,
        value_size: int = 1,
        transitions: Transitions = "any",
        surrogate: Surrogate = "softmax",
        alpha_surr: float = 1.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, backend=backend
        )
        check_sizes(1, n_states=n_states, value_size=value_size)
        if n_states > MOST_STATES:
            raise ValueError(f"n_states must be at most {MOST_STATES}, got {n_states}")
        if hidden_size % value_size:
            raise ValueError(f"hidden_size must be a multiple of value_size = {value_size}, got {hidden_size}")
        check_choice("transitions", transitions, get_args(Transitions))
        check_choice("surrogate", surrogate, get_args(Surrogate))
        check_alpha_surr(alpha_surr)
        self.n_states = n_states
        self.value_size = value_size
        self.transitions: Transitions = transitions
        self.surrogate: Surrogate = surrogate
        self.alpha_surr = alpha_surr
        self.create_parameters(device, dtype)

    @property
    def units(self) -> int:
        """N, the number of machines of one direction."""
        return self.hidden_size // self.value_size

    @property
    def state_size(self) -> int:
        return self.hidden_size + self.units * self.n_states

    def parameter_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        K = self.n_states
        scores = self.units * (K * K if self.transitions == "any" else len(self.table()))
        return {"weight_ih": (scores, width), "bias_ih": (scores,), "value": (self.units, K, self.value_size)}

    def init_layer(self, layer: int, reverse: bool) -> None:
        weight, bias, value = self.parameters_of(layer, reverse)
        init_linear(weight, bias)
        if self.value_size > 1:
            nn.init.normal_(value)
        else:
            with torch.no_grad():
                value.copy_(torch.linspace(1, -1, self.n_states, device="cpu")[:, None])

    def scores(self, x: Tensor, layer: int, reverse: bool = False) -> Tensor:
        """Scores of all transitions in the layout of x, ``[..., N, K, K]`` or ``[..., N, M]``, with noise."""
        scores, K = self.project(x, layer, reverse), self.n_states
        if self.surrogate == "gumbel" and self.training:
            # Drawn in float32: in float16 one in 40 million is rounded to 0, whose logarithm makes all gradients NaN.
            noise = torch.empty_like(scores, dtype=wide(scores.dtype)).exponential_().log()
            scores = scores - noise.to(scores.dtype)
        return torch.unflatten(scores, -1, (self.units, K, K) if self.transitions == "any" else (self.units, -1))

    def table(self, device: torch.device | None = None) -> Tensor:
        """The maps ``[M, K]`` that the largest of M scores chooses, unless ``transitions="any"``."""
        K, same = self.n_states, torch.arange(self.n_states, device=device)
        if self.transitions == "set":
            return torch.cat([same[:, None].expand(K, K), same[None]])
        return torch.stack([(same + 1).clamp(max=K - 1), (same - 1).clamp(min=0), same])

    def maps(self, scores: Tensor) -> Tensor:
        """The state after, for each state before, ``[..., N, K]`` uint8. A NaN among the scores leads to state 0."""
        best, choice = scores.max(-1)  # NaN is the largest
        if self.transitions == "any":
            return choice.masked_fill(best.isnan(), 0).byte()
        return self.table(scores.device)[choice].masked_fill(best.isnan()[..., None], 0).byte()

    def choose(self, scores: Tensor, before: Tensor, after: Tensor | None = None) -> Tensor:
        """One-hot vectors ``[..., N, K]`` of the states after, with a surrogate gradient, from the states before.

        ``after`` are the states that the largest scores lead to, if they are known.
        """
        alpha_surr = self.alpha_surr if self.surrogate == "margin" else None
        before, K = before.long(), self.n_states
        if self.transitions == "any":
            column = scores.gather(-2, before[..., None, None].expand(*before.shape, 1, K)).squeeze(-2)
            return largest(column, alpha_surr, after)
        choice = largest(scores, alpha_surr)
        leads = self.table(scores.device).T[before]  # [..., N, M]: where each choice leads
        leads = leads[..., None] == torch.arange(K, device=scores.device)
        return (choice[..., None] * leads.to(choice.dtype)).sum(-2)

    def read(self, path: Tensor, layer: int, reverse: bool = False) -> Tensor:
        """The state ``[..., S]``, features first, of one-hot states ``[..., N, K]``. The sums have one term each."""
        value = self.parameters_of(layer, reverse)[2].to(path.dtype)
        if self.value_size == 1:
            features = (path * value[..., 0]).sum(-1)  # einsum would multiply a matrix per unit
        else:
            features = torch.einsum("...nk,nkv->...nv", path, value).flatten(-2)
        return torch.cat([features, path.flatten(-2)], dim=-1)

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        scores, reset = self.scores(x, layer, reverse), steps.reset_of(reverse)
        if steps.valid is not None and (reverse or pieces.current() is not None):
            # Padding that comes before valid steps, or before other pieces, keeps the state.
            scores = torch.where(aligned(steps.valid, scores), scores, self.keeping(scores))
        scores = steps.swap_layout(scores)  # [B, T, N, ...]
        h0 = None if h0 is None else h0.to(scores.dtype)
        start = None if h0 is None else torch.unflatten(h0[:, self.hidden_size :], -1, (self.units, self.n_states))
        s0 = scores.new_zeros(steps.B, self.units, dtype=torch.uint8) if start is None else _index(start)
        options: dict[str, Any] = {"reset": reset, "reverse": reverse, "backend": self.backend}
        words = pack_maps(self.maps(scores.detach()), self.backend)
        states, entering = map_states(words, s0, K=self.n_states, **options)
        chosen = self.choose(scores, previous(states, entering, reset, reverse), states)
        h = self.read(map_path(chosen, words, start, **options), layer, reverse)  # [B, T, S]
        y = steps.swap_layout(h)
        h_last = steps.at_last_segment(y, steps.at_end(h, h0, reverse), reverse)
        return y[..., : self.hidden_size], h_last

    def keeping(self, scores: Tensor) -> Tensor:
        """Scores like the given ones that keep every state, ``[K, K]`` or ``[M]``."""
        M = scores.shape[-1]
        if self.transitions == "any":
            return torch.eye(M, dtype=scores.dtype, device=scores.device)
        return (torch.arange(M, device=scores.device) == M - 1).to(scores.dtype)

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(x, layer)
        before = torch.unflatten(h[..., self.hidden_size :], -1, (self.units, self.n_states)).to(scores.dtype)
        s = _index(before)
        path = self.choose(scores, s)
        if before.requires_grad:  # add zero, with the gradient that passes back through the map
            moved = self.maps(scores.detach()).long()[..., None] == torch.arange(self.n_states, device=x.device)
            before = before.nan_to_num()  # a step whose scores were NaN spoils no later one
            path = path + ((before - before.detach())[..., None] * moved).sum(-2)
        h = self.read(path, layer)
        return h[..., : self.hidden_size].clone(), h


def _index(one_hot: Tensor) -> Tensor:
    """The states ``[..., N]`` of one-hot vectors; zeros are state 0."""
    return one_hot.detach().argmax(-1).byte()

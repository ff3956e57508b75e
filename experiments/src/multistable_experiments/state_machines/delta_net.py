"""DeltaNet with eigenvalues from -1 to 1, a rival of machines: the delta rule, its layer, and blocks of it.

Yang et al. 2024, "Parallelizing linear transformers with the delta rule over sequence length"; Grazzi et al. 2024,
"Unlocking state-tracking in linear RNNs through negative eigenvalues". Shapes: B batch, T time, H width, n heads of d
numbers each, K = n * d.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.models.build import build_linear

__all__ = ["DeltaNet", "DeltaStack", "delta_rule"]

HEADS = 4
"""The default of the authors' layer; so many heads of four numbers learn parity in Grazzi et al."""
TAPS = 4
"""Steps that the short convolutions see, the present one included."""


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """``S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T`` and ``y_t = S_t q_t``, step by step.

    For keys of length 1 the factor of ``S_{t-1}`` has the eigenvalues 1 and ``1 - beta_t``.

    Args:
        q, k, v: ``[T, d, N]``; N counts sequences and heads, and is last because the matrices are tiny. (64 sequences
            of 128 steps, d = 5, with gradients, on one core: 13 ms; with batched matrix products 37 ms; 32 steps at a
            time, by solving a triangular system, 30 ms.)
        beta: ``[T, 1, N]``. state: ``S_0 [d, d, N]``; its rows are those of the values.

    Returns:
        ``y [T, d, N]`` and ``S_T``.
    """
    outputs: list[Tensor] = []
    for q_t, k_t, v_t, write_t in zip(q, k, v, beta * k, strict=True):
        error = v_t - (state * k_t).sum(1)  # of what S_{t-1} answers to the key
        state = state + error.unsqueeze(1) * write_t
        outputs.append((state * q_t).sum(1))
    return torch.stack(outputs), state


class DeltaNet(nn.Module):
    r"""``x [B, T, H]`` -> ``[B, T, H]``, and the state ``[B, S]``.

    .. math::
        \begin{aligned}
            q, k, v  &= \mathrm{SiLU}(\mathrm{conv}(W_{qkv} x))  && \text{each feature over the last four steps} \\
            q, k     &= q / |q|, \; k / |k|                      && \text{per head} \\
            \beta    &= 2 \sigma(W_\beta x)                      && \text{one per head} \\
            S_t      &= S_{t-1} (I - \beta_t k_t k_t^T) + \beta_t v_t k_t^T \\
            y_t      &= W_o \, \mathrm{RMSNorm}(S_t q_t)         && \text{per head}
        \end{aligned}

    Without biases. Form and initialisation are those of the layer in the experiments of Grazzi et al.: matrices uniform
    with 1/32 of Glorot's variance, convolutions as in ``nn.Conv1d``. Two things differ: a head has H / n numbers
    *rounded up*, so that H can be any number, and queries are not divided by the root of d, which the norm would undo.

    The state is the last three inputs of the convolutions, ``3 * 3K`` numbers, and ``S_T`` of all heads.
    """

    def __init__(self, width: int, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.size = -(-width // heads)
        K = heads * self.size
        self.qkv = nn.Linear(width, 3 * K, bias=False)
        self.conv = nn.Conv1d(3 * K, 3 * K, TAPS, groups=3 * K, bias=False)
        self.beta = nn.Linear(width, heads, bias=False)
        self.norm = nn.RMSNorm(self.size, eps=1e-5)
        self.out = nn.Linear(K, width, bias=False)
        for weight in (*self.qkv.weight.chunk(3), self.beta.weight, self.out.weight):
            nn.init.xavier_uniform_(weight, gain=2**-2.5)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        B, n, d = len(x), self.heads, self.size
        before, S = self.unpack(x.new_zeros(B, self.state_size) if state is None else state)
        features = torch.cat([before, self.qkv(x)], 1)  # [B, 3 + T, 3K]
        mixed = F.silu(self.conv(features.mT)).unflatten(1, (3, n, d))
        q, k, v = mixed.permute(1, 4, 3, 0, 2).flatten(3)  # [T, d, B * n] each
        y, S = delta_rule(unit(q), unit(k), v, self.rates(x).transpose(0, 1).flatten(1).unsqueeze(1), S)
        y = self.norm(y.unflatten(2, (B, n)).permute(2, 0, 3, 1)).flatten(2)  # [B, T, K]
        S = S.view(d * d, B, n).transpose(0, 1)
        return self.out(y), torch.cat([features[:, 1 - TAPS :].flatten(1), S.flatten(1)], 1)

    def rates(self, x: Tensor) -> Tensor:
        """``beta [B, T, n]``, between 0 and 2."""
        return 2 * torch.sigmoid(self.beta(x))

    @property
    def state_size(self) -> int:
        return self.heads * self.size * (3 * (TAPS - 1) + self.size)

    def unpack(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The last inputs of the convolutions, ``[B, 3, 3K]``, and ``S [d, d, B * n]``."""
        B, n, d = len(state), self.heads, self.size
        before, S = state.split([(TAPS - 1) * 3 * n * d, n * d * d], 1)
        return before.view(B, TAPS - 1, -1), S.view(B, d * d, n).transpose(0, 1).reshape(d, d, B * n)


def unit(x: Tensor) -> Tensor:
    """``x [T, d, N]`` divided by its length over d; ``F.normalize`` takes ten times as long on this axis."""
    return x * torch.rsqrt(x.square().sum(1, keepdim=True) + 1e-6)


class DeltaStack(nn.Module):
    """DeltaNet in the blocks of :class:`multistable.Stack`: ``y + GLU(cell(norm(y)))``, after a linear encoder and
    before a norm. ``x [B, T, A]`` -> ``[B, T, H]`` and the state ``[blocks, B, S]``."""

    def __init__(self, input_size: int, width: int, blocks: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.encoder = build_linear(input_size, width)
        self.cells = nn.ModuleList(DeltaNet(width) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.gates = nn.ModuleList(build_linear(width, 2 * width) for _ in range(blocks))
        self.norm_out = nn.LayerNorm(width)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self.encoder(x)
        before = [None] * len(self.cells) if state is None else state.unbind(0)
        after: list[Tensor] = []
        for cell, norm, gate, each in zip(self.cells, self.norms, self.gates, before, strict=True):
            y, last = cell(norm(x), each)
            x = x + F.glu(gate(y), -1)
            after.append(last)
        return self.norm_out(x), torch.stack(after)

"""GRU and LSTM for learners on a CPU: one loop over time for all episodes of a rollout, with a backward of its own.

The library runs episodes as a packed batch of torch's modules, which keep about 20 tensors per timestep for autograd.
Here the factors of the gradient are computed for all timesteps at once, and what is left in the loop is three to eight
operations: an update of a learner with 16 sequences of 128 steps takes half the time, less with short episodes. Weights
are those of the library's layers, under the same names, and so are numbers, up to rounding.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from multistable.layers.sequences import Steps
from multistable.layers.torch_rnn import GRU, LSTM

__all__ = ["LOOPED", "LoopedGRU", "LoopedLSTM"]


class LoopedGRU(GRU):
    """``GRU`` of the library whose segments run side by side in one loop."""

    def scan_segments(
        self, rnn: torch.nn.RNNBase, x: Tensor, h0: Tensor, steps: Steps, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        if steps.lengths is not None or reverse or steps.reset is None:
            return super().scan_segments(rnn, x, h0, steps, reverse)
        x, keep = steps.swap_layout(x).transpose(0, 1), (~steps.reset).to(x.dtype).T.unsqueeze(-1)  # [T, B, ...]
        weight_in, weight, bias_in, bias = rnn.all_weights[0]
        gates = torch.nn.functional.linear(x, weight_in, bias_in)
        h, last = self.loop(gates.contiguous(), h0, weight, bias, keep)
        return steps.swap_layout(h.transpose(0, 1)), last

    def loop(self, gates: Tensor, h0: Tensor, weight: Tensor, bias: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        h = _GRULoop.apply(gates, h0, weight, bias, keep)
        return h, h[-1]


class LoopedLSTM(LoopedGRU, LSTM):
    """``LSTM`` of the library, as :class:`LoopedGRU`."""

    def loop(self, gates: Tensor, h0: Tensor, weight: Tensor, bias: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        h, c = _LSTMLoop.apply(gates, h0, weight, bias, keep)
        return h, torch.cat([h[-1], c], dim=-1)


def backwards(parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """The parts ``[T, ...]`` at each timestep, the last first."""
    return zip(*(reversed(part.unbind(0)) for part in parts), strict=True)


LOOPED: dict[type[nn.Module], type[nn.Module]] = {GRU: LoopedGRU, LSTM: LoopedLSTM}
"""The names of these layers, by those of the library's."""


class _GRULoop(torch.autograd.Function):
    """``gates [T, B, 3N] = W_i x + b_i``, ``h0 [B, N]``, ``keep [T, B, 1]``, 0 before a first step -> ``h [T, B, N]``.

    With ``s = keep h'``, the state that enters, and ``G = W s + b``: ``r, z = sigmoid(gates_rz + G_rz)``,
    ``n = tanh(gates_n + r G_n)``, ``h = n + z (s - n)``.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h0: Tensor, weight: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
        T, B, N = *gates.shape[:2], h0.shape[-1]
        h, s, n = (gates.new_empty(T, B, N) for _ in range(3))
        G, rz = gates.new_empty(T, B, 3 * N), gates.new_empty(T, B, 2 * N)
        W, now, (r, z) = weight.T, h0, rz.chunk(2, dim=-1)
        ends = gates[..., : 2 * N], gates[..., 2 * N :], G[..., : 2 * N], G[..., 2 * N :]
        for at in zip(*(each.unbind(0) for each in (keep, s, G, rz, r, z, n, h, *ends)), strict=True):
            keep_t, s_t, G_t, rz_t, r_t, z_t, n_t, h_t, gates_rz, gates_n, G_rz, G_n = at
            torch.mul(now, keep_t, out=s_t)
            torch.addmm(bias, s_t, W, out=G_t)
            torch.add(gates_rz, G_rz, out=rz_t).sigmoid_()
            torch.addcmul(gates_n, r_t, G_n, out=n_t).tanh_()
            now = torch.lerp(n_t, s_t, z_t, out=h_t)
        ctx.save_for_backward(s, n, G, rz, weight, keep)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        s, n, G, rz, weight, keep = ctx.saved_tensors
        T, B, N = s.shape
        r, z = rz.chunk(2, dim=-1)
        through = (1 - z) * (1 - n * n)  # d h / d (argument of n)
        factors = torch.stack([through * G[..., 2 * N :] * r * (1 - r), (s - n) * z * (1 - z), through * r], dim=2)
        grads, all_h, now = torch.empty_like(factors), torch.empty_like(s), torch.zeros_like(s[0])
        parts = keep, grad, all_h, all_h.unsqueeze(2), factors, grads, grads.flatten(2), z
        for keep_t, grad_t, h_t, h_1, factor, out, flat, z_t in backwards(parts):
            torch.add(now, grad_t, out=h_t)
            torch.mul(h_1, factor, out=out)
            now = torch.addmm(h_t * z_t, flat, weight).mul_(keep_t)
        flat = grads.view(T * B, 3 * N)
        grad_gates = torch.cat([grads[:, :, :2].flatten(2), all_h * through], dim=-1)
        return grad_gates, now, flat.T @ s.view(T * B, N), flat.sum(dim=0), None


class _LSTMLoop(torch.autograd.Function):
    """``gates [T, B, 4N] = W_i x + b_i``, ``h0 [B, 2N]`` (h, then c), ``keep`` as above -> ``h [T, B, N]``, last c.

    ``i, f, o = sigmoid``, ``g = tanh`` of ``gates + W keep h' + b``, ``c = f keep c' + i g``, ``h = o tanh(c)``.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, h0: Tensor, weight: Tensor, bias: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        T, B, N = *gates.shape[:2], h0.shape[-1] // 2
        h, s, e, c, tanh_c = (gates.new_empty(T, B, N) for _ in range(5))  # s, e: h and c that enter
        a, W = gates + bias, weight.T
        now, cell = h0[:, :N], h0[:, N:]
        parts = keep, s, e, a, a[..., : 2 * N], *a.chunk(4, dim=-1), c, tanh_c, h
        for keep_t, s_t, e_t, a_t, both, i, f, g, o, c_t, tanh_t, h_t in zip(
            *(x.unbind(0) for x in parts), strict=True
        ):
            torch.mul(now, keep_t, out=s_t)
            torch.mul(cell, keep_t, out=e_t)
            a_t.addmm_(s_t, W)
            both.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            cell = torch.addcmul(f * e_t, i, g, out=c_t)
            now = torch.mul(o, torch.tanh(cell, out=tanh_t), out=h_t)
        ctx.save_for_backward(s, e, a, tanh_c, weight, keep)
        return h, c[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        s, e, a, tanh_c, weight, keep = ctx.saved_tensors
        T, B, N = s.shape
        i, f, g, o = a.chunk(4, dim=-1)
        of_c = torch.stack([g * i * (1 - i), e * f * (1 - f), i * (1 - g * g)], dim=2)
        of_o, through = tanh_c * o * (1 - o), o * (1 - tanh_c * tanh_c)
        grads, now, cell = a.new_empty(T, B, 4, N), torch.zeros_like(s[0]), grad_c
        parts = keep, grad, through, of_c, of_o, grads[:, :, :3], grads[:, :, 3], grads.flatten(2), f
        for keep_t, grad_t, through_t, of_c_t, of_o_t, out_c, out_o, flat, f_t in backwards(parts):
            now = now + grad_t
            cell = torch.addcmul(cell, now, through_t)
            torch.mul(cell.unsqueeze(1), of_c_t, out=out_c)
            torch.mul(now, of_o_t, out=out_o)
            now = torch.mm(flat, weight).mul_(keep_t)
            cell = (cell * f_t).mul_(keep_t)
        flat = grads.view(T * B, 4 * N)
        grad_h0 = torch.cat([now, cell], dim=-1)
        return grads.flatten(2), grad_h0, flat.T @ s.view(T * B, N), flat.sum(dim=0), None

"""``torch.nn.GRU`` and ``torch.nn.LSTM`` with the extra arguments and methods of this library's layers."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multistable.layers.base import Recurrent
from multistable.layers.sequences import Segment, Steps

__all__ = ["GRU", "LSTM"]


class GRU(Recurrent):
    """:class:`torch.nn.GRU` with ``reset``, ``lengths`` and :meth:`step`: a baseline called like the other layers.

    Arguments are those of :class:`torch.nn.GRU`, inputs and outputs those of :class:`~multistable.BMRU`. torch's fast
    kernels know neither padding nor segments, so with ``lengths`` or ``reset`` the segments are cut out and run as one
    packed batch.

    Attributes:
        rnn_l[k], rnn_l[k]_reverse: the ``nn.GRU`` of each layer and direction.
    """

    kind: ClassVar[type[nn.GRU] | type[nn.LSTM]] = nn.GRU
    runs_pieces = False

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        for layer in range(num_layers):
            for reverse in self.directions:
                rnn = self.kind(self.width(layer), hidden_size, bias=bias, device=device, dtype=dtype)
                self.add_module(f"rnn_l{layer}{'_reverse' if reverse else ''}", rnn)
        self.reset_parameters()

    def rnn(self, layer: int, reverse: bool = False) -> nn.RNNBase:
        """torch's module of one layer and direction."""
        return getattr(self, f"rnn_l{layer}{'_reverse' if reverse else ''}")

    def parameters_of(self, layer: int, reverse: bool = False) -> list[Any]:
        """Those of torch's module."""
        return self.rnn(layer, reverse).all_weights[0]

    def init_layer(self, layer: int, reverse: bool) -> None:
        self.rnn(layer, reverse).reset_parameters()

    def to_torch(self, h: Tensor) -> Any:
        """A state ``[..., S]`` as torch's module wants it, with a first axis of 1."""
        return h.unsqueeze(0).contiguous()

    def from_torch(self, h_n: Any) -> Tensor:
        """The inverse of :meth:`to_torch`."""
        return h_n.squeeze(0)

    def scan_layer(
        self, x: Tensor, layer: int, reverse: bool, h0: Tensor | None, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        rnn = self.rnn(layer, reverse)
        h0 = x.new_zeros(steps.B, self.state_size) if h0 is None else h0.to(x.dtype)
        if steps.lengths is not None or steps.reset is not None or x.shape[1 if steps.batch_first else 0] == 0:
            return self.scan_segments(rnn, x, h0, steps, reverse)  # torch's modules need T > 0
        x = x.transpose(0, 1) if steps.batch_first else x
        axes = (0,) if reverse else ()
        output, h_n = rnn(x.flip(axes), self.to_torch(h0))
        output = output.flip(axes)
        return output.transpose(0, 1) if steps.batch_first else output, self.from_torch(h_n)

    def scan_segments(
        self, rnn: nn.RNNBase, x: Tensor, h0: Tensor, steps: Steps, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        """Run each segment as a sequence of its own, all of them in one packed batch."""
        x = steps.swap_layout(x)
        B, T, D = x.shape
        segments = steps.segments(T)
        if not segments:  # nothing but padding, or no step at all
            return steps.swap_layout(x.new_zeros(B, T, self.hidden_size)), h0
        segments.sort(key=lambda s: s.start - s.end)  # the longest first, as in a PackedSequence
        places, batch_sizes = packed_places(segments, T, reverse)
        places = places.to(x.device)
        enters = torch.tensor([s.last if reverse else s.enters for s in segments], device=x.device)
        rows = torch.tensor([s.sequence for s in segments], device=x.device)
        starts = torch.where(enters[:, None], h0[rows], torch.zeros_like(h0[:1]))
        output, h_n = rnn(PackedSequence(x.reshape(B * T, D)[places], batch_sizes), self.to_torch(starts))
        states = self.from_torch(h_n)
        h = output.data.new_zeros(B * T, self.hidden_size).index_copy(0, places, output.data).view(B, T, -1)
        ends = torch.tensor([i for i, s in enumerate(segments) if s.last], device=x.device)
        return steps.swap_layout(h), h0.to(h.dtype).index_copy(0, rows[ends], states[ends])

    def step_layer(self, x: Tensor, layer: int, h: Tensor) -> tuple[Tensor, Tensor]:
        output, h_n = self.rnn(layer)(x.unsqueeze(0), self.to_torch(h.to(x.dtype)))
        return output.squeeze(0), self.from_torch(h_n)


class LSTM(GRU):
    """:class:`torch.nn.LSTM`, as :class:`GRU`; the state is one tensor, ``[..., 2N]``: h, then c."""

    kind = nn.LSTM

    @property
    def state_size(self) -> int:
        return 2 * self.hidden_size

    def to_torch(self, h: Tensor) -> Any:
        return tuple(part.unsqueeze(0).contiguous() for part in h.chunk(2, dim=-1))

    def from_torch(self, h_n: Any) -> Tensor:
        return torch.cat(h_n, dim=-1).squeeze(0)


def packed_places(segments: list[Segment], T: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """Where each entry of a packed batch of segments is found in ``[B * T]``, and the packed batch's sizes.

    The segments are sorted by length, the longest first. A packed batch has the first step of all segments, then the
    second step of those that have one, and so on. Both are on the CPU, where torch wants the sizes.
    """
    starts = [s.sequence * T + (s.end - 1 if reverse else s.start) for s in segments]
    lengths = torch.tensor([s.end - s.start for s in segments], device="cpu")
    first = torch.tensor(starts, device="cpu")
    t = torch.arange(int(lengths[0]), device="cpu")[:, None]
    present = t < lengths  # [longest, segments]
    return (first - t if reverse else first + t)[present], present.sum(dim=1)

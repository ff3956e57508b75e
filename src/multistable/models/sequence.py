"""The model: encoder, blocks, two fully connected layers, pooling; whole sequences, chunks of them or single steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import _register_namedtuple

from multistable.layers import BMRU
from multistable.layers.sequences import Steps, check_input
from multistable.models.block import Block, ReadOut, Timesteps
from multistable.models.config import ModelConfig
from multistable.models.norm import BatchNorm
from multistable.models.position import PositionEncoding, count_steps
from multistable.ops.numerics import wide

__all__ = ["Head", "ModelState", "SequenceModel"]


class ModelState(NamedTuple):
    """What a model carries from chunk to chunk: ``position [B]`` (steps seen) and one state per block."""

    position: Tensor
    cells: tuple[Tensor, ...]

    def map(self, function: Callable[[Tensor], Tensor]) -> "ModelState":
        """The state with ``function`` applied to each of its tensors."""
        return ModelState(function(self.position), tuple(function(h) for h in self.cells))

    def detach(self) -> "ModelState":
        """The same numbers without their history: gradients stop here."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> "ModelState":
        return self.map(lambda x: x.to(device))


# torch.export.save needs a name for it, and names this function as the way to give one; torch.load and
# torch.export.load read only what was said to be safe.
_register_namedtuple(ModelState, serialized_type_name="multistable.ModelState")
torch.serialization.add_safe_globals([ModelState])


class Head(nn.Module):
    """Two fully connected layers on every timestep, ``fc2(gelu(fc1(x)))``, then pooling of their outputs."""

    def __init__(self, fc1: nn.Linear, fc2: nn.Linear) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2

    def forward(self, x: Tensor) -> Tensor:
        """``[..., H] -> [..., d_output]``."""
        return self.fc2(F.gelu(self.fc1(x)))

    def mean(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """The mean of the outputs over valid steps, ``[B, T, H] -> [B, d_output]``.

        The second layer is affine, so the mean may go before it: T times less work.
        """
        x = F.gelu(self.fc1(x))
        if valid is None:
            return self.fc2(x.mean(dim=1))
        count = valid.sum(dim=1).clamp(min=1)
        total = torch.where(valid, x, 0.0).sum(dim=1, dtype=wide(x.dtype))  # in float16 it could overflow
        return self.fc2((total / count).to(x.dtype))


class SequenceModel(nn.Module):
    """Sequences ``[B, T, d_input]`` to outputs ``[B, d_output]`` (``[B, T, d_output]`` with pooling ``"none"``)::

        x = encoder(x)
        x = x + GLU(out_proj(cell(norm(x), position)))     for each block
        y = pool(fc2(gelu(fc1(x))))

    Built by :func:`~multistable.build_model`; ``config`` is what it was built from.

    A sequence may come in pieces, down to single timesteps; the state goes in and comes out:

        >>> from multistable import ModelConfig, build_model
        >>> model = build_model(ModelConfig(("hybrid",), d_input=2, d_output=1, d_model=8, d_state=8)).double().eval()
        >>> x = torch.randn(4, 30, 2).double()
        >>> whole, _ = model(x)
        >>> _, state = model(x[:, :20])
        >>> _, state = model(x[:, 20:29], state)
        >>> last, state = model.step(x[:, 29], state)
        >>> torch.allclose(last, whole)
        True
    """

    def __init__(
        self,
        encoder: nn.Linear,
        blocks: list[Block],
        head: Head,
        position: PositionEncoding | None,
        config: ModelConfig,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.position = position
        self.blocks = nn.ModuleList(blocks)
        self.head = head
        self.config = config

    def forward(
        self,
        x: Tensor,
        state: ModelState | None = None,
        *,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ModelState]:
        """Outputs, and the state to go on from.

        Args:
            x: ``[B, T, d_input]``; T may be 0 with pooling ``"none"`` only, since there is no output to pool.
            state: what the call for the chunk before returned; None at the beginning. Bidirectional models take none,
                because their reverse direction would need the future.
            reset: ``[B, T]`` booleans, the first steps of segments: states and positions start anew there.
            lengths: ``[B]``, the valid steps of right-padded sequences. Padding changes nothing, and outputs are zero
                there.

        Returns:
            ``y [B, d_output]``: the output at the last valid step, or the mean over the valid steps *of x*, or with
            pooling ``"none"`` all of them, ``[B, T, d_output]``; and the state behind the last valid step.
        """
        self._check(x, 3)
        if x.shape[1] == 0 and self.config.pooling != "none":
            raise ValueError(f"x must have timesteps for pooling {self.config.pooling!r}, got {list(x.shape)}")
        if state is not None and self.config.bidirectional:
            raise ValueError("state must be None for a bidirectional model: its reverse direction reads from the end")
        self._check_state(x, state)
        steps = Steps.of(x, True, reset, lengths)
        counts = count_steps(None if state is None else state.position, x.shape[1], steps.reset, x.device)
        x = self.encoder(steps.zero_padding(x))
        position = None if self.position is None else self.position(counts, x.dtype)
        timesteps = Timesteps(steps.valid, steps.reset, steps.lengths, position)
        pooling, states = self.config.pooling, []
        for i, block in enumerate(self._blocks):
            last = pooling == "last" and i == len(self.blocks) - 1
            x, h = block(x, None if state is None else state.cells[i], timesteps, last)
            states.append(h)
        y = self.head.mean(x, steps.valid) if pooling == "mean" else self.head(x)
        y = steps.zero_padding(y) if pooling == "none" else y
        return y, ModelState(self._seen(counts, state, steps), tuple(states))

    def step(self, x: Tensor, state: ModelState | None = None) -> tuple[Tensor, ModelState]:
        """One timestep of inference, ``x [B, d_input] -> y [B, d_output]``, with the running statistics, no dropout.

        Equal to :meth:`forward` in evaluation mode with pooling ``"none"``, timestep for timestep.
        """
        self._check(x, 2)
        self._check_state(x, state)
        state = self.initial_state(x.shape[0], x) if state is None else state
        x = self.encoder(x)
        position = None if self.position is None else self.position(state.position, x.dtype)
        states = []
        for block, h in zip(self._blocks, state.cells, strict=True):
            x, h = block.step(x, h, position)
            states.append(h)
        return self.head(x), ModelState(state.position + 1, tuple(states))

    def initial_state(self, B: int, like: Tensor) -> ModelState:
        """The state before the first step: zeros, on the device and in the dtype of ``like``."""
        directions = 2 if self.config.bidirectional else 1
        cells = tuple(like.new_zeros(directions, B, block.cell.state_size) for block in self._blocks)
        return ModelState(like.new_zeros(B, dtype=torch.int64), cells)

    def bmru_parameters(self) -> list[nn.Parameter]:
        """The parameters with the paper's weight decay for BMRU: its projections, alpha, and its part of read-outs."""
        found = []
        for module in self.modules():
            if isinstance(module, BMRU):
                found += module.parameters()
            if isinstance(module, ReadOut):
                found += [weight for name, weight in module.named_parameters() if name == "bmru"]
        return found

    def synchronize_norms(self) -> None:
        """From now on the statistics of batch norm are those of all processes of ``torch.distributed`` together."""
        for module in self.modules():
            if isinstance(module, BatchNorm):
                module.synchronized = True

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, complete or not at all."""
        from multistable.models import files  # builds models, so it comes after this module

        files.save(self, folder)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, device: torch.device | str = "cpu", **hub_options: Any
    ) -> "SequenceModel":
        """A saved model in evaluation mode: from a folder, or else from the repository of that name on the Hub.

        ``hub_options`` are ``revision``, ``token``, ``cache_dir``, ``local_files_only`` and ``force_download``.
        """
        if Path(source).is_dir():
            from multistable.models import files

            return files.load(source, device)
        if isinstance(source, Path) or source.count("/") > 1 or source.startswith((".", "/", "~")):
            raise FileNotFoundError(f"{source} is no folder, and no name on the Hub (name or owner/name)")
        hub = _hub(f"{source} is no folder; looking for it on the Hub")
        return hub.from_pretrained(str(source), **hub_options).model.to(device)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to the repository ``repo_id`` ("name" or "owner/name") and return the address of the commit.

        ``options`` are those of ``huggingface_hub.ModelHubMixin.push_to_hub``, such as ``private`` and ``token``.
        """
        hub = _hub("push_to_hub")
        return hub(self).push_to_hub(repo_id, **options)

    @property
    def _blocks(self) -> list[Block]:
        return cast("list[Block]", self.blocks)

    def _seen(self, counts: Tensor, state: ModelState | None, steps: Steps) -> Tensor:
        """``[B]``, the steps that the state behind this chunk has seen since the last reset."""
        if steps.lengths is None and counts.shape[1] > 0:
            return counts[:, -1].expand(steps.B) + 1
        before = counts.new_zeros(steps.B) if state is None else state.position
        if steps.lengths is None:
            return before
        return steps.at_last_valid(counts.expand(steps.B, -1)[..., None] + 1, before[:, None])[:, 0]

    def _check(self, x: Any, ndim: int) -> None:
        check_input(self, "x", x)
        shape = "[B, T, " if ndim == 3 else "[B, "
        if x.ndim != ndim or x.shape[-1] != self.encoder.in_features:
            raise ValueError(f"x must have shape {shape}{self.encoder.in_features}], got {list(x.shape)}")

    def _check_state(self, x: Tensor, state: Any) -> None:
        """Refuse another thing than a state of this model for as many sequences; cells look at their own numbers."""
        if state is None:
            return
        if not isinstance(state, ModelState):
            raise TypeError(f"state must be a ModelState, as a call returns it, got {type(state).__name__}")
        if len(state.cells) != len(self.blocks):
            raise ValueError(f"state must be of {len(self.blocks)} blocks, got one of {len(state.cells)}")
        if state.position.shape != x.shape[:1]:
            raise ValueError(f"state must be of {len(x)} sequences, got positions {list(state.position.shape)}")


def _hub(purpose: str) -> Any:
    """The class that moves models to and from the Hub."""
    try:
        from multistable.models.hub import OnHub
    except ImportError as error:
        raise ImportError(f"{purpose} needs huggingface_hub: pip install 'multistable[hub]'") from error
    return OnHub

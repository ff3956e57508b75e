"""The model: encoder, blocks, two fully connected layers, pooling. It runs sequences, chunks or single steps."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import _register_namedtuple  # pyright: ignore[reportPrivateUsage]

from multistable.layers.checks import check_input
from multistable.layers.sequences import Steps
from multistable.models.block import Block, is_plain
from multistable.models.config import ModelConfig
from multistable.models.norm import BatchNorm, LayerNorm
from multistable.models.position import PositionEncoding, count_steps
from multistable.ops import pieces
from multistable.ops.numerics import wide

__all__ = ["Head", "ModelState", "SequenceModel", "encode"]


class ModelState(NamedTuple):
    """What a model carries from chunk to chunk: ``position [B]``, the steps seen, and the state of each block's layer,
    ``[directions, B, S]``."""

    position: Tensor
    cells: tuple[Tensor, ...]

    def detach(self) -> "ModelState":
        """Detach every tensor, so that gradients stop here."""
        return ModelState(self.position.detach(), tuple(h.detach() for h in self.cells))

    def to(self, device: torch.device | str) -> "ModelState":
        """Move every tensor to ``device``."""
        return ModelState(self.position.to(device), tuple(h.to(device) for h in self.cells))


# torch.export.save asks for this function in an error message; torch.load and torch.export.load accept known classes.
_register_namedtuple(ModelState, serialized_type_name="multistable.ModelState")
torch.serialization.add_safe_globals([ModelState])  # pyright: ignore[reportUnknownMemberType]


class Head(nn.Module):
    """Two fully connected layers on every timestep, ``fc2(gelu(fc1(x)))``, then pooling of their outputs; with
    ``norm``, ``fc2(gelu(fc1(norm(x))))``."""

    def __init__(self, fc1: nn.Linear, fc2: nn.Linear, norm: LayerNorm | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.fc1 = fc1
        self.fc2 = fc2

    def forward(self, x: Tensor) -> Tensor:
        """``[..., H] -> [..., d_output]``."""
        return self.fc2(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """``[..., H] -> [..., H]``."""
        return F.gelu(self.fc1(x if self.norm is None else self.norm(x)))

    def mean(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """The mean of the outputs over valid steps, ``[B, T, H] -> [B, d_output]``.

        The mean is taken before the second layer, which is affine: T times less work.
        """
        x = self.hidden(x)
        cut = pieces.current()
        if valid is None and cut is None:
            return self.fc2(x.mean(dim=1))
        valid = torch.ones_like(x[..., :1], dtype=torch.bool) if valid is None else valid
        count = valid.sum(dim=1)
        total = torch.where(valid, x, 0.0).sum(dim=1, dtype=wide(x.dtype))  # in float16 it could overflow
        if cut is not None:
            count, total = cut.sum(count), cut.sum(total)
        return self.fc2((total / count.clamp(min=1)).to(x.dtype))


class SequenceModel(nn.Module):
    """Map sequences ``[B, T, d_input]`` to outputs ``[B, d_output]`` (``[B, T, d_output]`` with pooling ``"none"``)::

        x = encoder(x)
        x = x + GLU(out_proj(cell(norm(x), position)))     for each block
        y = pool(fc2(gelu(fc1(x))))               or gelu(fc1(norm(x))), if the configuration says so

    Built by :func:`~multistable.build_model` from ``config``. There is no softmax at the end: for classes, give the
    outputs to ``F.cross_entropy`` as they are.

    A sequence may be processed in chunks, down to single timesteps; the state goes in and comes out:

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
        """Process a batch of sequences, or the next chunk of each.

        Args:
            x: ``[B, T, d_input]``; T may be 0 with pooling ``"none"`` only, otherwise there is no output to pool.
            state: the state that the call for the previous chunk returned; None at the beginning. Must be None for
                bidirectional models, because their reverse direction would need the future.
            reset: ``[B, T]`` booleans, the first steps of segments: positions restart from zero there, states
                as at the beginning.
            lengths: ``[B]``, the valid steps of right-padded sequences. Padding changes nothing, and outputs are zero
                there.

        Returns:
            ``y [B, d_output]``, the output at the last valid step or the mean over the valid steps *of x*, or with
            pooling ``"none"`` every output, ``[B, T, d_output]``; and the state after the last valid step.
        """
        self._check(x, 3)
        if x.shape[1] == 0 and self.config.pooling != "none" and pieces.current() is None:
            raise ValueError(f"x must have timesteps for pooling {self.config.pooling!r}, got {list(x.shape)}")
        if state is not None and self.config.bidirectional:
            raise ValueError("state must be None for a bidirectional model: its reverse direction reads from the end")
        self._check_state(x, state)
        steps = Steps.of(x, True, reset, lengths, both_ways=False)
        counts, after = _positions(x, state, steps)
        x = encode(self.encoder, steps.zero_padding(x))
        position = None if self.position is None else self.position(counts, x.dtype)
        pooling = self.config.pooling
        states: list[Tensor] = []
        for i, block in enumerate(self._blocks):
            last = pooling == "last" and i == len(self.blocks) - 1
            x, h = block(x, None if state is None else state.cells[i], steps, position, last)
            states.append(h)
        y = self.head.mean(x, steps.valid) if pooling == "mean" else self.head(x)
        y = steps.zero_padding(y) if pooling == "none" else y
        return y, ModelState(after, tuple(states))

    def step(self, x: Tensor, state: ModelState | None = None) -> tuple[Tensor, ModelState]:
        """Compute one timestep, ``x [B, d_input] -> y [B, d_output]``, as :meth:`forward` does in evaluation mode with
        pooling ``"none"``, even if the model is in training mode."""
        self._check(x, 2)
        self._check_state(x, state)
        state = self.initial_state(x.shape[0], x) if state is None else state
        x = self.encoder(x)
        position = None if self.position is None else self.position(state.position, x.dtype)
        states: list[Tensor] = []
        for block, h in zip(self._blocks, state.cells, strict=True):
            x, h = block.step(x, h, position)
            states.append(h)
        return self.head(x), ModelState(state.position + 1, tuple(states))

    def initial_state(self, B: int, like: Tensor) -> ModelState:
        """The state before the first step, for which None stands; zeros have the device and dtype of ``like``."""
        cells = tuple(block.cell.initial_state((B,), like) for block in self._blocks)
        return ModelState(like.new_zeros(B, dtype=torch.int64), cells)

    def synchronize_norms(self) -> None:
        """Compute the statistics of batch norm over all processes of ``torch.distributed`` from now on."""
        for module in self.modules():
            if isinstance(module, BatchNorm):
                module.synchronized = True

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, each completely or not at all."""
        from multistable.models import files  # imports this module

        files.save(self, folder)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, device: torch.device | str = "cpu", **hub_options: Any
    ) -> "SequenceModel":
        """Load a saved model, in evaluation mode, from a folder or from the Hugging Face Hub ("owner/name").

        ``hub_options`` are those of ``huggingface_hub.hf_hub_download``, such as ``revision`` and ``token``.
        """
        from multistable.models import files

        if not Path(source).is_dir():
            if isinstance(source, Path) or source.count("/") > 1 or source.startswith((".", "/", "~")):
                raise FileNotFoundError(f"{source} is neither a folder nor a name on the Hub (name or owner/name)")
            source = files.download(source, **hub_options)
        return files.load(source, device)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to the repository ``repo_id`` ("owner/name") on the Hugging Face Hub and return the commit's address.

        ``options`` are ``private``, ``token``, and those of ``huggingface_hub.HfApi.upload_folder``.
        """
        from multistable.models import files

        return files.upload(self, repo_id, **options)

    @property
    def _blocks(self) -> list[Block]:
        return cast("list[Block]", self.blocks)

    def _check(self, x: Any, ndim: int) -> None:
        check_input(self, "x", x)
        shape = "[B, T, " if ndim == 3 else "[B, "
        if x.ndim != ndim or x.shape[-1] != self.encoder.in_features:
            raise ValueError(f"x must have shape {shape}{self.encoder.in_features}], got {list(x.shape)}")

    def _check_state(self, x: Tensor, state: Any) -> None:
        """Raise unless ``state`` fits the model and the batch; layers check their own tensors."""
        if state is None:
            return
        if not isinstance(state, ModelState):
            raise TypeError(f"state must be a ModelState, as a call returns it, got {type(state).__name__}")
        if len(state.cells) != len(self.blocks):
            raise ValueError(f"state must have tensors for {len(self.blocks)} blocks, got {len(state.cells)}")
        if state.position.shape != x.shape[:1]:
            raise ValueError(f"state must be of {len(x)} sequences, got positions {list(state.position.shape)}")


def encode(encoder: nn.Linear, x: Tensor) -> Tensor:
    """``encoder(x)``; where compiled, a single feature is multiplied without a matrix product, which took 0.11 ms of a
    training step of 3.07 ms (2 blocks of 256, 256 sequences of 784 steps, H200).

    Both round alike: the product of two numbers of 16 bits is exact in float32.
    """
    plain = is_plain(encoder, nn.Linear) and cast(Any, encoder).bias is not None
    if encoder.in_features > 1 or not torch.compiler.is_compiling() or not plain:
        return encoder(x)
    kind, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(kind) and dtype != torch.float64:  # which autocast leaves as it is
        dtype = torch.get_autocast_dtype(kind)
    x, weight, bias = (each.to(dtype).to(wide(dtype)) for each in (x, encoder.weight, encoder.bias))
    return (x * weight[:, 0] + bias).to(dtype)


def _positions(x: Tensor, state: ModelState | None, steps: Steps) -> tuple[Tensor, Tensor]:
    """The number of steps before each step, ``[B, T]`` or ``[1, T]``, and after the last valid one, ``[B]``."""
    T, cut = x.shape[1], pieces.current()
    if state is not None:
        start = state.position
    else:
        same = steps.lengths is None and steps.reset is None  # for all sequences
        start = torch.zeros(1 if same else steps.B, dtype=torch.int64, device=x.device)
    own = torch.full_like(start, T) if steps.lengths is None else steps.lengths
    since = None  # steps from the last reset on; -1 without one
    if steps.reset is not None and T > 0:
        last = torch.where(steps.reset, torch.arange(T, device=x.device), -1).amax(dim=1)
        since = torch.where(last >= 0, own - last, -1)
    if cut is not None:
        start, after = cut.count_before(start, own, torch.full_like(start, -1) if since is None else since)
    else:
        after = start + own if since is None else torch.where(since >= 0, since, start + own)
    return count_steps(start, T, steps.reset), after.expand(steps.B).contiguous()

"""The interface of a task: sets of samples from a seed; inputs, loss and metric of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Classification", "Regression", "Samples", "Split", "Streamed", "Task", "split_sizes"]

Split = Literal["train", "valid", "test"]
Pooling = Literal["last", "mean"]


@dataclass(frozen=True)
class Samples:
    """S samples as they are stored on the device; :meth:`Task.inputs` turns rows of ``stored`` into inputs."""

    stored: Tensor
    """``[S, ...]``, in the most compact form (bytes for pixels): a batch is expanded when it is used."""
    target: Tensor
    """``[S]``."""

    def __len__(self) -> int:
        return len(self.stored)


class Task(ABC):
    """A frozen dataclass of numbers, strings and booleans only, so that it can be written as JSON and hashed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    metric: ClassVar[str]
    """The name of :meth:`scores`."""
    larger_is_better: ClassVar[bool]
    pooling: ClassVar[Pooling] = "last"
    """How the outputs of the timesteps become the prediction."""
    d_input: ClassVar[int]
    d_output: ClassVar[int]
    length: int
    """Number of timesteps T."""

    @abstractmethod
    def samples(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Samples:
        """Equal seeds give equal samples on every device; no sample is in two splits."""

    @abstractmethod
    def inputs(self, stored: Tensor) -> Tensor:
        """Inputs ``x [B, T, D]``, float32, of rows of ``Samples.stored [B, ...]``."""

    def augment(self, stored: Tensor) -> Tensor:
        """Rows of ``Samples.stored`` as training sees them: changed at random or among the batch, or as they are."""
        return stored

    @abstractmethod
    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample, ``[B]``, of ``output [B, d_output]`` and ``target [B]``."""

    @abstractmethod
    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        """The metric of each sample, ``[B]``; the metric of a set is their mean."""


class Regression(Task):
    """One number per sequence, squared error."""

    metric = "mse"
    larger_is_better = False
    d_output = 1

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.squeeze(-1) - target).square()

    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        return self.losses(output, target)


class Classification(Task):
    """One of ``d_output`` classes per sequence, cross-entropy; the metric is the accuracy."""

    metric = "accuracy"
    larger_is_better = True

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none")

    def scores(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(dim=-1) == target).to(output.dtype)


@runtime_checkable
class Streamed(Protocol):
    """A task whose sequences can be longer than memory allows: they come in chunks, and the model carries its state."""

    def stream(self, length: int, samples: int, seed: int) -> tuple[Tensor, Iterator[Tensor]]:
        """Targets ``[S]`` and chunks ``[S, t, D]`` of the inputs, in order, ``length`` timesteps in all, on the CPU."""
        ...


def split_sizes(samples: int) -> tuple[int, int]:
    """Sizes of training and validation set: 90 % / 10 %, as in the paper's tables.

    >>> split_sizes(60_000)
    (54000, 6000)
    """
    valid = max(1, samples // 10)
    return samples - valid, valid

"""Several processes that train one model: the rank of this one, and sums and means over all of them."""

import atexit
import importlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["LostProcessError", "Processes", "check_device", "end_with_parent"]


class LostProcessError(RuntimeError):
    """Another process has ended, or does not answer."""


@dataclass(frozen=True)
class Processes:
    """This process among ``count``. Each gets its share of every batch; all hold the same weights."""

    device: torch.device
    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls, device: str = "auto") -> "Processes":
        """Initialise the process group if a launcher (``accelerate launch``, ``torchrun``) started one; else run alone.

        ``device``: ``"auto"`` is a GPU if there is one, else the CPU.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        check_device(device)
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            chosen = torch.device(device)
            check_computes(chosen)
            if chosen.type == "cuda" and chosen.index is not None:
                torch.cuda.set_device(chosen)  # kernels and graphs run on the current one
            return cls(chosen)
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise ImportError("several processes need accelerate: pip install accelerate") from error
        if not dist.is_initialized():
            importlib.import_module("torch.distributed.nn.functional")  # later, it would keep the group as a default
            atexit.register(_leave)
        state = PartialState(cpu=device == "cpu")
        return cls(torch.device(state.device or device), state.process_index, state.num_processes)

    @property
    def first(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def share(self, size: int) -> slice:
        """This process's part of ``size`` samples: contiguous, and as equal in size as possible."""
        return slice(size * self.rank // self.count, size * (self.rank + 1) // self.count)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of ``x`` over the processes."""
        if self.count == 1:
            return x
        x = x.clone()
        dist.all_reduce(x)
        return x / self.count

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        """The sums of ``numbers`` over the processes."""
        if self.count == 1:
            return numbers
        x = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(x)
        return x.tolist()

    def average_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Replace gradients by their means, in one message: a model of the paper's size has 4 MB of them."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """Raise :class:`LostProcessError` where torch says that a connection was closed, or that nobody answers."""
        try:
            yield
        except RuntimeError as error:
            # gloo raises RuntimeError itself: "[.../gloo/transport/tcp/pair.cc:538] Connection closed by peer"
            if self.count == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            others = [str(rank) for rank in range(self.count) if rank != self.rank]
            which = f"process {others[0]}" if len(others) == 1 else f"one of the processes {', '.join(others)}"
            reason = str(error).partition("\n")[0]
            raise LostProcessError(
                f"process {self.rank} lost {which} of {self.count}; the same command resumes ({reason})"
            ) from error


def _leave() -> None:
    """End the process group before the interpreter: a thread of gloo that outlives it aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_device(device: str) -> None:
    """Raise unless torch knows the device, and finds a GPU if it is one of CUDA."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"device must be auto or a device of torch (cpu, cuda, cuda:1), got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch finds no GPU")


def check_computes(device: torch.device) -> None:
    """Raise unless torch can compute on the device: builds differ, and the number of a GPU may be too high."""
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # each kind of device raises its own kind of error
        raise ValueError(f"device is '{device}', but this torch cannot compute on it") from error


def end_with_parent() -> None:
    """End this worker process when the one that started it dies: nobody else would."""
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()

"""Gather tensors of all ranks in one message, booleans as bits; count the bytes; say which rank did not answer."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from multistable.ops.bits import pack_bits, unpack_bits

__all__ = ["Exchange", "ExchangeError"]

_dist: Any = dist  # untyped names
_GRACE = 5.0  # seconds, for the other ranks to notice a failure, too


class ExchangeError(RuntimeError):
    """A rank died, hangs, or has another order of calls."""


class Exchange:
    """The ranks of a process group, in order.

    Attributes:
        rank, size: this rank's place among them, and how many there are.
        count: how many exchanges this rank has taken part in.
        bytes_sent: how many bytes it has contributed to them. A gather delivers them to ``size - 1`` others.
    """

    def __init__(self, group: Any = None) -> None:
        """``group`` is a process group, a mesh of one dimension, such as ``mesh["sequence"]``, or None: all ranks."""
        group = group.get_group() if isinstance(group, DeviceMesh) else group
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError(f"group must include this process, rank {dist.get_rank()} of all; it does not")
        self.count = self.bytes_sent = 0

    def gather(self, what: str, *tensors: Tensor) -> list[Tensor]:
        """Each tensor as ``[size, ...]``, from all ranks in order. Shapes and dtypes must agree between ranks."""
        if self.size == 1:
            return [x[None] for x in tensors]
        own = torch.cat([_to_bytes(x) for x in tensors])
        every = own.new_empty(self.size * len(own))
        with self._exchange(what, len(own)):
            _dist.all_gather_into_tensor(every, own, group=self.group)
        chunks = torch.split(every.view(self.size, -1), [_bytes_of(x) for x in tensors], dim=1)
        return [_from_bytes(chunk, x) for chunk, x in zip(chunks, tensors, strict=True)]

    def sum(self, what: str, x: Tensor) -> Tensor:
        """The sum over the ranks, in a new tensor."""
        x = x.clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            with self._exchange(what, x.numel() * x.itemsize):
                _dist.all_reduce(x, group=self.group)
        return x

    def send(self, what: str, x: Tensor, rank: int) -> None:
        x = x.contiguous()
        with self._exchange(what, x.numel() * x.itemsize):
            _dist.send(x, group=self.group, group_dst=rank)

    def receive(self, what: str, like: Tensor, rank: int) -> Tensor:
        """A tensor like ``like`` from ``rank``."""
        x = torch.empty_like(like, memory_format=torch.contiguous_format)
        with self._exchange(what, 0):
            _dist.recv(x, group=self.group, group_src=rank)
        return x

    @contextmanager
    def _exchange(self, what: str, size: int) -> Generator[None]:
        self.count += 1
        self.bytes_sent += size
        try:
            yield
        except NotImplementedError:
            raise
        except RuntimeError as error:
            raise ExchangeError(
                f"rank {self.rank} of {self.size} got no answer in exchange {self.count}, {what}; "
                f"{self._silent()}. A rank died, hangs, or does not call the same layers and gradients in the same "
                f"order as the others ({str(error).splitlines()[0]})"
            ) from error

    def _silent(self) -> str:
        """Which ranks do not report a failure of the same exchange within a few seconds."""
        store: Any = _dist.distributed_c10d._get_default_store()
        keys = {
            rank: f"multistable/{self.group.group_name}/{self.count}/{rank}"
            for rank in dist.get_process_group_ranks(self.group)
        }
        try:
            store.set(keys[dist.get_rank()], "failed")
            end = time.monotonic() + _GRACE
            silent = [rank for rank, key in keys.items() if not _appears(store, key, end)]
        except dist.DistNetworkError:
            return "the process that hosts the store is gone, in most cases rank 0"
        return f"silent: {', '.join(f'rank {rank}' for rank in silent)}" if silent else "all ranks report it"


def _appears(store: Any, key: str, end: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=max(0.1, end - time.monotonic())))
    except dist.DistNetworkError:
        raise
    except RuntimeError:  # a timeout; each kind of store has its own class for it
        return False
    return True


def _bytes_of(x: Tensor) -> int:
    return -(-x.numel() // 8) if x.dtype == torch.bool else x.numel() * x.itemsize


def _to_bytes(x: Tensor) -> Tensor:
    """``x`` as bytes, eight booleans in each."""
    if x.dtype != torch.bool:
        return x.detach().contiguous().view(-1).view(torch.uint8)
    return pack_bits(x)


def _from_bytes(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`_to_bytes` for each of the ``rows [size, bytes]``: ``[size, *like.shape]``."""
    if like.dtype != torch.bool:
        return rows.contiguous().view(-1).view(like.dtype).view(len(rows), *like.shape)
    return unpack_bits(rows, like.shape)

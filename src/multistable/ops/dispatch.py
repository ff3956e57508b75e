"""Choose the backend, and say why."""

import importlib
import importlib.util
import os
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from multistable.ops import pieces

__all__ = ["BACKENDS", "BackendError", "Choice", "check_name", "choose", "load"]


_OLDEST_TRITON = (3, 6)  # that of torch 2.11: 3.4 does not compile the kernels, 3.5 was not tried


class BackendError(RuntimeError):
    """An explicitly requested backend does not support the given tensors."""


@dataclass(frozen=True)
class Choice:
    """The backend for a tensor, the reason, and why each faster one cannot be used."""

    backend: str
    reason: str
    refused: dict[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        others = "".join(f"; not {name}: {why}" for name, why in self.refused.items())
        return f"{self.backend}: {self.reason}{others}"


def _triton_refusal(device: torch.device, by_name: bool) -> str | None:
    if not _installed("triton"):
        return "triton is not installed"
    if device.type == "cuda":
        return _gpu_refusal(device)
    interpreted = by_name and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"  # slow, for tests
    return None if interpreted else f"the tensors are on {device.type}"


@cache
def _gpu_refusal(device: torch.device) -> str | None:
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    version = importlib.import_module("triton").__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_TRITON:
        return f"triton {version} is older than {'.'.join(map(str, _OLDEST_TRITON))}"
    return None


def _cpu_refusal(device: torch.device, by_name: bool) -> str | None:
    if device.type != "cpu":
        return f"the tensors are on {device.type}"
    if not _installed("numba"):
        return "numba is not installed (pip install 'multistable[cpu]')"
    return None


BACKENDS = {
    "triton": "fused kernels on the GPU",
    "cpu": "compiled loops on the CPU",
    "portable": "plain torch, runs on any device",
    "reference": "the definition, a Python loop over time",
}
"""Name and description of every backend, fastest first."""

_REFUSALS = {
    "triton": _triton_refusal,
    "cpu": _cpu_refusal,
}  # why a backend cannot run on a device, or None; the others always can


def check_name(backend: object) -> None:
    if not isinstance(backend, str) or (backend != "auto" and backend not in BACKENDS):
        raise ValueError(f"backend must be 'auto' or one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
    if backend == "reference" and pieces.current() is not None:
        raise ValueError("sequence_parallel needs a backend other than 'reference', which runs whole sequences")


def choose(backend: str, x: Tensor) -> Choice:
    """Resolve ``backend`` for a tensor: ``"auto"`` is the fastest that supports it; a name is used, or raises."""
    check_name(backend)
    refused: dict[str, str] = {}
    for name, description in BACKENDS.items():
        if backend not in ("auto", name):
            continue
        why = _REFUSALS[name](x.device, backend == name) if name in _REFUSALS else None
        if why is None:
            return Choice(name, description if backend == "auto" else f"asked for by name ({description})", refused)
        if backend == name:
            raise BackendError(f"backend {name!r} cannot serve: {why}")
        refused[name] = why
    raise AssertionError("unreachable: the portable backend never refuses")


@cache
def load(backend: str) -> ModuleType:
    """The module of a backend, imported on first use: numba and triton take a second each."""
    return importlib.import_module(f"multistable.ops.{backend}")


@cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

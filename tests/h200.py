"""An H200 for tests without a GPU: Triton compiles for it; what is launched is written down."""

from contextlib import nullcontext
from typing import ClassVar

import torch


class H200:
    """What Triton asks a driver for. ``launched`` has the names of kernels; Triton keeps those it has compiled."""

    launched: ClassVar[list[str]] = []

    @property
    def utils(self):
        return self

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 * 1024}

    def load_binary(self, name, kernel, shared, device):
        return 1, 2, 3, 0, 1024  # module, function, registers, spills, threads

    def launcher_cls(self, src, metadata):
        return lambda *args: self.launched.append(metadata.name)


def pretend(monkeypatch) -> H200:
    """Let the kernels' host code believe in an H200."""
    from triton.runtime import driver

    from multistable.ops.triton import launch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: 227 * 1024 * 7 // 8)
    monkeypatch.setattr(driver, "_active", H200())
    launch.launch_config.cache_clear()
    H200.launched.clear()
    return driver.active

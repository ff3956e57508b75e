"""Folders that are also kept at an address all machines can reach, by fsspec: ``s3://bucket/name``, ``gs://``, ``file://``.

Each machine works on its own files and copies them there, so that a run can resume elsewhere. On object stores and
local disks a file appears complete or not at all; elsewhere (SFTP) a reader may get half a file, which its checksum
reveals. Numbered claims, each created once, decide who may write a folder.
"""

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from multistable_experiments.files import write_atomically

__all__ = ["Mirror"]

CLAIMS = "attempts"


class Mirror:
    """The folders under an address, each at a ``place`` such as ``runs/copy-first-0123456789ab``."""

    def __init__(self, address: str) -> None:
        if find_spec("fsspec") is None:
            raise ImportError("fsspec is missing: pip install './experiments[mirror]'")
        import fsspec

        if not address:  # fsspec takes it for the current folder
            raise ValueError("mirror must be an address, got ''")
        try:
            self.fs, root = fsspec.url_to_fs(address)
        except (ImportError, ValueError) as error:  # an unknown protocol, or a package that it needs
            raise ValueError(f"mirror must be an address that fsspec knows, got {address!r}: {error}") from error
        self.root = root.rstrip("/")

    def is_at(self, place: str, folder: Path) -> bool:
        """True if a place is this folder itself."""
        return "file" in self.fs.protocol and Path(self.root, place).resolve() == folder.resolve()

    def names(self, place: str) -> list[str]:
        """The files at a place, relative to it, without claims."""
        top = f"{self.root}/{place}/"
        self.fs.invalidate_cache()
        found = [path.removeprefix(top) for path in self.fs.find(top)]
        return sorted(name for name in found if not name.startswith(f"{CLAIMS}/") and ".part-" not in name)

    def get(self, place: str, folder: Path) -> None:
        """Copy the files from a place that the folder does not have."""
        for name in self.names(place):
            if not (folder / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / name, self.fs.cat_file(f"{self.root}/{place}/{name}"))

    def put(self, place: str, folder: Path, names: list[str]) -> None:
        """Copy files of the folder to a place, in this order."""
        for name in names:
            self._write(f"{self.root}/{place}/{name}", (folder / name).read_bytes())

    def remove(self, place: str, names: list[str]) -> None:
        for name in names:
            self.fs.rm_file(f"{self.root}/{place}/{name}")

    def _write(self, path: str, content: bytes) -> None:
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if "file" not in self.fs.protocol:
            self.fs.pipe_file(path, content)
            return
        part = f"{path}.part-{os.getpid()}"
        self.fs.pipe_file(part, content)
        Path(part).replace(path)

    def newest(self, place: str) -> int:
        """The greatest number claimed at a place; 0 if there is none."""
        self.fs.invalidate_cache()
        folder = f"{self.root}/{place}/{CLAIMS}"
        numbers = [path.rpartition("/")[2] for path in self.fs.find(folder)]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def claim(self, place: str) -> int:
        """Create the next number. No two processes get the same, where the store can create a file exclusively."""
        self.fs.makedirs(f"{self.root}/{place}/{CLAIMS}", exist_ok=True)
        while True:
            number = self.newest(place) + 1
            path, who = f"{self.root}/{place}/{CLAIMS}/{number}", f"{platform.node()} {os.getpid()}\n".encode()
            try:
                self.fs.pipe_file(path, who, mode="create")
            except FileExistsError:
                continue
            except (NotImplementedError, TypeError, ValueError):
                self.fs.pipe_file(path, who)
            return number

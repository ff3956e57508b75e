"""IDX files (the format of MNIST), plain or gzipped: find, check, read, download."""

import gzip
import hashlib
import math
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["DataError", "IDXFile", "download", "find", "parse", "read"]

UNSIGNED_BYTES = 0x08


class DataError(RuntimeError):
    """A data file is missing, damaged or not what it should be."""


@dataclass(frozen=True)
class IDXFile:
    """Name of a file and the sha256 sums of its content and of its gzipped form at the mirrors."""

    name: str
    sha256: str
    sha256_gz: str


def read(file: IDXFile, folder: Path) -> Tensor:
    """The tensor in ``folder/name`` or ``folder/name.gz``, uint8, after comparing the content with its checksum."""
    path = find(file, folder)
    if path is None:
        raise DataError(f"{file.name} (or {file.name}.gz) is not in {folder}")
    try:
        return checked(file, path)
    except DataError as error:
        raise DataError(f"{error}; remove it to have it downloaded again") from error


def checked(file: IDXFile, path: Path) -> Tensor:
    content = unpacked(path)
    tensor = parse(content, path)
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DataError(f"{path} is corrupt: the sha256 of its content is {found}, expected {file.sha256}")
    return tensor


def find(file: IDXFile, folder: Path) -> Path | None:
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    return None


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is truncated or corrupt: {error}") from error


def parse(content: bytes, path: Path) -> Tensor:
    """Two zero bytes, the type of the elements, the number of axes, the sizes (big-endian, 4 bytes), the elements."""
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{path} is no IDX file: it must start with two zero bytes, got {content[:4]!r}")
    if content[2] != UNSIGNED_BYTES:
        raise DataError(f"{path} must hold unsigned bytes (type 0x08), got type {content[2]:#04x}")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) <= start or len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} is truncated or too long: it announces {' x '.join(map(str, shape))} elements, "
            f"got {max(0, len(content) - start)}"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)


def download(file: IDXFile, folder: Path, mirrors: tuple[str, ...], timeout_s: float = 30) -> Path:
    """Fetch ``name.gz`` from the first mirror that serves it unharmed; a failed attempt leaves nothing behind.

    The bytes go to a temporary file in ``folder``, which gets its name only after its checksum has been compared.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file.name}.gz"
    failures = []
    for mirror in mirrors:
        url = f"{mirror}{file.name}.gz"
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as target:
                found = fetch(url, target, timeout_s)
            if found == file.sha256_gz:
                partial.replace(path)
                return path
            failures.append(f"{url}: sha256 {found}, expected {file.sha256_gz}")
        except (OSError, urllib.error.URLError) as error:
            failures.append(f"{url}: {error}")
        finally:
            partial.unlink(missing_ok=True)
    raise DataError(
        f"{path.name} could not be downloaded to {folder}; put it there by hand or set MULTISTABLE_DATA to the folder "
        f"that holds mnist/{path.name}. Tried:\n  " + "\n  ".join(failures)
    )


def fetch(url: str, target, timeout_s: float) -> str:
    """Copy a URL to an open file; returns the sha256 of what came."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=timeout_s) as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
            target.write(piece)
    return digest.hexdigest()

"""Write a file completely or not at all."""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["file_named", "is_stream", "new_part", "whole_file", "write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` with :func:`whole_file`."""
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yield a temporary path to write to, and rename it to ``path`` when the block ends without an error.

    After a kill or a crash at any moment ``path`` holds either its old content or the new one; of several writers the
    last one wins. Links are followed; a pipe or a device such as ``/dev/stdout`` is written to directly. Permissions
    are kept. An ``OSError`` names ``path``, even if the disk is full.
    """
    if is_stream(path):
        with file_named(path):
            yield path
        return
    target = _target(path)
    with new_part(path, target) as file, file_named(path, part := Path(file.name)):
        with suppress(FileNotFoundError):
            part.chmod(target.stat().st_mode & 0o777 | stat.S_IWUSR)
        yield part
        os.fsync(file.fileno())
        if fcntl is None:  # Windows does not rename an open file
            file.close()
        part.replace(target)
        _sync_folder(target.parent)  # `reproduce` removes a run's checkpoints once its result is stored


def _target(path: Path) -> Path:
    """Resolve links in ``path``."""
    try:
        return path.resolve()
    except RuntimeError:  # Python 3.11 and 3.12, instead of the system's error
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def is_stream(path: Path) -> bool:
    """Return True for a pipe or character device, False for a file, a folder or nothing; raise for anything else."""
    if path.is_fifo() or path.is_char_device():
        return True
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "is neither a file nor a pipe", str(path))
    return False


@contextmanager
def new_part(path: Path, target: Path) -> Generator[IO[bytes]]:
    """A new temporary file ``.NAME.*.part`` beside ``target``, removed in the end. Errors name ``path``.

    No two writers share one. Its lock shows that its writer is alive: those of killed writers are removed.
    """
    for leftover in target.parent.glob(f".{escape(target.name)}.*.part"):
        if leftover.is_file():  # opening a pipe would wait for its writer
            with suppress(OSError), leftover.open("rb") as file:
                if _lock(file):
                    leftover.unlink()
    file = _create(path, target)
    try:
        yield file
    finally:
        Path(file.name).unlink(missing_ok=True)
        file.close()


def _create(path: Path, target: Path) -> IO[bytes]:
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        with file_named(path, part):
            file = part.open("xb")  # does not follow a link that somebody put there
        _lock(file)
        if os.fstat(file.fileno()).st_nlink:  # another writer may have removed it before it was locked
            return file
        file.close()


def _lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed; False if that is impossible or another process holds it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Write a renamed entry to the disk; Windows has no such call."""
    if fcntl is not None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def file_named(path: Path, part: Path | None = None) -> Generator[None]:
    """Make OSErrors raised while writing name ``path``, not its temporary file ``part``."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(part)):
            error.filename = str(path)
            del error.filename2  # None would be printed
        raise

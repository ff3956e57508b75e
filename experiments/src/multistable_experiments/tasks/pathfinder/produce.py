"""Make many batches: in parallel, resumable, and nothing half-written under a final name.

A *store* says where images go. It remembers the origin of what it holds, so that a resumed run cannot mix two sets.
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Protocol

from multistable_experiments.files import UNREADABLE, locked, whole_file
from multistable_experiments.tasks.pathfinder import compact, lra
from multistable_experiments.tasks.pathfinder.compact import Origin
from multistable_experiments.tasks.pathfinder.settings import FOLDERS, check_seed
from multistable_experiments.tasks.pathfinder.strokes import join, render

__all__ = ["CompactStore", "FolderStore", "Store", "produce", "store_for"]


class Store(Protocol):
    """Where batches are kept."""

    def begin(self, origin: Origin) -> bool:
        """Get ready; False when all is there. Refuses a place that holds something else."""
        ...

    def folder(self, origin: Origin) -> Path:
        """In which batches are kept while they are made."""
        ...

    def has(self, origin: Origin, batch: int) -> bool: ...

    def add(self, origin: Origin, batch: int) -> None:
        """Draw a batch and keep it."""
        ...

    def finish(self, origin: Origin) -> None: ...


def store_for(out: Path) -> Store:
    """A compact file if the name ends in .npz, otherwise a folder like that of the LRA release."""
    return CompactStore(out) if out.suffix == ".npz" else FolderStore(out)


def produce(store: Store, origin: Origin, *, jobs: int = 1) -> Iterator[int]:
    """Make all batches that are missing; yield the number of images whenever more of them are there."""
    if origin.count < 1:
        raise ValueError(f"count must be at least 1, got {origin.count}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    check_seed(origin.seed)  # before a file says that the images are of this seed
    if not store.begin(origin):
        yield origin.count
        return
    batches = range(-(-origin.count // origin.batch))
    with locked(store.folder(origin)) as alone:
        if not alone:
            raise ValueError(f"{store.folder(origin)} is in use: another process draws these images")
        missing = [batch for batch in batches if not store.has(origin, batch)]
        yield origin.count - sum(_batch_count(origin, batch) for batch in missing)
        for batch in _run(store, origin, missing, jobs):
            yield _batch_count(origin, batch)
        store.finish(origin)


def _run(store: Store, origin: Origin, batches: list[int], jobs: int) -> Iterator[int]:
    """Make the batches and yield their numbers as they are done."""
    if jobs == 1 or len(batches) < 2:
        for batch in batches:
            store.add(origin, batch)
            yield batch
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        futures = {pool.submit(store.add, origin, batch): batch for batch in batches}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker: end when the parent has been killed, instead of waiting for work for ever."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def _batch_count(origin: Origin, batch: int) -> int:
    return min(origin.batch, origin.count - batch * origin.batch)


def _draw(origin: Origin, batch: int):
    from multistable_experiments.tasks.pathfinder.generator import draw, glyphs  # compiles: only where images are made

    return glyphs(origin.settings), draw(origin.settings, origin.seed, batch, _batch_count(origin, batch))


def _claim(note: Path, origin: Origin) -> None:
    """Leave a note of what is being made, or compare with the note that is there."""
    if note.exists():
        try:
            there = Origin.from_json(note.read_text(encoding="utf-8"))
        except UNREADABLE as error:
            raise ValueError(f"{note} is damaged: {error}; remove {note.parent} to begin anew") from error
        if there != origin:
            raise ValueError(
                f"{note.parent} holds a part of {there}, expected {origin}: choose another --out or remove it"
            )
        return
    note.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(note) as part:
        part.write_text(origin.to_json(), encoding="utf-8")


@dataclass(frozen=True)
class CompactStore:
    """One compact file; while it is made, its batches lie in ``NAME.parts``."""

    path: Path

    @property
    def _parts(self) -> Path:
        return self.path.with_name(f"{self.path.name}.parts")

    def folder(self, origin: Origin) -> Path:
        return self._parts

    def begin(self, origin: Origin) -> bool:
        if self.path.exists():
            there = compact.read_strokes(self.path)[0]
            if there != origin:
                raise ValueError(f"{self.path} holds {there}, expected {origin}: choose another --out or remove it")
            # Parts are left by a kill after the file was written, before they were removed.
            shutil.rmtree(self._parts, ignore_errors=True)
            return False
        _claim(self._parts / "origin.json", origin)
        return True

    def has(self, origin: Origin, batch: int) -> bool:
        return (self._parts / f"{batch}.npz").exists()

    def add(self, origin: Origin, batch: int) -> None:
        glyphs, strokes = _draw(origin, batch)
        part = Origin(origin.settings, origin.seed, len(strokes), origin.batch)
        compact.write(self._parts / f"{batch}.npz", part, glyphs, strokes)

    def finish(self, origin: Origin) -> None:
        batches = range(-(-origin.count // origin.batch))
        parts = [compact.read_strokes(self._parts / f"{batch}.npz") for batch in batches]
        compact.write(self.path, origin, parts[0][1], join([strokes for _, _, strokes in parts]))
        shutil.rmtree(self._parts)


@dataclass(frozen=True)
class FolderStore:
    """A folder like that of the LRA release, with a note ``origin.json`` beside the images."""

    path: Path

    def folder(self, origin: Origin) -> Path:
        return self.path / FOLDERS[origin.settings.level]

    def begin(self, origin: Origin) -> bool:
        note = self.folder(origin) / "origin.json"
        if not note.exists() and note.parent.exists() and any(note.parent.iterdir()):
            raise ValueError(
                f"{note.parent} holds other files, expected an empty folder or one that this command began"
            )
        _claim(note, origin)
        return True

    def has(self, origin: Origin, batch: int) -> bool:
        return lra.has_batch(self.path, origin.settings, batch)

    def add(self, origin: Origin, batch: int) -> None:
        glyphs, strokes = _draw(origin, batch)
        images = render(glyphs, strokes)
        lra.write_batch(self.path, origin.settings, batch, images, strokes.label, strokes.margin)

    def finish(self, origin: Origin) -> None:
        """Nothing is left to do: every batch stands on its own."""

"""A live line while a run trains: loss, metric, timesteps per second, time left. Silent when nobody looks."""

import sys
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["Progress", "Silent", "progress"]


class Silent(AbstractContextManager):
    """No progress at all."""

    def update(self, done: int, epoch: int, text: str) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class Progress(Silent):
    """A bar of ``steps`` steps on standard error."""

    def __init__(self, steps: int, epochs: int) -> None:
        from rich import progress as bars
        from rich.console import Console

        self.epochs = epochs
        self.bars = bars.Progress(
            bars.TextColumn("epoch {task.fields[epoch]}"),
            bars.BarColumn(),
            bars.TextColumn("{task.fields[text]}"),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.bar = self.bars.add_task("", total=steps, epoch=f"0/{epochs}", text="")

    def __enter__(self) -> "Progress":
        self.bars.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.bars.stop()

    def update(self, done: int, epoch: int, text: str) -> None:
        self.bars.update(self.bar, completed=done, epoch=f"{epoch}/{self.epochs}", text=text)


def progress(steps: int, epochs: int, wanted: bool = True) -> Silent:
    """A bar if it is wanted and standard error is a terminal."""
    return Progress(steps, epochs) if wanted and sys.stderr.isatty() else Silent()

"""The user at the terminal: a live line of progress, and Ctrl-C or SIGTERM that let the current step finish."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

__all__ = ["defer_interrupts", "print_epoch", "progress"]


@contextmanager
def progress(steps: int, epochs: int, wanted: bool = True) -> Iterator[Callable[[int, int, str], None]]:
    """Yield ``update(done, epoch, text)``, which shows a bar if it is wanted and possible."""
    if not (wanted and can_show_bar()):
        yield lambda done, epoch, text: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("epoch {task.fields[epoch]}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[text]}"),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=steps, epoch=f"0/{epochs}", text="")
        yield lambda done, epoch, text: bars.update(bar, completed=done, epoch=f"{epoch}/{epochs}", text=text)


def can_show_bar() -> bool:
    """True if standard error is a terminal, or in a notebook with ipywidgets, which rich needs there."""
    from rich.console import Console

    return sys.stderr.isatty() or (Console().is_jupyter and find_spec("ipywidgets") is not None)


def print_epoch(record: dict[str, Any], epochs: int, metric: str) -> None:
    """Print a line of metrics where no bar is shown: in a log file, or in a pipe."""
    if can_show_bar():
        return
    scores = "  ".join(f"{part} {record[f'{part}_{metric}']:.4f}" for part in ("train", "valid"))
    words = f"epoch {record['epoch']}/{epochs}  loss {record['train_loss']:.4f}  {metric}: {scores}"
    print(f"{words}  {record['seconds']:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def defer_interrupts(wanted: bool = True) -> Iterator[threading.Event]:
    """Yield an event. The first Ctrl-C or SIGTERM, which schedulers send, sets it; the second acts as usual.

    Leaves a signal alone that the program handles itself, and both outside the main thread, where Python forbids it.
    """
    interrupted = threading.Event()
    in_main = threading.current_thread() is threading.main_thread()
    unhandled = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    usual = {number: signal.getsignal(number) for number in unhandled if wanted and in_main}
    usual = {number: handler for number, handler in usual.items() if handler == unhandled[number]}

    def remember(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        restore()

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    for number in usual:
        signal.signal(number, remember)
    try:
        yield interrupted
    finally:
        restore()

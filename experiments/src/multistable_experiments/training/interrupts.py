"""Ctrl-C while a run trains: the first one is remembered until a step is whole, so that nothing is lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts", "remember_interrupts"]


class Interrupts:
    """Whether there was one."""

    asked = False


@contextmanager
def remember_interrupts(wanted: bool = True) -> Iterator[Interrupts]:
    """Within it, the first Ctrl-C sets ``asked`` and the second one raises ``KeyboardInterrupt``, as usual.

    Nothing changes where somebody else handles interrupts, or where Python does not allow it (outside the main thread).
    """
    found = Interrupts()
    usual = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not (wanted and in_main and usual is signal.default_int_handler):
        yield found
        return

    def remember(number: int, frame: FrameType | None) -> None:
        found.asked = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, remember)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, usual)

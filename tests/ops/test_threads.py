"""Sharing work among threads (``ops/threads.py``): errors, interrupts, concurrent callers, forked processes."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from multistable.ops import bmru_scan, cpu, threads
from multistable.ops.threads import for_each
from nasty import bmru_inputs

LARGE = (5, 129, 129)
pytestmark = pytest.mark.usefixtures("small_spans")


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("items", ["", "a", "abcdefgh"])
def test_every_item_is_done_once(items, count):
    done = []
    for_each(items, done.append, count)
    assert sorted(done) == list(items)


def test_threads_run_at_the_same_time():
    together = threading.Barrier(3, timeout=10)
    idents = set()

    def work(item):
        together.wait()
        idents.add(threading.get_ident())

    for_each("abc", work, 3)
    assert len(idents) == 3
    assert threading.get_ident() in idents


def test_without_new_threads_the_caller_does_the_work(monkeypatch):
    """As in an ``atexit`` handler, or when the system refuses more threads."""

    def refuse(function, arguments):
        raise RuntimeError("can't start new thread")

    team = threads._Team()
    monkeypatch.setattr(threads, "_team", lambda: team)
    monkeypatch.setattr(threads, "start_new_thread", refuse)
    done = []
    for_each("abc", lambda item: done.append((threading.get_ident(), item)), 3)
    assert done == [(threading.get_ident(), item) for item in "abc"]
    assert team.size == 0, "the next call must try again"


def test_an_error_in_another_thread_is_raised():
    caller, together = threading.get_ident(), threading.Barrier(2, timeout=10)

    def work(item):
        together.wait()
        if threading.get_ident() != caller:
            raise OverflowError("in the other thread")

    with pytest.raises(OverflowError, match="in the other thread"):
        for_each("ab", work, 2)


@pytest.fixture(autouse=True)
def default_interrupts():
    """Restore Python's handler: shells start background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def fail():
    raise OverflowError("in the calling thread")


@pytest.mark.parametrize(("disturb", "error"), [(fail, OverflowError), (interrupt, KeyboardInterrupt)])
def test_an_error_or_interrupt_in_the_caller_waits_for_the_other_threads(disturb, error):
    """The error propagates, no call is still running afterwards, and no new item is started."""
    caller, together, begun, ended = threading.get_ident(), threading.Barrier(2, timeout=10), [], []

    def work(item):
        begun.append(item)
        if item < 2:
            together.wait()
        if threading.get_ident() == caller:
            disturb()
        time.sleep(0.1)
        ended.append(item)

    with pytest.raises(error):
        for_each(range(100), work, 2)
    assert len(begun) == 2
    assert len(ended) == 1


def run_python(code: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that runs ``code``."""
    environment = os.environ | {"PYTHONPATH": str(Path(threads.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_an_interrupt_while_a_thread_starts_does_not_hang_the_process():
    """A thread that the interrupt kept from being counted does not keep the process from its end."""
    code = """if True:
        from multistable.ops import threads
        start = threads.start_new_thread
        def interrupted(*args):
            start(*args)
            raise KeyboardInterrupt
        threads.start_new_thread = interrupted
        try:
            threads.for_each("abc", print, 2)
        except KeyboardInterrupt:
            print("raised")
        """
    assert run_python(code) == (0, "raised\n", "")


def interrupt_at(point):
    """A trace function that interrupts the calling thread before its ``point``-th instruction from now on, or line:
    Python 3.12.1 reports no instructions."""
    left = point

    def trace(frame, event, arg):
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event in ("opcode", "line")
        if not left:
            raise KeyboardInterrupt
        return trace

    return trace


def ends(team):
    """Whether all threads of a team end when they are told to, as at the end of a process."""
    ender = threading.Thread(target=threads._end_team, daemon=True)
    ender.start()
    ender.join(timeout=10)
    return not ender.is_alive()


def test_an_interrupt_at_any_point_leaves_threads_that_work_and_end(monkeypatch):
    """With locks that are written in Python an interrupt in the wrong place left one locked for ever."""
    for point in range(1, 10_000):
        team = threads._Team()
        monkeypatch.setattr(threads, "_team", lambda team=team: team)
        sys.settrace(interrupt_at(point))
        try:
            for_each("abc", str, 2)
        except KeyboardInterrupt:
            pass
        else:
            assert point > 30
            return
        finally:
            sys.settrace(None)
        together = threading.Barrier(2, timeout=10)
        for_each("ab", lambda item, together=together: together.wait(), 2)
        assert ends(team)


def test_a_finished_task_keeps_nothing_alive():
    class Item:
        pass

    items = [Item() for _ in range(3)]
    alive = [weakref.ref(item) for item in items]
    for_each(items, lambda item: time.sleep(0.01), 3)
    del items
    gc.collect()
    assert [item() for item in alive] == [None] * 3


def test_a_process_ends_after_its_threads_have():
    """A second interrupt leaves a thread at work. If it frees tensors while the interpreter ends, the process aborts
    ("terminate called without an active exception"): 1 of 40 did."""
    code = """if True:
        import threading, time, torch
        from multistable.ops import threads
        caller, together = threading.get_ident(), threading.Barrier(2, timeout=10)
        def work(item):
            together.wait()
            if threading.get_ident() == caller:
                raise KeyboardInterrupt  # the first
            tensors = [torch.zeros(10) for _ in range(1000)]
            time.sleep(0.5)
            del tensors
            print("freed", flush=True)
        def interrupted(begun):
            raise KeyboardInterrupt  # the second
        threads._wait = interrupted
        try:
            threads.for_each("ab", work, 2)
        except KeyboardInterrupt:
            print("raised", flush=True)
        """
    assert run_python(code) == (0, "raised\nfreed\n", "")


@pytest.mark.parametrize("before", ["", "abc"], ids=["unused", "used"])
def test_calls_after_the_team_has_ended_run_in_the_calling_thread(before):
    """The first handler of ``atexit`` runs last, and may call layers."""
    code = f"""if True:
        import atexit, threading, time
        def work(item):
            time.sleep(0.1)  # enough for another thread to take the next item
            print(item, threading.current_thread().name)
        def last():
            threads.start_new_thread = lambda work, args: [print("started"), args[-1].release()]
            threads.for_each("abc", work, 3)
        atexit.register(last)
        from multistable.ops import threads
        threads.for_each({before!r}, lambda item: None, 3)
        """
    assert run_python(code) == (0, "a MainThread\nb MainThread\nc MainThread\n", "")


class Held:
    """Stands for the tensors that work refers to."""


def test_a_task_in_the_queue_does_not_hold_finished_work():
    for _ in range(200):
        held = Held()
        alive = weakref.ref(held)

        def work(_item, held=held):
            pass

        for_each([1, 2], work, 2)  # mostly done before the other thread wakes
        del held, work
        assert alive() is None


def test_a_thread_does_not_hold_an_error_for_long():
    caller, together = threading.get_ident(), threading.Barrier(2, timeout=10)
    alive = []

    def work(_item):
        held = Held()
        together.wait()
        if threading.get_ident() != caller:
            alive.append(weakref.ref(held))
            raise OverflowError

    with pytest.raises(OverflowError):
        for_each([1, 2], work, 2)
    end = time.monotonic() + 5
    while alive[0]() is not None and time.monotonic() < end:
        gc.collect()  # pytest.raises refers to the error
        time.sleep(0.01)
    assert alive[0]() is None


def test_a_thread_lets_go_of_the_work_before_it_says_that_it_is_done():
    held, released = Held(), []
    alive, dropped, done = weakref.ref(held), threading.Event(), threading.Event()

    class Watched:
        """Stands for the lock that the thread releases."""

        def release(self):
            released.append(alive() is None)
            done.set()

    def work(held=held):
        dropped.wait(10)

    task = threads._Task(work, done=Watched())
    threads._tasks_of(1).put(task)
    del held, work
    dropped.set()
    assert done.wait(10)
    assert released == [True]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_an_interrupted_scan_returns_nothing(monkeypatch, backward):
    """Ctrl-C during a kernel raises KeyboardInterrupt instead of returning unfilled memory."""
    inputs = bmru_inputs(torch.float32, shape=LARGE)
    cand = inputs["cand"].requires_grad_()
    h = bmru_scan(**inputs, backend="cpu")
    name = "bmru_backward" if backward else "bmru_forward"
    caller, kernel = threading.get_ident(), getattr(cpu.kernels, name)

    began = threading.Event()

    def interrupted(*args):
        if threading.get_ident() == caller:
            began.set()
            interrupt()
        began.wait(10)  # otherwise the other thread might do all the work
        kernel(*args)

    monkeypatch.setattr(cpu.kernels, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        h.sum().backward() if backward else bmru_scan(**inputs, backend="cpu")
    assert cand.grad is None


@pytest.mark.usefixtures("two_threads")
def test_bmru_scan_in_two_python_threads_at_once():
    inputs = [bmru_inputs(torch.float32, shape=LARGE, seed=seed) for seed in range(8)]
    expected = [bmru_scan(**x, backend="portable") for x in inputs]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            found = pool.map(lambda x: bmru_scan(**x, backend="cpu"), inputs)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class Scans(Dataset):
    """Each item is a scan on two threads.

    torch's own threads (OpenMP) do not survive a fork, so a worker uses one, as DataLoader sets it. Only the backend
    sees two.
    """

    def __init__(self):
        self.inputs = [bmru_inputs(torch.float32, shape=LARGE, seed=seed) for seed in range(4)]

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        torch.set_num_threads(1)
        torch.get_num_threads = lambda: 2  # only in this short-lived process
        return bmru_scan(**self.inputs[i], backend="cpu")


@pytest.fixture
def used_team(two_threads):
    """Start the team's threads: a forked child inherits the team without them."""
    bmru_scan(**bmru_inputs(torch.float32, shape=LARGE), backend="cpu")
    assert threads._team().size


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


@forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_bmru_scan_in_a_forked_data_loader_worker(used_team):
    scans = Scans()
    loader = DataLoader(scans, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=30)
    for x, h in zip(scans.inputs, loader, strict=True):
        assert torch.equal(h, bmru_scan(**x, backend="portable"))


@forks
def test_bmru_scan_in_a_forked_child(used_team):
    scans = Scans()
    expected = bmru_scan(**scans.inputs[0], backend="portable")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:  # no assertions and no cleanup: the child must not run the parent's pytest
        try:
            signal.alarm(30)
            right = torch.equal(scans[0], expected)
        except BaseException:
            right = False
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@forks
def test_a_forked_child_has_threads_of_its_own(used_team):
    """Not those of the parent, which do not exist in it: the caller would do all of the work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            together = threading.Barrier(2, timeout=10)
            for_each("ab", lambda item: together.wait(), 2)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

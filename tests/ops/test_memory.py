"""Huge pages are requested where they pay, according to the kernel; kept memory is never used twice at a time."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from multistable.ops import memory, release_memory

SMAPS = Path("/proc/self/smaps")
MIB = 1 << 20
BYTE = torch.empty(1, dtype=torch.uint8)

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is kept on Linux only")


def uses_huge_pages(x: torch.Tensor) -> bool:
    """Whether the mapping around the middle of ``x`` was advised to use huge pages (flag ``hg``)."""
    inside, middle = False, x.data_ptr() + x.nbytes // 2
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= middle < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError("no such mapping")


@pytest.mark.skipif(sys.platform != "linux" or not SMAPS.exists(), reason="reads Linux's list of mappings")
@pytest.mark.parametrize(("size", "huge"), [(64 * MIB, True), (256 * MIB, True), (257 * MIB, False)])
def test_huge_pages_up_to_256_mib(size: int, huge: bool) -> None:
    assert uses_huge_pages(kept(size)) == huge


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """The list of idle blocks, emptied first. Blocks that earlier tests of this process still use do not count."""
    monkeypatch.setattr(memory, "_kept", {})
    gc.collect()
    release_memory()
    yield memory._idle
    release_memory()


@pytest.fixture
def hurry() -> Iterator[None]:
    """Threads take turns after 1 us instead of 5 ms: what they can do to each other happens every time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def kept(size: int) -> torch.Tensor:
    return memory.new_empty(BYTE, (size,))


@linux
def test_memory_is_kept_for_the_next_tensor(idle) -> None:
    x = memory.new_empty(torch.empty(1, dtype=torch.float64), (3, 5, 1 << 17))
    assert (x.shape, x.dtype, x.is_contiguous(), x.requires_grad) == ((3, 5, 1 << 17), torch.float64, True, False)
    where = x.data_ptr()
    del x
    assert len(idle) == 1
    assert kept(15 * MIB).data_ptr() == where
    assert kept(8 * MIB).data_ptr() == where  # half of the block is enough
    other = kept(8 * MIB - 1)
    assert other.data_ptr() != where
    assert kept(16 * MIB).data_ptr() == where  # 15 MiB rounded up to whole huge pages
    assert kept(16 * MIB + 1).data_ptr() != where


@linux
def test_the_smallest_block_that_fits_is_taken(idle) -> None:
    blocks = [kept(size * MIB) for size in (14, 10, 8, 12)]  # neither the oldest nor the newest
    where = blocks[1].data_ptr()
    del blocks
    assert kept(9 * MIB).data_ptr() == where


@linux
@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x[5:6],
        lambda x: x.detach(),
        lambda x: x.view(torch.int32),
        lambda x: x.numpy(),
        lambda x: x.untyped_storage(),
        lambda x: torch.from_dlpack(x),
        lambda x: memoryview(x.numpy()),
    ],
    ids=["part", "detached", "other_dtype", "numpy", "storage", "dlpack", "buffer"],
)
def test_memory_in_use_is_not_reused(idle, hold) -> None:
    x = kept(8 * MIB).fill_(1)
    where, held = x.data_ptr(), hold(x)
    del x
    assert idle == []
    assert kept(8 * MIB).data_ptr() != where
    del held
    assert any(torch.frombuffer(block.memory, dtype=torch.uint8).data_ptr() == where for block in idle)


@linux
def test_kept_memory_is_bounded_and_the_oldest_goes_first(idle) -> None:
    blocks = [kept(60 * MIB) for _ in range(6)]  # four of them fit
    del blocks
    assert [len(block.memory) for block in idle] == 4 * [60 * MIB]
    oldest, others = weakref.ref(idle[0].memory), [block.memory for block in idle[1:]]
    large = kept(20 * MIB)
    assert oldest() is None, "unmapped: a deleted mmap object has no mapping"
    assert [block.memory for block in idle] == others
    del large
    assert [len(block.memory) for block in idle] == [*3 * [60 * MIB], 20 * MIB]


@linux
def test_an_interrupt_is_not_lost_where_memory_is_freed(idle) -> None:
    """Python ignores exceptions in what a dying object calls, so nothing may be called that can be interrupted."""
    sent = raised = 0

    def interrupt(*_) -> None:
        nonlocal sent
        sent += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + i % 50))
                x = kept(4 * MIB)
                for _ in range(20):
                    x = kept(4 * MIB)  # the one before dies
                del x
                time.sleep(1)
                pytest.fail(f"interrupt {sent} was lost")
            except KeyboardInterrupt:
                raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sent == raised == 2000


@linux
@pytest.mark.parametrize("size", [4 * MIB - 1, 128 * MIB + 1])
def test_small_and_large_memory_is_not_kept(idle, size: int) -> None:
    kept(size)
    assert idle == []


@linux
def test_idle_memory_can_be_released(idle) -> None:
    kept(8 * MIB), kept(16 * MIB)
    assert len(idle) == 2
    blocks = [weakref.ref(block.memory) for block in idle]
    release_memory()
    assert idle == []
    assert [block() for block in blocks] == [None, None]


@linux
def test_128_mib_are_kept(idle) -> None:
    kept(128 * MIB)
    assert len(idle) == 1


@linux
def test_threads_never_share_memory(idle, hurry) -> None:
    """And 16 of them, with a tensor each, need 16 blocks: none is mapped while one is idle."""
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            x = kept(4 * MIB)
            x[::4096] = number
            time.sleep(1e-4)
            if not bool((x[::4096] == number).all()):
                wrong.append(number)
            del x

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 1 <= len(idle) <= 16


@linux
def test_storages_freed_at_odd_moments(idle) -> None:
    """Freed by garbage collections at varying moments, also inside the library's functions."""
    thresholds = gc.get_threshold()
    try:
        for later in range(100):
            gc.disable()
            x, cycles = kept(5 * MIB), [[kept((4 + i) * MIB)] for i in range(3)]
            for cycle in cycles:
                cycle.append(cycle)
            del cycles, cycle
            gc.set_threshold(gc.get_count()[0] + later // 2)
            gc.enable()
            y = kept(5 * MIB)
            del x
            z = kept(5 * MIB)
            assert y.data_ptr() != z.data_ptr()
            del y, z
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(set(map(id, idle))) == len(idle) > 0


def in_a_process(code: str) -> None:
    """Run ``code`` in a new process, which must print "done" and nothing else."""
    source = Path(memory.__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


@linux
def test_a_forked_child_has_its_own_memory() -> None:
    """It does not inherit the parent's idle blocks, whose pages it would have to copy."""
    in_a_process("""
        import os
        import torch
        from multistable.ops import memory
        x = torch.empty(1 << 23, dtype=torch.uint8)
        live, waits = memory.new_empty(x, x.shape).fill_(1), memory.new_empty(x, x.shape).fill_(2)
        del waits
        child = os.fork()
        if child == 0:
            assert memory._idle == []
            live.fill_(3)
            y = memory.new_empty(x, x.shape).fill_(4)
            assert bool((live == 3).all()) and bool((y == 4).all())
            del live, y
            os._exit(10 + len(memory._idle))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12
        assert bool((live == 1).all()) and len(memory._idle) == 1
        assert bool((memory.new_empty(x, x.shape) == 2).all())
        print("done")
    """)


@linux
def test_a_program_can_exit_with_memory_in_use() -> None:
    """Memory in use is not among the idle blocks in exit handlers, even those that run after weakref's finalisers."""
    in_a_process("""
        import atexit
        atexit.register(lambda: print("done" if len(memory._idle) == 1 else memory._idle))
        import torch
        from multistable.ops import memory
        x = torch.empty(1 << 23, dtype=torch.uint8)
        y, cycle = memory.new_empty(x, x.shape), [memory.new_empty(x, x.shape)]
        cycle.append(cycle)
        memory.new_empty(x, x.shape)
    """)


@linux
def test_out_of_memory_raises_torchs_error() -> None:
    in_a_process("""
        import resource
        import torch
        from multistable.ops import memory
        x = torch.empty(1, dtype=torch.uint8)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
        try:
            memory.new_empty(x, (1 << 26,))  # memory of this size is kept
        except RuntimeError as error:
            assert "allocate" in str(error)
            print("done")
    """)

"""The compiled backend among threads and forked processes."""

import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gradients import gradients
from multistable.ops import bmru_scan, cpu, team
from nasty import bmru_inputs
from tolerances import assert_close

LARGE = (5, 129, 129)
pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.fixture(params=[1, 2, 3, 7])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "pool"])
def whose(request, monkeypatch):
    """Whose threads."""
    if request.param == "pool":
        monkeypatch.setattr(team, "_openmp", lambda: None)
    elif team._openmp() is None:
        pytest.skip("torch brought no OpenMP of GNU's along")
    return request.param


@pytest.mark.parametrize("shape", [LARGE, (1, 513, 129), (2, 2049, 17), (3, 22000, 1)], ids=str)
def test_bmru_scan_any_number_of_threads(threads, whose, shape):
    inputs = bmru_inputs(torch.float32, shape=shape)
    assert threads == 1 or len(cpu._spans_of_steps(inputs["cand"])) > 1
    portable, compiled = (partial(bmru_scan, backend=name) for name in ("portable", "cpu"))
    assert torch.equal(compiled(**inputs), portable(**inputs))
    names = ["cand", "beta", "alpha", "h0"]
    actual, expected = gradients(compiled, inputs, names), gradients(portable, inputs, names)
    for name in names:
        assert_close(actual[name], expected[name], name)


def test_bmru_scan_in_two_python_threads_at_once(whose):
    inputs = [bmru_inputs(torch.float32, shape=LARGE, seed=seed) for seed in range(8)]
    expected = [bmru_scan(**x, backend="portable") for x in inputs]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            found = pool.map(lambda x: bmru_scan(**x, backend="cpu"), inputs)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_all_threads_are_called_at_once(whose):
    together = threading.Barrier(3, timeout=10)
    called = []

    def function():
        together.wait()
        called.append((threading.get_ident(), threading.current_thread().name))

    team.call_together(function, 3)
    assert len(set(called)) == 3
    assert threading.get_ident() in dict(called)
    assert sum(name.startswith("multistable") for _, name in called) == (2 if whose == "pool" else 0)


def test_an_error_in_any_thread_is_raised(whose):
    mine, together = threading.get_ident(), threading.Barrier(2, timeout=10)

    def function():
        together.wait()
        if threading.get_ident() != mine:
            raise OverflowError("in the other thread")

    with pytest.raises(OverflowError, match="in the other thread"):
        team.call_together(function, 2)


def test_an_error_here_waits_for_the_others(whose):
    """Or they would go on in memory that is no longer theirs."""
    mine, together, ended = threading.get_ident(), threading.Barrier(2, timeout=10), []

    def function():
        together.wait()
        if threading.get_ident() == mine:
            raise OverflowError("in this thread")
        time.sleep(0.05)
        ended.append(True)

    with pytest.raises(OverflowError, match="in this thread"):
        team.call_together(function, 2)
    assert ended == [True]


@pytest.mark.skipif(not torch.backends.openmp.is_available() or sys.platform != "linux", reason="no OpenMP of GNU's")
def test_threads_are_torchs_own():
    """Where torch's wheel has the library, it is found: the pool would do as well, and be slower in silence."""
    libraries = list((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    assert (team._openmp() is not None) == bool(libraries)


def test_the_library_is_found_in_a_folder_with_spaces():
    line = "7f1c2a000000-7f1c2a02e000 r-xp 00000000 fd:01 131090                     "
    path = "/home/some one/my env/torch/lib/libgomp.so.1"
    assert team._find(f"{line}/usr/lib/libc.so.6\n{line}{path}\n{line}[heap]\n") == path
    assert team._find(f"{line}/usr/lib/libgomp.so.1\n") is None


class Scans(Dataset):
    """Each item is a scan made in the worker, on two threads of the backend's own pool.

    torch's own threads do not survive a fork (OpenMP), so the worker gets one, as DataLoader arranges; only the backend
    is told otherwise.
    """

    def __init__(self):
        self.inputs = [bmru_inputs(torch.float32, shape=LARGE, seed=seed) for seed in range(4)]

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        torch.set_num_threads(1)
        torch.get_num_threads = lambda: 2  # in this process, which ends soon
        return bmru_scan(**self.inputs[i], backend="cpu")


def use_threads(monkeypatch):
    """torch's and the pool's, so that a forked child finds both gone."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    bmru_scan(**bmru_inputs(torch.float32, shape=LARGE), backend="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(team, "_openmp", lambda: None)
        bmru_scan(**bmru_inputs(torch.float32, shape=LARGE), backend="cpu")
    torch.set_num_threads(before)
    assert team._pool is not None


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


@forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_bmru_scan_in_a_forked_data_loader_worker(monkeypatch):
    use_threads(monkeypatch)
    scans = Scans()
    loader = DataLoader(scans, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=30)
    for x, h in zip(scans.inputs, loader, strict=True):
        assert torch.equal(h, bmru_scan(**x, backend="portable"))


@forks
def test_bmru_scan_in_a_forked_child(monkeypatch):
    use_threads(monkeypatch)
    scans = Scans()
    expected = bmru_scan(**scans.inputs[0], backend="portable")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:  # no assertion, no cleanup: the child must not run the parent's pytest
        try:
            signal.alarm(30)
            right = torch.equal(scans[0], expected)
        except BaseException:
            right = False
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

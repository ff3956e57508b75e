"""Loops compile even where numba cannot cache, or where its files are damaged."""

import importlib.util
import sys
import warnings

import numba
import pytest
from numba import njit

from full_disk import full_disk
from multistable.ops import compiled as module
from multistable.ops.compiled import compiled


def function_without_file():
    """A function that numba finds no cache folder for, like those of a read-only package."""
    names = {}
    exec("def double(x):\n    return 2 * x", names)
    return names["double"]


def test_compiles_without_a_cache_folder():
    with pytest.raises(RuntimeError, match="cannot cache function"):
        njit(cache=True)(function_without_file())
    assert compiled()(function_without_file())(21) == 42


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Two functions of a file, whose cache is in tmp_path / "cache"."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    module._warn.cache_clear()
    path = tmp_path / "loops.py"
    path.write_text("def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n")
    spec = importlib.util.spec_from_file_location("loops", path)
    loops = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loops", loops)  # a cached function is found by its module
    spec.loader.exec_module(loops)
    return loops.double, loops.triple


def hits(dispatcher) -> int:
    return sum(dispatcher.stats.cache_hits.values())


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_files_are_replaced_with_one_warning(tmp_path, functions, ending):
    """numba alone raises EOFError at every call, in every process."""
    assert [compiled()(function)(7) for function in functions] == [14, 21]
    again = compiled()(functions[0])
    assert (again(7), hits(again)) == (14, 1)
    damaged = list((tmp_path / "cache").rglob(f"*.{ending}"))
    assert len(damaged) == 2
    for path in damaged:
        path.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match=r"numba's cache in .* is damaged \(EOFError\)") as caught:
        assert [compiled()(function)(7) for function in functions] == [14, 21]
    assert len(caught) == 1
    again = compiled()(functions[0])
    assert (again(7), hits(again)) == (14, 1), "the cache works again"


def test_a_full_disk_is_one_warning(functions):
    with full_disk(100), pytest.warns(RuntimeWarning, match=r"cannot hold numba's cache \(File too large\)") as caught:
        assert [compiled()(function)(7) for function in functions] == [14, 21]
    assert len(caught) == 1


def test_a_good_cache_is_silent(functions):
    with warnings.catch_warnings(action="error"):
        for _ in range(2):
            assert [compiled()(function)(7) for function in functions] == [14, 21]

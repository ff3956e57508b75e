"""Which backend runs and why; an explicit backend is used, or raises."""

import pytest
import torch

from multistable import BMRU
from multistable.ops import BackendError, Choice, bmru_scan, cpu, dispatch, explain, latch_scan, linear_scan, portable
from nasty import bmru_inputs

x = torch.zeros(2, 3, 4)
numba_is_missing = pytest.fixture(
    lambda monkeypatch: monkeypatch.setattr(dispatch, "_installed", lambda package: False)
)


def count_calls(monkeypatch, module):
    """Record the calls of a backend's forward, which still runs."""
    calls, forward = [], module.bmru_forward

    def recorded(*args, **kwargs):
        calls.append(module.__name__)
        return forward(*args, **kwargs)

    monkeypatch.setattr(module, "bmru_forward", recorded)
    return calls


def test_explain_auto_on_the_cpu():
    choice = explain(x)
    assert isinstance(choice, Choice)
    assert choice.backend == "cpu"
    assert choice.reason


def test_explain_auto_elsewhere():
    choice = explain(x.to("meta"))
    assert choice.backend == "portable"
    assert "meta" in choice.refused["cpu"]
    assert "not cpu: the tensors are on meta" in str(choice)


@pytest.mark.usefixtures("numba_is_missing")
def test_explain_auto_without_numba_says_so():
    choice = explain(x)
    assert choice.backend == "portable"
    assert "numba is not installed" in choice.refused["cpu"]
    assert "pip install" in str(choice)


@pytest.mark.usefixtures("numba_is_missing")
def test_explicit_backend_never_falls_back():
    with pytest.raises(BackendError, match="backend 'cpu' cannot serve: numba is not installed"):
        bmru_scan(x, x, torch.ones(4), backend="cpu")
    with pytest.raises(BackendError, match="backend 'cpu' cannot serve"):
        explain(x, backend="cpu")
    with pytest.raises(BackendError, match="backend 'cpu' cannot serve"):
        BMRU(4, 4, backend="cpu")(x)


@pytest.mark.usefixtures("numba_is_missing")
def test_auto_without_numba_runs_portable(monkeypatch):
    calls = count_calls(monkeypatch, portable)
    bmru_scan(x, x, torch.ones(4))
    assert calls == ["multistable.ops.portable"]


def test_explicit_backend_raises_on_a_foreign_device():
    with pytest.raises(BackendError, match="the tensors are on meta"):
        explain(x.to("meta"), backend="cpu")


@pytest.mark.parametrize("module", [portable, cpu], ids=lambda m: m.__name__.rpartition(".")[2])
def test_explicit_backend_is_the_one_that_runs(monkeypatch, module):
    calls = count_calls(monkeypatch, module)
    name = module.__name__.rpartition(".")[2]
    bmru_scan(x, x, torch.ones(4), backend=name)
    BMRU(4, 4, backend=name)(x)
    assert calls == [module.__name__] * 2


def test_auto_runs_what_explain_says(monkeypatch):
    calls = count_calls(monkeypatch, cpu)
    bmru_scan(x, x, torch.ones(4))
    assert calls == [f"multistable.ops.{explain(x).backend}"]


@pytest.mark.parametrize("name", ["cpu", "portable", "reference"])
def test_explain_by_name(name):
    assert str(explain(x, backend=name)).startswith(f"{name}: asked for by name (")


def test_explain_raises_on_an_unknown_name():
    with pytest.raises(ValueError, match="backend must be 'auto' or one of"):
        explain(x, backend="gpu")


@pytest.mark.parametrize(("capability", "refused"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_gpus_before_ampere_are_refused_with_a_reason(monkeypatch, capability, refused):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(dispatch, "_installed", lambda package: True)
    dispatch._gpu_refusal.cache_clear()
    reason = dispatch._REFUSALS["triton"](torch.device("cuda"), False)
    dispatch._gpu_refusal.cache_clear()
    assert (reason is not None and "8.0" in reason) == refused


@pytest.mark.parametrize(("version", "refused"), [("3.4.0", True), ("3.6.0+git1", False), ("3.10.0", False)])
def test_an_old_triton_is_refused_with_a_reason(monkeypatch, version, refused):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton, "__version__", version)
    dispatch._gpu_refusal.cache_clear()
    reason = dispatch._REFUSALS["triton"](torch.device("cuda"), False)
    dispatch._gpu_refusal.cache_clear()
    assert reason == ("triton 3.4.0 is older than 3.6" if refused else None)


def test_an_unknown_backend_raises():
    message = r"backend must be 'auto' or one of .*'portable'.*, got 'cuda'"
    x = bmru_inputs(torch.float32)
    with pytest.raises(ValueError, match=message):
        bmru_scan(**x, backend="cuda")
    with pytest.raises(ValueError, match=message):
        latch_scan(x["cand"] > 0, x["beta"], backend="cuda")
    with pytest.raises(ValueError, match=message):
        linear_scan(x["cand"], x["beta"], backend="cuda")
    with pytest.raises(ValueError, match=message):
        BMRU(3, 5, backend="cuda")
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of .*, got \['cpu'\]"):
        BMRU(3, 5, backend=["cpu"])


def test_explain_raises_without_a_tensor():
    with pytest.raises(TypeError, match="x must be a tensor, got str"):
        explain("cpu")

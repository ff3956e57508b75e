"""Scans, layers and models under ``torch.compile(fullgraph=True)`` and ``torch.export``, with dynamic shapes.

A property of the whole library, not of one source file. Most tests compile with ``aot_eager``, which traces forward
and backward but skips the C++ compiler (20 s per graph); one uses the default backend.
"""

from functools import partial

import pytest
import torch
from torch.export import Dim

from backends import FAST
from multistable import BMRU, FSM, LRU, Counter, Hybrid, HysteresisMRU, MinGRU, ops
from multistable.models import ModelConfig, ModelState, build_model
from nasty import bmru_inputs, latch_inputs
from tolerances import assert_close

every_fast_backend = pytest.mark.parametrize("backend", FAST)
new_compiler = pytest.mark.skipif(
    torch.__version__ < (2, 11), reason="torch's compiler cannot trace this unit before 2.11"
)


@pytest.fixture(autouse=True)
def forget_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:.*Function.* should not be instantiated:DeprecationWarning")  # raised by dynamo
@pytest.mark.parametrize("kind", [BMRU, LRU, Hybrid, MinGRU])
def test_a_layer_that_was_never_called_compiles_as_one_graph(kind):
    """With a state, as a single step, and in a model: the first call must not compute and cache anything."""
    state_size = kind(3, 4).state_size
    x, h0 = torch.randn(5, 2, 3), torch.randn(1, 2, state_size)
    rnn, other = kind(3, 4), kind(3, 4)
    output = torch.compile(rnn, fullgraph=True, backend="eager")(x, h0)[0]
    assert_close(output, rnn(x, h0)[0])
    y, _ = torch.compile(other.step, fullgraph=True, backend="eager")(x[0], h0)
    assert_close(y, other.step(x[0], h0)[0])
    model = build_model(ModelConfig((kind.__name__.lower(),) * 2, 3, 1, d_model=8, d_state=8)).eval()
    assert_close(torch.compile(model, fullgraph=True, backend="eager")(x)[0], model(x)[0])


def scan_arguments(name, shape):
    if name == "bmru_scan":
        return bmru_inputs(torch.float64, shape=shape)
    if name == "latch_scan":
        return latch_inputs(torch.float64, shape=shape, gate="float")
    x = bmru_inputs(torch.float64, shape=shape)
    linear = {"a": x["cand"], "b": x["beta"], "h0": x["h0"], "reset": x["reset"]}
    if name == "linear_scan-complex":
        linear |= {k: torch.complex(linear[k], linear[k].flip(-1)) for k in ("a", "b", "h0")}
    return linear


SCANS = {
    "bmru_scan": ops.bmru_scan,
    "latch_scan": ops.latch_scan,
    "linear_scan": ops.linear_scan,
    "linear_scan-complex": ops.linear_scan,
}


def with_gradients(function, arguments):
    leaves = {k: x.clone().requires_grad_() for k, x in arguments.items() if x.dtype != torch.bool}
    h = function(**(arguments | leaves))
    loss = (h * torch.linspace(1, 2, h.numel()).reshape(h.shape)).abs().sum()
    return [h.detach(), *torch.autograd.grad(loss, list(leaves.values()))]


@every_fast_backend
@pytest.mark.parametrize("name", SCANS)
def test_compile_scan(name, backend):
    def scan(**arguments):
        return SCANS[name](**arguments, backend=backend)

    compiled = torch.compile(scan, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in [(3, 17, 5), (2, 9, 7)]:
        arguments = scan_arguments(name, shape)
        for actual, expected in zip(with_gradients(compiled, arguments), with_gradients(scan, arguments), strict=True):
            assert_close(actual, expected)


def layer_and_gradients(rnn, x, h0):
    rnn.zero_grad()
    x = x.clone().requires_grad_()
    output, h_n = rnn(x, h0)
    (output.sum() + (2 * h_n).sum()).backward()
    return [output, h_n, x.grad, *(p.grad for p in rnn.parameters())]


@every_fast_backend
@pytest.mark.parametrize("batch_first", [False, True], ids=["time_major", "batch_first"])
def test_compile_layer_with_dynamic_shapes(backend, batch_first):
    rnn = BMRU(3, 5, batch_first=batch_first, bidirectional=True, backend=backend, dtype=torch.float64)
    compiled = torch.compile(rnn, fullgraph=True, dynamic=True, backend="aot_eager")
    for first, second in [(7, 4), (13, 2), (5, 9)]:
        B = first if batch_first else second
        x, h0 = torch.randn(first, second, 3).double(), torch.randn(2, B, 5).double()
        expected = layer_and_gradients(rnn, x, h0)
        for actual, wanted in zip(layer_and_gradients(compiled, x, h0), expected, strict=True):
            assert_close(actual, wanted)


def test_compile_layer_with_lengths_and_resets():
    rnn = BMRU(3, 5, batch_first=True, bidirectional=True, dtype=torch.float64)
    compiled = torch.compile(rnn, fullgraph=True, dynamic=True, backend="aot_eager")
    for B, T in [(4, 9), (3, 12)]:
        x, reset, lengths = torch.randn(B, T, 3).double(), torch.rand(B, T) < 0.2, torch.randint(1, T, (B,))
        expected = rnn(x, reset=reset, lengths=lengths)
        for actual, wanted in zip(compiled(x, reset=reset, lengths=lengths), expected, strict=True):
            assert_close(actual, wanted)


@pytest.mark.filterwarnings("ignore:.*Function.* should not be instantiated:DeprecationWarning")  # raised by dynamo
@pytest.mark.parametrize(
    "kind", [Counter, pytest.param(HysteresisMRU, marks=pytest.mark.extra), partial(FSM, surrogate="margin")]
)
@new_compiler
def test_compile_a_surrogate_with_dynamic_shapes(kind):
    """Only with this setting, as docs/clients.md says."""
    rnn = kind(3, 4, num_layers=2, dtype=torch.float64)
    with torch._dynamo.config.patch(specialize_float=True):
        compiled = torch.compile(rnn, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (5, 7):
            x = torch.randn(T, 2, 3).double()
            expected, actual = (
                torch.autograd.grad(f(x)[0].square().sum(), list(rnn.parameters())) for f in (rnn, compiled)
            )
            for a, b in zip(actual, expected, strict=True):
                assert_close(a, b)


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compile_layer_with_inductor(monkeypatch, tmp_path):
    """Also where ``CI`` is set: torch's compiler then refuses operators that have an entry in its decompositions."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # what was compiled before would not be checked
    rnn = BMRU(3, 5, dtype=torch.float64)
    compiled = torch.compile(rnn, fullgraph=True, dynamic=True)
    x, h0 = torch.randn(7, 4, 3).double(), torch.randn(1, 4, 5).double()
    expected = layer_and_gradients(rnn, x, h0)
    for actual, wanted in zip(layer_and_gradients(compiled, x, h0), expected, strict=True):
        assert_close(actual, wanted)


@new_compiler
def test_export_hysteresis_with_dynamic_batch_and_length(tmp_path):
    """Saved and loaded, also at a size larger than one block of its loops (2^15 elements on a CPU)."""
    rnn = HysteresisMRU(3, 8, batch_first=True, dtype=torch.float64)
    x = torch.randn(4, 6, 3).double()
    exported = torch.export.export(rnn, (x,), dynamic_shapes={"input": {0: Dim("B"), 1: Dim("T")}})
    torch.export.save(exported, tmp_path / "layer.pt2")
    program = torch.export.load(tmp_path / "layer.pt2").module()
    for shape in [(4, 6), (2, 11), (3, 5_000)]:
        x = torch.randn(*shape, 3).double()
        for actual, expected in zip(program(x), rnn(x), strict=True):
            assert_close(actual, expected)


@pytest.mark.parametrize("batch_first", [False, True], ids=["time_major", "batch_first"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
def test_export_layer_with_dynamic_batch_and_length(batch_first, bidirectional):
    rnn = BMRU(3, 5, num_layers=2, batch_first=batch_first, bidirectional=bidirectional, dtype=torch.float64)
    axes = {0: Dim("B"), 1: Dim("T")} if batch_first else {0: Dim("T"), 1: Dim("B")}
    x = torch.randn(4, 6, 3).double()
    program = torch.export.export(rnn, (x,), dynamic_shapes={"input": axes}).module()
    for shape in [(4, 6), (2, 11), (9, 3)]:
        x = torch.randn(*shape, 3).double()
        for actual, expected in zip(program(x), rnn(x), strict=True):
            assert_close(actual, expected)


def episodes(B, T):
    """Resets and lengths of a batch, and their dynamic shapes."""
    marks = {"reset": torch.rand(B, T) < 0.2, "lengths": torch.randint(1, T + 1, (B,))}
    return marks, {"reset": {0: Dim("B"), 1: Dim("T")}, "lengths": {0: Dim("B")}}


@pytest.mark.parametrize(
    ("kind", "batch_first", "num_layers"),
    [
        (BMRU, False, 2),
        (BMRU, True, 2),
        (partial(BMRU, start="branch"), False, 2),
        (partial(Hybrid, start="branch"), True, 1),
        (LRU, False, 1),
        (LRU, True, 1),
        (Hybrid, False, 1),
        (MinGRU, True, 1),
        pytest.param(HysteresisMRU, False, 1, marks=new_compiler),
    ],
)
def test_export_layer_with_resets_and_lengths(kind, batch_first, num_layers):
    rnn = kind(3, 8, num_layers=num_layers, batch_first=batch_first, bidirectional=True, dtype=torch.float64)

    def inputs(B, T):
        marks, sizes = episodes(B, T)
        if not batch_first:
            marks["reset"], sizes["reset"] = marks["reset"].T, {0: Dim("T"), 1: Dim("B")}
        return torch.randn(marks["reset"].shape).double()[..., None].repeat(1, 1, 3), marks, sizes

    x, marks, sizes = inputs(4, 6)
    program = torch.export.export(rnn, (x,), marks, dynamic_shapes={"input": sizes["reset"], **sizes}).module()
    for shape in [(4, 6), (2, 11), (9, 3)]:
        x, marks, _ = inputs(*shape)
        for actual, expected in zip(program(x, **marks), rnn(x, **marks), strict=True):
            assert_close(actual, expected)


@pytest.mark.parametrize("pooling", ["last", "mean", "none"])
def test_export_model_with_resets_and_lengths(pooling):
    model = build_model(ModelConfig(("bmru", "hybrid"), 3, 2, d_model=8, d_state=8, pooling=pooling)).double().eval()
    marks, sizes = episodes(4, 6)
    x = torch.randn(4, 6, 3).double()
    program = torch.export.export(model, (x,), marks, dynamic_shapes={"x": sizes["reset"], **sizes}).module()
    for B, T in [(4, 6), (2, 11), (9, 3)]:
        x, marks = torch.randn(B, T, 3).double(), episodes(B, T)[0]
        assert_close(program(x, **marks)[0], model(x, **marks)[0])


@pytest.mark.parametrize("cells", [("bmru", "hybrid"), ("mingru", "brc")], ids="-".join)
def test_exported_model_can_be_saved_and_loaded(tmp_path, cells):
    """The state goes in and out: the loaded program continues where the model stopped."""
    model = build_model(ModelConfig(cells, 3, 2, d_model=8, d_state=8)).double().eval()
    x = torch.randn(2, 9, 3).double()
    state = model(x)[1].detach()
    torch.export.save(torch.export.export(model, (x, state)), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    y, after = program(x, state)
    expected, expected_state = model(x, state)
    assert type(after) is ModelState
    assert_close(y, expected)
    assert torch.equal(after.position, expected_state.position)
    for actual, h in zip(after.cells, expected_state.cells, strict=True):
        assert_close(actual, h)


class Scan(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x, y, h0, reset):
        if self.name == "bmru_scan":
            return ops.bmru_scan(x, y, h0[0], h0, reset=reset)
        return SCANS[self.name](x, y, h0, reset=reset)


@pytest.mark.parametrize("name", SCANS)
def test_export_scan_with_dynamic_batch_and_length(name):
    B, T = Dim("B"), Dim("T")
    shapes = {"x": {0: B, 1: T}, "y": {0: B, 1: T}, "h0": {0: B}, "reset": {0: B, 1: T}}

    def inputs(shape):
        arguments = scan_arguments(name, shape)
        return [arguments[k] for k in arguments if k != "alpha"]

    program = torch.export.export(Scan(name), tuple(inputs((3, 6, 5))), dynamic_shapes=shapes).module()
    for shape in [(3, 6, 5), (2, 11, 5), (7, 4, 5)]:
        x, y, h0, reset = inputs(shape)
        assert_close(program(x, y, h0, reset), Scan(name)(x, y, h0, reset))

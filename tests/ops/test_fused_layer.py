"""A layer's projection and scan in one function (``ops/fused_layer.py``) against ``F.linear`` and ``bmru_layer``."""

import contextlib
import sys

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim

from multistable import BMRU
from multistable.ops import fused_layer, memory
from multistable.ops.layer_scans import bmru_layer
from tolerances import assert_close, assert_same_bits

SHAPES = [(3, 40), (2, 1)]


def run(rnn: BMRU, x: Tensor, hx: Tensor | None, **options: Tensor) -> list[Tensor]:
    """Output, h_n and the gradients of everything."""
    leaves = [y.clone().requires_grad_() for y in (x, hx) if y is not None]
    output, h_n = rnn(*leaves, **options)
    weights = [torch.linspace(1, 9, y.numel(), dtype=y.dtype).reshape(y.shape).cos() for y in (output, h_n)]
    grads = torch.autograd.grad((output, h_n), [*leaves, *rnn.parameters()], weights)
    return [output.detach(), h_n.detach(), *grads]


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Use the function for projections of any size."""
    monkeypatch.setattr(fused_layer, "_SMALLEST", 0)
    return monkeypatch


def project_and_scan_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the projection and the scan separately."""
    monkeypatch.setattr(fused_layer, "_SMALLEST", 1 << 60)


@pytest.mark.parametrize("with_lengths", [False, True], ids=["full", "lengths"])
@pytest.mark.parametrize("with_reset", [False, True], ids=["no_reset", "reset"])
@pytest.mark.parametrize("with_state", [False, True], ids=["no_state", "state"])
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time_major", "batch_first"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_separate_projection_and_scan(
    any_size, shape, batch_first, bidirectional, bias, with_state, with_reset, with_lengths
) -> None:
    B, T = shape
    rnn = BMRU(4, 9, 2, bias, batch_first, bidirectional=bidirectional, dtype=torch.float64)
    x, reset = torch.randn(B, T, 4).double(), torch.rand(B, T) < 0.1
    x, reset = (x, reset) if batch_first else (x.transpose(0, 1), reset.T)
    hx = torch.randn(2 * (1 + bidirectional), B, 9).double() if with_state else None
    options = {"reset": reset} if with_reset else {}
    if with_lengths:
        options["lengths"] = torch.randint(0, T + 1, (B,))
    assert fused_layer.fused_backend(x, rnn.weight_ih_l0, "auto")
    got = run(rnn, x, hx, **options)
    with torch.no_grad():
        for quiet, kept in zip(rnn(x, hx, **options), got[:2], strict=True):
            assert torch.equal(quiet, kept)
    project_and_scan_separately(any_size)
    for actual, expected in zip(got, run(rnn, x, hx, **options), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("batch_first", [False, True], ids=["time_major", "batch_first"])
@pytest.mark.parametrize("with_lengths", [False, True], ids=["full", "lengths"])
def test_chunks_of_different_lengths(batch_first, with_lengths) -> None:
    """Of 5 MiB of projection, 4 are computed at once. The reverse direction begins with the later steps."""
    rnn, x = BMRU(3, 64, batch_first=batch_first, bidirectional=True, dtype=torch.float64), torch.randn(2, 2560, 3)
    x = x.double() if batch_first else x.double().transpose(0, 1)
    options = {"lengths": torch.tensor([2560, 2000])} if with_lengths else {}
    with torch.no_grad():
        quiet = rnn(x, **options)
    for actual, expected in zip(quiet, rnn(x, **options), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("chosen", [0, 1], ids=["h", "h_last"])
def test_gradients_through_one_output(any_size, chosen) -> None:
    """The gradient of the other output is None, not zero; the input needs no gradient."""
    rnn, x = BMRU(4, 9, dtype=torch.float64), torch.randn(50, 2, 4).double()

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(rnn(x)[chosen].cos().sum(), list(rnn.parameters()))

    got = gradients()
    project_and_scan_separately(any_size)
    for actual, expected in zip(got, gradients(), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("frozen", ["weight_ih_l0", "bias_ih_l0", "alpha_l0"])
def test_a_frozen_parameter(any_size, frozen) -> None:
    rnn, x = BMRU(4, 9, dtype=torch.float64), torch.randn(50, 2, 4).double()
    rnn.get_parameter(frozen).requires_grad_(False)
    rnn(x)[0].sum().backward()
    grads = {name: parameter.grad for name, parameter in rnn.named_parameters()}
    assert grads.pop(frozen) is None
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads.values())


@pytest.fixture
def long_sequence() -> tuple[BMRU, Tensor]:
    """A layer and an input whose projection takes 5 MiB; the states are smaller, so their memory is not kept.

    On Linux, the memory of the first step is idle until the next step.
    """
    memory.release_memory()
    rnn, x = BMRU(3, 256, batch_first=True), torch.randn(1, 2560, 3)
    rnn(x)[0].sum().backward()
    return rnn, x


def projections(rnn: BMRU, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the projections saved for the backward, one per layer."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y) or y, lambda y: y):
        output = rnn(x)[0]
    return output, [y for y in saved if y.shape == (*x.shape[:2], 512)]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is kept on Linux only")
@pytest.mark.parametrize("fails", [False, True], ids=["step", "failure"])
def test_a_step_returns_its_memory(long_sequence, monkeypatch, fails) -> None:
    rnn, x = long_sequence
    blocks = {id(block.memory) for block in memory._idle}  # for the projection and its gradient
    assert len(blocks) == 2
    output = rnn(x)[0]
    assert len(memory._idle) == 1
    if fails:
        monkeypatch.setattr(fused_layer, "call", lambda *args: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        output.sum().backward()
    del output
    assert {id(block.memory) for block in memory._idle} == blocks


@pytest.mark.skipif(sys.platform != "linux", reason="memory is kept on Linux only")
def test_a_failed_forward_returns_its_memory(long_sequence, monkeypatch) -> None:
    rnn, x = long_sequence
    seen = []
    monkeypatch.setattr(fused_layer, "load", lambda backend: seen.append(len(memory._idle)) or 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        rnn(x)
    assert seen == [1]
    assert len(memory._idle) == 2


def test_layers_do_not_share_projections(long_sequence) -> None:
    x = long_sequence[1]
    _, saved = projections(BMRU(3, 256, num_layers=3, batch_first=True), x)
    assert len({y.data_ptr() for y in saved}) == 3


def test_a_retained_graph_keeps_its_projection(long_sequence) -> None:
    """Other steps run between the two backwards."""
    rnn, x = long_sequence
    output = rnn(x)[0]
    first = torch.autograd.grad(output, list(rnn.parameters()), output.cos(), retain_graph=True)
    for _ in range(2):
        rnn(-x)[0].sum().backward()
    for actual, expected in zip(torch.autograd.grad(output, list(rnn.parameters()), output.cos()), first, strict=True):
        assert torch.equal(actual, expected)


def test_a_saved_projection_is_not_overwritten(long_sequence) -> None:
    """Even after the backward has freed the graph, if a hook still holds it."""
    rnn, x = long_sequence
    output, [proj] = projections(rnn, x)
    before = proj.clone()
    output.sum().backward()
    for _ in range(2):
        rnn(-x)[0].sum().backward()
    assert torch.equal(proj, before)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is kept on Linux only")
def test_outputs_and_gradients_are_not_overwritten() -> None:
    """Their memory is kept too, but not reused while anything refers to them."""
    memory.release_memory()
    rnn, held = BMRU(256, 256, batch_first=True), []
    for _ in range(3):
        x = torch.randn(1, 5120, 256, requires_grad=True)
        output = rnn(x)[0]
        held += [(y, y.clone()) for y in (output.detach(), *torch.autograd.grad(output, x, output.cos()))]
    del output
    assert all(torch.equal(now, then) for now, then in held)
    where = {now.data_ptr() for now, _ in held}
    assert len(where) == 6
    held.clear()
    assert rnn(x)[0].data_ptr() in where


def large() -> tuple[BMRU, Tensor]:
    """A layer and an input whose output takes 8 MiB."""
    return BMRU(16, 64), torch.randn(1024, 32, 16)


@pytest.mark.parametrize("change", [torch.relu_, lambda y: y.add_(1), lambda y: y.detach_()])
def test_large_outputs_can_be_changed_in_place(change) -> None:
    """A view returned by an autograd function could not be."""
    rnn, x = large()
    output = rnn(x)[0]
    expected = change(output.detach().clone())
    assert torch.equal(change(output), expected)


def test_the_default_device_does_not_matter() -> None:
    rnn, x = large()
    expected = rnn(x)[0]
    with torch.device("meta"):
        output = rnn(x)[0]
    assert output.device.type == "cpu"
    assert torch.equal(output, expected)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_large_inputs_can_be_traced() -> None:
    rnn, x = large()
    traced = torch.jit.trace(rnn, (x,))
    assert torch.equal(traced(-x)[0], rnn(-x)[0])


def test_a_lazily_negated_initial_state() -> None:
    rnn, x = large()
    h0 = torch.randn(1, 32, 64, dtype=torch.complex64).conj().imag
    assert h0.is_neg()
    assert torch.equal(rnn(x, h0)[0], rnn(x, h0.resolve_neg())[0])


def test_any_strides(any_size) -> None:
    rnn, x = BMRU(4, 9, batch_first=True, dtype=torch.float64), torch.randn(8, 30, 3).double().transpose(0, 2)[..., ::2]
    assert torch.equal(rnn(x)[0], rnn(x.contiguous())[0])


def test_full_size_matches_the_reference_bit_for_bit() -> None:
    """float32 with a projection of more than 4 MiB: the states equal those of the loop on the same projection.

    D = 1 and no bias: each number is one product, so the order of summation cannot matter.
    """
    rnn, x = BMRU(1, 256, bias=False, batch_first=True), torch.randn(1, 2500, 1)
    assert fused_layer.fused_backend(x, rnn.weight_ih_l0, "auto")
    options = {"alpha_surr": 1.0, "reset": None, "reverse": False, "time_major": False, "backend": "reference"}
    expected = bmru_layer(nn.functional.linear(x, rnn.weight_ih_l0), rnn.alpha_l0, None, **options)
    for actual, wanted in zip(rnn(x), (expected[0], expected[1][None]), strict=True):
        assert_same_bits(actual, wanted)


def test_autocast_in_the_backward_changes_nothing(any_size):
    """The forward ran without it. A product of torch's is not rounded then, either."""
    rnn, x = BMRU(4, 9), torch.randn(50, 2, 4, requires_grad=True)
    grads = []
    for context in (contextlib.nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        loss = rnn(x)[0].cos().sum()
        with context:
            grads.append(torch.autograd.grad(loss, [x, *rnn.parameters()]))
    for actual, expected in zip(*grads, strict=True):
        assert_same_bits(actual, expected)


def test_no_second_derivative(any_size) -> None:
    rnn, x = BMRU(4, 9, dtype=torch.float64), torch.randn(50, 2, 4).double().requires_grad_()
    (grad,) = torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("backend", ["reference", "portable"])
def test_other_backends_are_not_supported(any_size, backend) -> None:
    weight = torch.zeros(18, 4)
    assert fused_layer.fused_backend(torch.zeros(9, 9, 4), weight, "cpu")
    assert not fused_layer.fused_backend(torch.zeros(9, 9, 4), weight, backend)


def test_small_projections_are_not_worth_it() -> None:
    """The limit is 4 MiB: 4096 rows of 256 numbers in float32."""
    weight = torch.zeros(256, 4)
    assert not fused_layer.fused_backend(torch.zeros(1, 4096, 4), weight, "auto")
    assert not fused_layer.fused_backend(torch.zeros(64, 64, 4), weight, "auto")
    assert fused_layer.fused_backend(torch.zeros(1, 4097, 4), weight, "auto")


def test_unsupported_calls(any_size) -> None:
    """Half precision, mixed dtypes, autocast, transforms, tensors that are not on the CPU."""
    x, weight = torch.zeros(9, 9, 4), torch.zeros(18, 4)
    assert not fused_layer.fused_backend(x.bfloat16(), weight.bfloat16(), "auto")
    assert not fused_layer.fused_backend(x, weight.double(), "auto")
    assert not fused_layer.fused_backend(x.to("meta"), weight.to("meta"), "auto")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused_layer.fused_backend(x, weight, "auto")
    seen = []
    torch.func.grad(lambda y: seen.append(fused_layer.fused_backend(y, weight, "auto")) or y.sum())(x)
    assert seen == [None]


def test_fake_tensors(any_size) -> None:
    with FakeTensorMode():
        output, h_n = BMRU(4, 9)(torch.randn(50, 2, 4))
    assert output.shape == (50, 2, 9)
    assert h_n.shape == (1, 2, 9)


def test_long_sequences_export(any_size) -> None:
    rnn, x = BMRU(4, 9, dtype=torch.float64), torch.randn(50, 2, 4).double()
    program = torch.export.export(rnn, (x,), dynamic_shapes={"input": {0: Dim("T"), 1: Dim("B")}}).module()
    x = torch.randn(70, 3, 4).double()
    assert_close(program(x)[0], rnn(x)[0])


def test_long_sequences_compile(any_size) -> None:
    rnn, x = BMRU(4, 9, dtype=torch.float64), torch.randn(50, 2, 4).double()
    compiled = torch.compile(rnn, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_close(compiled(x)[0], rnn(x)[0])
    torch.compiler.reset()

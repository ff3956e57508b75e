"""What only a GPU can show: offsets beyond 2^31, determinism, torch.compile and CUDA graphs."""

import copy

import pytest
import torch

from multistable import BMRU, LRU, Hybrid, MinGRU
from multistable.ops import bmru_scan, compile_kernels, explain, linear_scan
from tolerances import assert_close, assert_same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_auto_chooses_the_kernels():
    assert explain(torch.empty(1, device="cuda")).backend == "triton"


@pytest.mark.parametrize("time_major", [False, True], ids=["batch_first", "time_major"])
def test_bmru_scan_beyond_31_bits(time_major):
    """More than 2^31 numbers: the last sequence of a large batch equals the same sequence alone."""
    B, T, N = 9, 1 << 18, 1024
    shape = (T, B, N) if time_major else (B, T, N)
    cand, beta = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    assert cand.numel() > 2**31
    if time_major:
        cand, beta = cand.transpose(0, 1), beta.transpose(0, 1)
    alpha = torch.ones(N, device="cuda")
    h = bmru_scan(cand, beta, alpha, backend="triton")
    for b in (0, B - 1):
        alone = bmru_scan(cand[b : b + 1].clone(), beta[b : b + 1].clone(), alpha, backend="triton")
        assert_same_bits(h[b], alone[0])
    tail = bmru_scan(cand[:, -3:], beta[:, -3:], alpha, h[:, -4], backend="portable")
    assert_same_bits(h[:, -3:], tail)


def test_bmru_gradients_beyond_31_bits():
    B, T, N = 9, 1 << 18, 1024
    cand, beta = (torch.randn(B, T, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    alpha = torch.ones(N, device="cuda")
    options = alpha, None, None
    h = torch.ops.multistable.bmru_scan(cand, beta, *options, 1.0, False, "triton")[0]
    whole = torch.ops.multistable.bmru_scan_backward(cand, None, cand, beta, *options, h, 1.0, False, "triton")
    last = [x[-1:].clone() for x in (cand, beta, h)]
    alone = torch.ops.multistable.bmru_scan_backward(
        last[0], None, last[0], last[1], *options, last[2], 1.0, False, "triton"
    )
    for name, one, other in zip(("cand", "beta"), whole, alone, strict=False):
        assert_close(one[-1:], other, name)


@pytest.mark.parametrize("shape", [(3, 1000, 40), (1, 50_000, 64)], ids=["batch", "long"])
def test_the_same_input_gives_the_same_bits_twice(shape):
    B, T, N = shape
    rnn = BMRU(N, N, batch_first=True, device="cuda")
    x = torch.randn(B, T, N, device="cuda")

    def train():
        rnn.zero_grad()
        output, h_n = rnn(x)
        (output.square().mean() + h_n.sum()).backward()
        return [output, h_n, *(p.grad.clone() for p in rnn.parameters())]

    for one, other in zip(train(), train(), strict=True):
        assert_same_bits(one, other)


def test_compiled_layers_use_the_kernels():
    rnn = BMRU(16, 32, num_layers=2, bidirectional=True, device="cuda")
    compiled = torch.compile(rnn, fullgraph=True)
    x = torch.randn(50, 3, 16, device="cuda")
    expected, actual = rnn(x)[0], compiled(x)[0]
    assert_close(actual, expected.double())
    actual.sum().backward()
    assert all(p.grad is not None for p in rnn.parameters())


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the first one that torch's compiler makes
@pytest.mark.parametrize("kind", [BMRU, LRU])
def test_first_calls_in_graphs_of_the_compiler(kind):
    """Nothing that a first call keeps may lie in the memory of a graph, which torch checks after it."""
    from multistable.ops.triton import launch

    launch._nothing.cache_clear()
    rnn = kind(16, 32, batch_first=True, device="cuda")
    compiled = torch.compile(rnn, mode="reduce-overhead", fullgraph=True)
    x = torch.randn(3, 50, 16, device="cuda")
    for _ in range(3):  # warm-up, capture, replay
        torch.compiler.cudagraph_mark_step_begin()
        output, h_n = compiled(x)
        grads = torch.autograd.grad(output.sum() + h_n.sum(), tuple(rnn.parameters()))
        assert all(grad.isfinite().all() for grad in grads)
        assert_close(output, rnn(x)[0].double())


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_a_cuda_graph_gives_the_same_bits():
    cand, beta = (torch.randn(4, 100, 32, device="cuda", requires_grad=True) for _ in range(2))
    alpha = torch.ones(32, device="cuda")

    def both():
        h = bmru_scan(cand, beta, alpha)
        return h, *torch.autograd.grad(h.square().sum(), (cand, beta))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    with torch.no_grad():
        cand.copy_(torch.randn_like(cand))
    graph.replay()
    for one, other in zip(captured, both(), strict=True):
        assert_same_bits(one, other)


def test_long_linear_scan():
    """A single sequence in many chunks, against the portable backend in float64."""
    a = torch.polar(torch.rand(24, dtype=torch.float64), 6 * torch.rand(24, dtype=torch.float64)).cuda()
    b = torch.randn(1, 60_000, 24, dtype=torch.complex128, device="cuda")
    expected = linear_scan(a, b, backend="portable")
    assert_close(linear_scan(a, b, backend="triton"), expected)
    assert_close(linear_scan(a.to(torch.complex64), b.to(torch.complex64), backend="triton"), expected)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # torch captures on a stream of its own
@pytest.mark.parametrize("kind", [BMRU, LRU, Hybrid, MinGRU])
def test_layers_in_graphs_of_torch(kind):
    """``torch.cuda.make_graphed_callables`` captures forward and backward; the numbers are those of the layer."""
    torch.manual_seed(0)
    layer = kind(16, 32, batch_first=True, device="cuda")
    plain = copy.deepcopy(layer)  # a layer that has been differentiated outside cannot be captured
    layer = torch.cuda.make_graphed_callables(layer, (torch.randn(4, 50, 16, device="cuda", requires_grad=True),))
    x, weight = (torch.randn(4, 50, n, device="cuda", requires_grad=True) for n in (16, 32))

    def train(rnn):
        output, h_n = rnn(x)
        return output, h_n, *torch.autograd.grad((output * weight).sum() + h_n.sum(), (x, *rnn.parameters()))

    for one, other in zip(train(layer), train(plain), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "kind"), [("bmru", BMRU), ("lru", LRU)])
def test_nothing_is_compiled_after_compile_kernels(monkeypatch, name, kind, dtype):
    """At any batch and length, in both directions."""
    import triton

    N, compiled = 72, []
    compile_kernels([name], [N], [dtype])
    assert compile_kernels([name], [N], [dtype]) == 0
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **compilation: compiled.append(compilation))
    for batch_first in (False, True):
        rnn = kind(8, N, batch_first=batch_first, bidirectional=True, device="cuda", dtype=dtype)
        for B, T in ((1, 1), (16, 50), (3, 1000), (1000, 9), (1, 60_000), (40, 2000)):
            x = torch.randn(*((B, T) if batch_first else (T, B)), 8, device="cuda", dtype=dtype)
            rnn(x)[0].sum().backward()
    assert not compiled

"""Programs in torch's own operators, and ONNX files made from them: ONNX Runtime gives torch's results."""

import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from multistable import BMRU, BRC, FSM, LRU, Hybrid, HysteresisMRU, MinGRU, Stack, ops
from multistable.export import decompositions
from multistable.layers import find_layer
from multistable.models import ModelConfig, PositionConfig, build_model
from nasty import VALUES, bmru_inputs, latch_inputs
from tolerances import assert_close, assert_same_bits

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.extra
BATCH, TIME = Dim("B"), Dim("T")


def plain_program(model, args, dynamic=None):
    exported = torch.export.export(model.eval(), args, dynamic_shapes=dynamic)
    program = exported.run_decompositions(decompositions())
    assert not [node.target for node in program.graph.nodes if "multistable" in str(node.target)]
    return program


class Session:
    """A program exported to ONNX, called like the model it was made from."""

    def __init__(self, program, path):
        torch.onnx.export(program, dynamo=True, verbose=False).save(path)
        self.session = onnxruntime.InferenceSession(path)

    def __call__(self, *args):
        names = [x.name for x in self.session.get_inputs()]
        arrays = [x.numpy() for x in args if x is not None]
        return [torch.from_numpy(y) for y in self.session.run(None, dict(zip(names, arrays, strict=True)))]


class Scan(torch.nn.Module):
    def __init__(self, scan):
        super().__init__()
        self.scan = scan

    def forward(self, x, y, *rest):
        *level, h0, reset = rest
        return self.scan(x, y, *level, h0, reset=reset)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scan", [ops.bmru_scan, ops.latch_scan], ids=lambda scan: scan.__name__)
def test_latches_select_the_same_numbers(tmp_path, scan, dtype):
    """Ties, infinities and NaN included. ONNX Runtime's ``Where`` turns -0.0 into 0.0."""
    inputs_of = bmru_inputs if scan is ops.bmru_scan else latch_inputs
    session = None
    for values in VALUES:
        args = tuple(inputs_of(dtype, values).values())
        if any(x is None for x in args) or any(x.is_floating_point() and x.dtype != dtype for x in args):
            continue  # these inputs need a different program
        session = session or Session(plain_program(Scan(scan), args), tmp_path / "scan.onnx")
        [h] = session(*args)
        assert_same_bits(h + 0.0, scan(*args[:-1], reset=args[-1]) + 0.0, values)


@pytest.mark.parametrize("values", ["no_h0", "no_reset", "nothing_but_input"])
def test_optional_inputs_of_a_latch_can_be_left_out(tmp_path, values):
    args = tuple(bmru_inputs(torch.float32, values).values())
    [h] = Session(plain_program(Scan(ops.bmru_scan), args), tmp_path / "scan.onnx")(*args)
    assert_same_bits(h, ops.bmru_scan(*args[:-1], reset=args[-1]))


@pytest.mark.parametrize("K", [3, 16])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_map_scan(tmp_path, K, reverse):
    class Machines(torch.nn.Module):
        def forward(self, maps, s0, reset):
            return ops.map_scan(maps, s0, reset=reset, reverse=reverse)

    maps, s0 = torch.randint(K, (2, 9, 4, K), dtype=torch.uint8), torch.randint(K, (2, 4), dtype=torch.uint8)
    args = maps, s0, torch.rand(2, 9) < 0.3
    [states] = Session(plain_program(Machines(), args), tmp_path / "scan.onnx")(*args)
    assert torch.equal(states, ops.map_scan(*args[:2], reset=args[2], reverse=reverse))


@pytest.mark.parametrize("constant", [False, True], ids=["per_step", "constant"])
@pytest.mark.parametrize("reset", [False, True], ids=["no_reset", "reset"])
def test_linear_scan(tmp_path, constant, reset):
    x = bmru_inputs(torch.float32)
    a = x["cand"].tanh()[0, 0] if constant else x["cand"].tanh()
    args = (a, x["beta"], x["h0"], x["reset"] if reset else None)
    [h] = Session(plain_program(Scan(ops.linear_scan), args), tmp_path / "scan.onnx")(*args)
    assert_close(h, ops.linear_scan(*args[:-1], reset=args[-1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_once(dtype):
    """As under autocast, where levels and states may have a wider dtype."""
    x = bmru_inputs(dtype, "wide_alpha_and_h0")
    for scan, args in (
        (ops.bmru_scan, tuple(x.values())),
        (ops.linear_scan, (x["cand"].tanh(), x["beta"], x["h0"], x["reset"])),
    ):
        h = plain_program(Scan(scan), args).module()(*args)
        assert_same_bits(h, scan(*args[:-1], reset=args[-1], backend="reference"), scan.__name__)


def test_complex_numbers_stay_complex():
    x = bmru_inputs(torch.float64)
    a, b, h0 = (torch.complex(v, v.flip(-1)) for v in (x["cand"].tanh() / 2, x["beta"], x["h0"]))
    h = plain_program(Scan(ops.linear_scan), (a, b, h0, x["reset"])).module()(a, b, h0, x["reset"])
    assert_close(h, ops.linear_scan(a, b, h0, reset=x["reset"]))


def with_exact_products(rnn):
    """Weights with few bits, so that inputs with few bits give the same projection in any order of summation."""
    with torch.no_grad():
        for name, weight in rnn.named_parameters():
            if "alpha" not in name:
                weight.copy_((weight * 64).round() / 64)
    return rnn


@pytest.mark.parametrize(("batch_first", "num_layers"), [(False, 2), (True, 1)], ids=["time_major", "batch_first"])
def test_bmru_has_the_same_bits_at_any_batch_and_length(tmp_path, batch_first, num_layers):
    rnn = with_exact_products(BMRU(3, 8, num_layers=num_layers, batch_first=batch_first, bidirectional=True))
    axes = {0: BATCH, 1: TIME} if batch_first else {0: TIME, 1: BATCH}
    session = Session(plain_program(rnn, (torch.zeros(5, 4, 3),), {"input": axes}), tmp_path / "layer.onnx")
    for shape in [(5, 4), (4, 300), (40, 3)]:
        x = torch.randint(-8, 9, (*shape, 3)) / 4
        for actual, expected in zip(session(x), rnn(x), strict=True):
            assert_same_bits(actual, expected)
    assert expected.unique().numel() > 1


@pytest.mark.parametrize(("kind", "bidirectional"), [(LRU, True), (Hybrid, False), (MinGRU, False)])
def test_other_parallel_layers(tmp_path, kind, bidirectional):
    rnn = with_exact_products(kind(3, 8, batch_first=True, bidirectional=bidirectional))
    axes = {"input": {0: BATCH, 1: TIME}}
    session = Session(plain_program(rnn, (torch.zeros(5, 4, 3),), axes), tmp_path / "layer.onnx")
    for shape in [(5, 4), (2, 300)]:
        x = torch.randint(-8, 9, (*shape, 3)) / 4
        for actual, expected in zip(session(x), rnn(x), strict=True):
            assert_close(actual, expected)


def test_sequential_layers_have_a_fixed_length(tmp_path):
    rnn, x = BRC(3, 8, batch_first=True), torch.randn(7, 4, 3)
    session = Session(plain_program(rnn, (x[:3],), {"input": {0: BATCH}}), tmp_path / "layer.onnx")
    for actual, expected in zip(session(x), rnn(x), strict=True):
        assert_close(actual, expected)


def test_hysteresis_in_torch_operators():
    rnn, x = HysteresisMRU(3, 8, batch_first=True, dtype=torch.float64), torch.randn(2, 9, 3).double()
    for actual, expected in zip(plain_program(rnn, (x,)).module()(x), rnn(x), strict=True):
        assert_close(actual, expected)


EVERY = [
    ("bmru", 0),
    ("lru", 1e-5),
    ("hybrid", 1e-5),
    ("mingru", 1e-5),
    ("hysteresis", 2e-5),  # ONNX Runtime's tanh in float32
    ("fsm:5", 0),
]


@pytest.mark.parametrize(("name", "tolerance"), EVERY)
def test_the_ordinary_call(tmp_path, name, tolerance):
    """``torch.onnx.export(model, args, path)``, with names, any batch and any length."""
    torch.manual_seed(0)
    kind, options = find_layer(name)
    rnn = kind(3, 8, num_layers=2, **options).eval()
    rnn = with_exact_products(rnn) if tolerance == 0 else rnn
    path, names = tmp_path / "layer.onnx", ["output", "h_n"]
    torch.onnx.export(
        rnn, (torch.zeros(5, 4, 3),), path, input_names=["input"], output_names=names,
        dynamic_shapes=({0: "T", 1: "B"},), verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path)
    assert [x.name for x in session.get_outputs()] == names
    for shape in [(5, 4), (300, 2)]:
        x = torch.randint(-8, 9, (*shape, 3)) / 4
        for actual, expected in zip(session.run(names, {"input": x.numpy()}), rnn(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=tolerance, atol=tolerance)


def test_the_ordinary_call_of_a_stack(tmp_path):
    torch.manual_seed(0)
    rnn = Stack("hybrid", 3, 8, 2, batch_first=True, bidirectional=True).eval()
    torch.onnx.export(
        rnn, (torch.zeros(5, 4, 3),), tmp_path / "stack.onnx", input_names=["input"],
        dynamic_shapes=({0: "B", 1: "T"},), verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(tmp_path / "stack.onnx")
    x = torch.randn(2, 30, 3)
    for actual, expected in zip(session.run(None, {"input": x.numpy()}), rnn(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-4)


class Output(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = BMRU(3, 8)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.filterwarnings("ignore")
def test_the_old_exporter_names_the_operator(tmp_path):
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="multistable::bmru_layer"):
        torch.onnx.export(Output(), (torch.zeros(5, 4, 3),), tmp_path / "layer.onnx", dynamo=False)


@pytest.mark.parametrize("n_states", [2, 5, 16])
def test_machines_are_in_the_same_states(tmp_path, n_states):
    """Words of every size, in both directions, with resets."""
    torch.manual_seed(0)
    rnn = with_exact_products(FSM(3, 6, n_states=n_states, batch_first=True, bidirectional=True))

    def inputs(B, T):
        h0 = torch.nn.functional.one_hot(torch.randint(n_states, (2, B, 6)), n_states).flatten(2).float()
        h0 = torch.cat([torch.zeros(2, B, 6), h0], dim=-1)
        return torch.randint(-8, 9, (B, T, 3)) / 4, h0, torch.rand(B, T) < 0.2, torch.randint(1, T + 1, (B,))

    model = AllInputs(rnn)
    axes = ({0: BATCH, 1: TIME}, {1: BATCH}, {0: BATCH, 1: TIME}, {0: BATCH})
    session = Session(plain_program(model, inputs(3, 6), axes), tmp_path / "layer.onnx")
    args = inputs(8, 40)
    for actual, expected in zip(session(*args), model(*args), strict=True):
        assert_same_bits(actual, expected)
    assert expected.unique().numel() > 1


class AllInputs(torch.nn.Module):
    """A layer that takes all its inputs by position."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, h0, reset, lengths):
        return self.rnn(x, h0, reset=reset, lengths=lengths)


@pytest.mark.parametrize("start", ["zero", "branch"])
def test_state_resets_and_lengths(tmp_path, start):
    model = AllInputs(with_exact_products(BMRU(3, 8, batch_first=True, bidirectional=True, start=start)))

    def inputs(B, T):
        x, h0 = torch.randint(-8, 9, (B, T, 3)) / 4, torch.randn(2, B, 8)
        return x, h0, torch.rand(B, T) < 0.2, torch.randint(1, T + 1, (B,))

    axes = ({0: BATCH, 1: TIME}, {1: BATCH}, {0: BATCH, 1: TIME}, {0: BATCH})
    session = Session(plain_program(model, inputs(3, 6), axes), tmp_path / "layer.onnx")
    for shape in [(3, 6), (8, 40)]:
        args = inputs(*shape)
        for actual, expected in zip(session(*args), model(*args), strict=True):
            assert_same_bits(actual, expected)


def test_model_with_positions(tmp_path):
    torch.manual_seed(0)
    cells = ("bmru", "hybrid")
    model = build_model(ModelConfig(cells, 3, 2, d_model=8, d_state=8, position=PositionConfig(T=300)))
    axes = {"x": {0: BATCH, 1: TIME}}
    session = Session(plain_program(model, (torch.zeros(4, 5, 3),), axes), tmp_path / "model.onnx")
    for shape in [(4, 5), (2, 300)]:
        x = torch.randn(*shape, 3)
        with torch.no_grad():
            expected = tree_leaves(model(x))
        for actual, wanted in zip(session(x), expected, strict=True):
            assert_close(actual, wanted) if wanted.is_floating_point() else assert_same_bits(actual, wanted)


@pytest.mark.parametrize("kind", [BMRU, LRU, BRC], ids=lambda kind: kind.__name__)
def test_single_steps(tmp_path, kind):
    """For streaming: the state goes in and comes out."""

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = kind(3, 8, num_layers=2)

        def forward(self, x, state):
            return self.rnn.step(x, state)

    model, x = with_exact_products(Step()), torch.randint(-8, 9, (30, 2, 3)) / 4
    state = torch.zeros(2, 2, model.rnn.state_size)
    session, session_state = Session(plain_program(model, (x[0], state)), tmp_path / "step.onnx"), state
    for x_t in x:
        y, state = model(x_t, state)
        actual, session_state = session(x_t, session_state)
        assert_close(actual, y)
    assert_close(session_state, state)

"""The contract of every layer: chunks, steps, segments, padding, packing, layouts and pickling change nothing."""

import io
import os
import pickle
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import multistable
from layer_names import NAMES
from multistable import BMRU, ClockedRNN, ModelConfig, Stack, build_model
from multistable.dynamics import simplified_brc
from multistable.layers import Recurrent, find_layer

B, T, D, N = 3, 9, 4, 6

TOLERANCE = 1e-12


STACKS = ("stack:bmru", "stack:lru", "stack:hybrid", "stack:lstm", "batch:hybrid")
"""Stacks of two blocks; the last with batch norm, in evaluation mode."""


@pytest.fixture(params=[*NAMES, *STACKS])
def name(request) -> str:
    return request.param


def make(name: str, **options) -> Recurrent:
    torch.manual_seed(0)
    kind, fixed = (partial(Stack, name.split(":")[1]), {}) if name in STACKS else find_layer(name)
    options |= {"norm": "batch"} if name.startswith("batch") else {}
    sizes = {"input_size": D, "hidden_size": N, "num_layers": 2, "batch_first": True, "dtype": torch.float64}
    cell = kind(**sizes | fixed | options)
    with torch.no_grad():  # no parameter keeps a value that hides a mistake, such as 0 or 1
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return cell.eval()


def random_batch(cell: Recurrent, length: int = T) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and an initial state."""
    torch.manual_seed(1)
    states = cell.num_layers * (2 if cell.bidirectional else 1)
    h0 = torch.randn(states, B, cell.state_size, dtype=torch.float64)
    return torch.randn(B, length, D, dtype=torch.float64), h0


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("cut", [1, 2, T // 2, T - 1])
def test_chunks_equal_whole(name, cut):
    cell = make(name)
    x, h0 = random_batch(cell)
    output, h_n = cell(x, h0)
    first, h = cell(x[:, :cut], h0)
    second, h = cell(x[:, cut:], h)
    assert_close(torch.cat([first, second], dim=1), output)
    assert_close(h, h_n)


@pytest.mark.parametrize("length", [1, T])
def test_steps_equal_forward(name, length):
    cell = make(name)
    x, state = random_batch(cell, length)
    output, h_n = cell(x, state)
    assert output.shape == (B, length, cell.feature_size)
    assert h_n.shape == (2, B, cell.state_size)
    for t in range(length):
        features, state = cell.step(x[:, t], state)
        assert_close(features, output[:, t])
    assert_close(state, h_n)
    if name not in STACKS:  # features lead the state
        assert_close(h_n[-1][:, : cell.feature_size], output[:, -1])


def test_step_unbatched_and_without_state(name):
    cell = make(name)
    x, _ = random_batch(cell)
    features, state = cell.step(x[0, 0])
    batched, states = cell.step(x[:, 0])
    assert_close(features, batched[0])
    assert_close(state, states[:, 0])


def test_reset_equals_separate_sequences(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[1, 1] = reset[1, T - 1] = True
    output, h_n = cell(x, h0, reset=reset)
    for b in range(B):
        marks = reset[b].nonzero().flatten().tolist()
        bounds = sorted({0, *marks, T})
        for start, end in pairwise(bounds):
            h = h0[:, b : b + 1].clone()
            h[0::2] *= start == 0 and 0 not in marks  # forwards, the initial state enters the first segment
            h[1::2] *= end == T  # backwards, it enters the last one
            alone, last = cell(x[b : b + 1, start:end], h)
            assert_close(output[b, start:end], alone[0])
        assert_close(h_n[:, b], last[:, 0])


@pytest.mark.parametrize("state", [True, False], ids=["state", "zeros"])
def test_right_padding_changes_nothing(name, state):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    h0 = h0 if state else None
    lengths = torch.tensor([T, 4, 1])
    x[torch.arange(T) >= lengths[:, None]] = torch.nan
    output, h_n = cell(x, h0, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        alone, last = cell(x[b : b + 1, :length], None if h0 is None else h0[:, b : b + 1])
        assert_close(output[b, :length], alone[0])
        assert (output[b, length:] == 0).all()
        assert_close(h_n[:, b], last[:, 0])


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_mask_of_valid_steps_equals_lengths(name, batch_first):
    """As TorchRL's GRUModule passes it."""
    cell = make(name, batch_first=batch_first)
    x, h0 = random_batch(cell)
    lengths = torch.tensor([T, 4, 0])
    mask = torch.arange(T) < lengths[:, None]
    x, mask = (x, mask) if batch_first else (x.transpose(0, 1), mask.T)
    for actual, expected in zip(cell(x, h0, mask=mask), cell(x, h0, lengths=lengths), strict=True):
        assert torch.equal(actual, expected)


def test_right_padding_with_reset(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    lengths = torch.tensor([T, 5, 0])
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 2] = reset[1, 3] = reset[1, 7] = reset[2, 4] = True  # the last two are in the padding
    output, h_n = cell(x, h0, reset=reset, lengths=lengths)
    for b, length in enumerate(lengths.tolist()[:2]):
        alone, last = cell(x[b : b + 1, :length], h0[:, b : b + 1], reset=reset[b : b + 1, :length])
        assert_close(output[b, :length], alone[0])
        assert_close(h_n[:, b], last[:, 0])
    assert_close(h_n[:, 2], h0[:, 2])


def test_left_padding_equals_a_reset(name):
    cell = make(name, bidirectional=True)
    x, _ = random_batch(cell)
    starts = torch.tensor([0, 3, T - 1])
    x[torch.arange(T) < starts[:, None]] = 1e3
    reset = torch.arange(T) == starts[:, None]
    output, h_n = cell(x, reset=reset)
    for b, start in enumerate(starts.tolist()):
        alone, last = cell(x[b : b + 1, start:])
        assert_close(output[b, start:], alone[0])
        assert_close(h_n[:, b], last[:, 0])


def test_sequence_without_valid_steps_keeps_its_state(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    for lengths in (torch.tensor([T, 0, 2]), torch.zeros(B, dtype=torch.int64)):
        _, h_n = cell(x, h0, lengths=lengths)
        assert_close(h_n[:, 1], h0[:, 1])


def test_packed_equals_padded(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    lengths = torch.tensor([4, T, 2])  # unsorted
    output, h_n = cell(x, h0, lengths=lengths)
    packed, h_packed = cell(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), h0)
    assert_close(pad_packed_sequence(packed, batch_first=True)[0], output)
    assert_close(h_packed, h_n)


def test_hooks_see_each_call_once(name):
    """Also for packed and unbatched input, with the caller's arguments and results, like hooks of ``nn.GRU``."""
    cell = make(name)
    x, _ = random_batch(cell)
    seen = []
    cell.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    cell.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs[0]))
    for given in (x, x[0], pack_padded_sequence(x, torch.tensor([T, 5, 2]), batch_first=True)):
        seen.clear()
        output, _ = cell(given)
        assert len(seen) == 2
        assert seen[0] is given
        assert seen[1] is output


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_time_major_equals_batch_first(name, padded):
    batch_first, time_major = make(name, bidirectional=True), make(name, bidirectional=True, batch_first=False)
    x, h0 = random_batch(batch_first)
    options = {"lengths": torch.tensor([T, 4, 1])} if padded else {}
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 3] = True
    output, h_n = batch_first(x, h0, reset=reset, **options)
    other_output, other_h_n = time_major(x.transpose(0, 1), h0, reset=reset.T, **options)
    assert_close(other_output.transpose(0, 1), output)
    assert_close(other_h_n, h_n)


def test_unbatched_equals_batch_of_one(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    output, h_n = cell(x[:1], h0[:, :1])
    alone, h_alone = cell(x[0], h0[:, 0])
    assert_close(alone, output[0])
    assert_close(h_alone, h_n[:, 0])


def test_reverse_equals_forward_on_flipped_time(name):
    if name in STACKS:
        pytest.skip("its output mixes the directions")
    cell, swapped = (make(name, num_layers=1, bidirectional=True) for _ in range(2))
    x, h0 = random_batch(cell)
    state = cell.state_dict()
    other = {key: key.replace("_reverse", "") for key in state if "_reverse" in key}
    other |= {forward: backward for backward, forward in other.items()}
    swapped.load_state_dict({other[key]: value for key, value in state.items()})
    output, h_n = cell(x, h0)
    other_output, other_h_n = swapped(x.flip(1), h0.flip(0))
    forward, backward = other_output.flip(1).chunk(2, dim=-1)
    assert_close(torch.cat([backward, forward], dim=-1), output)
    assert_close(other_h_n.flip(0), h_n)


def test_gradients_match_those_of_steps(name):
    """The scans have hand-written gradients; steps are differentiated by autograd."""
    if name in ("hysteresis", "mru:simplified_brc"):
        pytest.skip("its surrogate follows the stored bit, which a single step cannot hand on")
    cell = make(name)
    x, h0 = random_batch(cell)
    weights = torch.randn(B, T, cell.feature_size, dtype=torch.float64)
    x.requires_grad_()
    h0.requires_grad_()
    sources = [x, h0, *cell.parameters()]
    output, h_n = cell(x, h0)
    whole = torch.autograd.grad((output * weights).sum() + h_n.square().sum(), sources)
    state, loss = h0, torch.zeros((), dtype=torch.float64)
    for t in range(T):
        features, state = cell.step(x[:, t], state)
        loss = loss + (features * weights[:, t]).sum()
    stepped = torch.autograd.grad(loss + state.square().sum(), sources)
    for label, a, b in zip(["x", "h0", *dict(cell.named_parameters())], whole, stepped, strict=True):
        assert a.abs().max() > 0, f"the gradient of {label} is zero"
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda text, label=label: f"{label}: {text}")


def test_gradients_ignore_padding(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    lengths = torch.tensor([T, 4, 1])
    x[torch.arange(T) >= lengths[:, None]] = torch.nan
    output, h_n = cell(x, h0, lengths=lengths)
    padded = torch.autograd.grad(output.square().sum() + h_n.square().sum(), list(cell.parameters()))
    loss = torch.zeros((), dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        alone, last = cell(x[b : b + 1, :length], h0[:, b : b + 1])
        loss = loss + alone.square().sum() + last.square().sum()
    for a, b in zip(padded, torch.autograd.grad(loss, list(cell.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "portable"])
@pytest.mark.parametrize("scanned", ["bmru", "lru", "hybrid", "mingru"])
def test_backends_agree(scanned, backend):
    options = {"bidirectional": True, "batch_first": False}
    cell, other = make(scanned, **options), make(scanned, backend=backend, **options)
    x, h0 = random_batch(cell)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 3] = True
    for extra in ({}, {"lengths": torch.tensor([T, 4, 1])}):
        results = [
            [*rnn(x.transpose(0, 1), h0, reset=reset.T, **extra), *rnn(x.transpose(0, 1), **extra)]
            for rnn in (cell, other)
        ]
        for a, b in zip(*results, strict=True):
            assert_close(a, b)


def test_bad_input_raises(name):
    cell = make(name)
    x, h0 = random_batch(cell)
    with pytest.raises(ValueError, match=rf"hx must have shape \[2, {B}, {cell.state_size}\]"):
        cell(x, h0[:, :2])
    with pytest.raises(ValueError, match="input must have 4 features"):
        cell(x[..., :3])
    with pytest.raises(RuntimeError, match="step needs a unidirectional"):
        make(name, bidirectional=True).step(x[:, 0])
    with pytest.raises(ValueError, match="hidden_size must be a positive integer, got 0"):
        make(name, hidden_size=0)


def test_half_precision_autocast(name):
    """Forward and backward in bfloat16 stay close to float32."""
    cell = make(name, dtype=torch.float32)
    x = random_batch(cell)[0].float()
    expected, _ = cell(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = cell(x)
        output.float().sum().backward()
        step, state = cell.step(x[:, 0])
    assert (step.dtype, state.dtype) == (output.dtype, h_n.dtype)
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.dtype == p.dtype for p in cell.parameters())
    near = (output.float() - expected).abs() < 0.1 * expected.abs().clamp(min=1)
    assert near.double().mean() > 0.9  # a bistable unit may flip


READ_BACKWARD = ("bmru", "lru", "mingru", "hysteresis", "clocked:linear:2", "counter")
"""Layers whose backward reads their output, unlike that of ``nn.GRU``."""


def test_an_output_changed_in_place(name):
    """It works, or the error says what to do; the last states may always be changed."""
    cell = make(name)
    x, _ = random_batch(cell)
    output, h_n = cell(x)
    h_n.relu_()
    expected = torch.autograd.grad(torch.relu(output).sum() + h_n.sum(), list(cell.parameters()))
    output, h_n = cell(x)
    loss = nn.ReLU(inplace=True)(output).sum() + h_n.relu_().sum()
    if name in READ_BACKWARD:
        with pytest.raises(RuntimeError, match=r"changed in place before the backward pass.*nn\.ReLU\(inplace=False\)"):
            loss.backward()
        output, _ = cell(x)
        loss = nn.ReLU(inplace=True)(output.clone()).sum() + cell(x)[1].relu_().sum()
    for a, b in zip(torch.autograd.grad(loss, list(cell.parameters())), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_large_output_changed_in_place():
    """Projection and scan in one function."""
    rnn = BMRU(4, 64, batch_first=True)
    output, _ = rnn(torch.randn(8, 2000, 4))
    with pytest.raises(RuntimeError, match="changed in place before the backward pass"):
        output.relu_().sum().backward()


def model_after_a_step(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model that has run forward and backward, and so may hold caches, and an input."""
    torch.manual_seed(0)
    model = build_model(ModelConfig((name,), d_input=2, d_output=1, d_model=8, d_state=8))
    x = torch.randn(3, 6, 2)
    model(x)[0].sum().backward()
    return model.eval(), x


@pytest.mark.parametrize("name", NAMES)
def test_a_pickled_model_is_unchanged(name):
    model, x = model_after_a_step(name)
    expected, _ = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x)[0], expected)


def test_a_new_process_unpickles_a_layer(tmp_path):
    """As spawned processes and DataLoader workers do."""
    torch.manual_seed(0)
    cell, x = ClockedRNN(simplified_brc(0.5), 2, 3, n_clock=4), torch.randn(5, 1, 2)
    (tmp_path / "cell").write_bytes(pickle.dumps((cell, x)))
    code = "import pickle, sys; cell, x = pickle.load(open(sys.argv[1], 'rb')); print(cell(x)[0].flatten().tolist())"
    env = os.environ | {"PYTHONPATH": str(Path(multistable.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "cell"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert torch.tensor(eval(done.stdout)).equal(cell(x)[0].flatten())


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_output_is_contiguous_as_that_of_gru(name, bidirectional, padded):
    """In the default layout; with ``batch_first`` that of ``nn.GRU`` is not."""
    cell = make(name, batch_first=False, bidirectional=bidirectional)
    x, _ = random_batch(cell)
    output, h_n = cell(x.transpose(0, 1), lengths=torch.tensor([T, 4, 1]) if padded else None)
    assert output.view(-1).shape == (output.numel(),)
    assert h_n.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_lengths_in_any_integer_dtype(name, dtype):
    """T = 300 does not fit into a byte: the lengths 200 and 255 do."""
    cell = make(name, num_layers=1)
    x, _ = random_batch(cell, 300)
    lengths = torch.tensor([100, 127, 3] if dtype == torch.int8 else [200, 255, 3])
    for actual, expected in zip(cell(x, lengths=lengths.to(dtype)), cell(x, lengths=lengths), strict=True):
        assert torch.equal(actual, expected)


def test_vectorized_jacobian(name):
    cell = make(name)
    if not cell.parallel:
        pytest.skip("torch's own operators, one step at a time")
    x, h0 = random_batch(cell, 3)
    steps = {"lengths": torch.tensor([3, 1, 2])}

    def function(x: torch.Tensor, h0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cell(x, h0, **steps)

    expected = torch.autograd.functional.jacobian(function, (x, h0))
    actual = torch.autograd.functional.jacobian(function, (x, h0), vectorize=True)
    for row, wanted in zip(actual, expected, strict=True):
        for each, one in zip(row, wanted, strict=True):
            assert_close(each, one)


@pytest.mark.parametrize("batch_first", [False, True])
def test_an_empty_batch_of_an_expanded_tensor(name, batch_first):
    cell = make(name, batch_first=batch_first)
    x = torch.randn(1, 1, D, dtype=torch.float64).expand((0, T, D) if batch_first else (T, 0, D)).requires_grad_()
    h0 = torch.randn(1, 1, cell.state_size, dtype=torch.float64).expand(2, 0, cell.state_size)
    if name in ("gru", "lstm"):
        pytest.skip("torch's own")
    output, h_n = cell(x, h0)
    (output.sum() + h_n.sum()).backward()
    assert output.shape[-1] == cell.feature_size
    assert h_n.shape == (2, 0, cell.state_size)


@pytest.mark.parametrize("backend", ["auto", "portable"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradient_of_the_last_state_is_that_of_the_last_output(name, backend, bidirectional):
    """h_n has a gradient of its own path through the scan."""
    if name in STACKS:
        pytest.skip("the output of a stack is not part of its state")
    cell = make(name, num_layers=1, bidirectional=bidirectional)
    cell.backend = backend
    x, h0 = (each.requires_grad_() for each in random_batch(cell))
    output, h_n = cell(x, h0)
    F = cell.feature_size
    ends = [output[:, -1, :F]] + ([output[:, 0, F:]] if bidirectional else [])
    wanted = torch.autograd.grad(sum((end * end.detach().cos()).sum() for end in ends), (x, h0), retain_graph=True)
    own = h_n[..., :F]
    actual = torch.autograd.grad((own * own.detach().cos()).sum(), (x, h0))
    assert wanted[0].abs().sum() > 0
    for a, b in zip(actual, wanted, strict=True):
        assert_close(a, b)

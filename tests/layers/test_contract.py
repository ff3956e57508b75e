"""The contract of every layer: chunks, steps, segments, padding, packing and layouts change nothing."""

from itertools import pairwise

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from contract import ALL, STACKS, B, D, T, assert_close, make, random_batch


@pytest.fixture(params=ALL)
def name(request) -> str:
    return request.param


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


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("gradients", [False, True], ids=["without", "with"])
def test_states_can_be_detached_in_place(name, num_layers, gradients):
    """As those of ``nn.GRU``: truncated backpropagation does it. Views refuse."""
    cell = make(name, num_layers=num_layers)
    x, before = random_batch(cell)
    with torch.set_grad_enabled(gradients):
        states = [cell(x)[1], cell(x, before)[1], cell.step(x[:, 0])[1], cell.step(x[:, 0], before)[1]]
    for state in states:
        state.detach_()
        state.mul_(torch.ones(1, dtype=state.dtype, requires_grad=True))


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("gradients", [False, True], ids=["without", "with"])
def test_features_and_states_of_a_step_have_memory_of_their_own(name, num_layers, gradients):
    """Who changes one of them in place changes no other."""
    cell = make(name, num_layers=num_layers)
    x, before = random_batch(cell)
    with torch.set_grad_enabled(gradients):
        features, after = cell.step(x[:, 0], before)
    assert len({each.untyped_storage().data_ptr() for each in (x, features, before, after)}) == 4


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


def test_the_default_device_does_not_matter(name):
    """It may be a GPU, while the layer is on the CPU. Tensors on ``meta`` have no numbers."""
    cell = make(name)
    x, h0 = random_batch(cell)
    reset, mask = torch.rand(B, T) < 0.3, torch.arange(T) < torch.tensor([T, 4, 0])[:, None]
    expected = *cell(x, h0, reset=reset, mask=mask), *cell.step(x[:, 0])
    with torch.device("meta"):
        actual = *cell(x, h0, reset=reset, mask=mask), *cell.step(x[:, 0])
    for y, same in zip(actual, expected, strict=True):
        assert torch.equal(y, same)


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


def test_batch_first_may_be_changed(name):
    """As in ``nn.GRU``; the parts of a layer have an attribute of their own. With B = T no shape tells the axes."""
    cell = make(name)
    x, h0 = random_batch(cell, B)
    (output, h_n), (y, after) = cell(x, h0), cell.step(x[:, 0], h0)
    cell.batch_first = False
    other, same = cell(x.transpose(0, 1), h0)
    assert_close(other.transpose(0, 1), output)
    assert_close(same, h_n)
    for a, b in zip(cell.step(x[:, 0], h0), (y, after), strict=True):
        assert_close(a, b)


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


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_output_is_contiguous_as_that_of_gru(name, bidirectional, padded):
    """In the default layout; with ``batch_first`` that of ``nn.GRU`` is not."""
    cell = make(name, batch_first=False, bidirectional=bidirectional)
    x, _ = random_batch(cell)
    output, h_n = cell(x.transpose(0, 1), lengths=torch.tensor([T, 4, 1]) if padded else None)
    assert output.view(-1).shape == (output.numel(),)
    assert h_n.is_contiguous()


@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@pytest.mark.parametrize(("length", "padded"), [(0, False), (0, True), (1, False), (T, False), (T, True)])
@pytest.mark.parametrize("gradients", [False, True], ids=["without", "with"])
def test_the_last_state_has_memory_of_its_own(name, length, batch_first, padded, gradients):
    """A state that is kept or saved must neither keep all states nor change with them or with ``hx``."""
    cell = make(name, num_layers=1, batch_first=batch_first)
    x, h0 = random_batch(cell, length)
    h0 = h0.mT.contiguous().mT
    x = x if batch_first else x.transpose(0, 1)
    with torch.set_grad_enabled(gradients):
        output, h_n = cell(x, h0, lengths=torch.full((B,), length) if padded else None)
    assert h_n.is_contiguous()
    assert h_n.untyped_storage().nbytes() == h_n.nbytes
    assert len({each.untyped_storage().data_ptr() for each in (output, h0, h_n)}) == 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_lengths_in_any_integer_dtype(name, dtype):
    """T = 300 does not fit into a byte: the lengths 200 and 255 do."""
    cell = make(name, num_layers=1)
    x, _ = random_batch(cell, 300)
    lengths = torch.tensor([100, 127, 3] if dtype == torch.int8 else [200, 255, 3])
    for actual, expected in zip(cell(x, lengths=lengths.to(dtype)), cell(x, lengths=lengths), strict=True):
        assert torch.equal(actual, expected)


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


def test_a_sequence_without_steps_has_a_backward(name):
    if name.split(":")[-1] in ("gru", "lstm"):
        pytest.skip("torch's own need a step")
    cell = make(name)
    output, h_n = cell(random_batch(cell, 0)[0])
    assert output.shape == (B, 0, cell.feature_size)
    (output.sum() + h_n.sum()).backward()


def test_reset_parameters_fills_all_memory(name):
    """As models that were made on the device "meta" are materialised."""
    cell = make(name, device="meta").to_empty(device="cpu")
    tensors = [*cell.named_parameters(), *cell.named_buffers()]
    for _, tensor in tensors:
        tensor.data.fill_(torch.nan)
    cell.reset_parameters()
    assert [key for key, tensor in tensors if tensor.isnan().any()] == []


def test_a_state_of_another_dtype_is_converted(name):
    cell = make(name, dtype=torch.float32)
    x, h0 = random_batch(cell)
    x = x.float()
    rounding = 1e-6 if name in ("gru", "lstm", "stack:lstm") else 0.0  # torch's own depend on the memory's alignment
    for run, inputs in ((cell, x), (cell.step, x[:, 0])):
        for actual, expected in zip(run(inputs, h0), run(inputs, h0.float()), strict=True):
            assert actual.dtype == torch.float32
            torch.testing.assert_close(actual, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_parameters_in_half_precision(name, dtype):
    """Two layers, forward, backward and step; counts stay in float32."""
    cell = make(name, dtype=dtype)
    x = random_batch(cell)[0].to(dtype)
    output, h_n = cell(x)
    output.sum().backward()
    step, state = cell.step(x[:, 0])
    assert {each.dtype for each in (output, h_n, step, state)} == {torch.float32 if name == "counter" else dtype}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cell.parameters())

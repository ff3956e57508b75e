"""Whole models: steps, chunks, pooling, padding, resets, precision, compilation, bad input."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import tolerances
from layer_names import NAMES
from multistable import ModelConfig, ModelState, SequenceModel, build_model
from multistable.models.sequence import Head, encode
from small_models import B, T, assert_close, make_model, random_input


def run_steps(model: SequenceModel, x: torch.Tensor) -> tuple[torch.Tensor, ModelState]:
    state, outputs = None, []
    for t in range(x.shape[1]):
        y, state = model.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("cell", NAMES)
def test_steps_equal_forward(cell):
    model = make_model(cells=(cell, cell))
    x = random_input()
    y, state = model(x)
    stepped, last = run_steps(model, x)
    assert_close(stepped, y)
    assert torch.equal(last.position, state.position)
    for a, b in zip(last.cells, state.cells, strict=True):
        assert_close(a, b)


def test_the_head():
    head, x = Head(nn.Linear(4, 4), nn.Linear(4, 3)), torch.randn(2, 7, 4)
    expected = head.fc2(torch.nn.functional.gelu(head.fc1(x)))
    assert torch.equal(head(x), expected)
    torch.testing.assert_close(head.mean(x, None), expected.mean(1))


@pytest.mark.parametrize("pooling", ["none", "last", "mean"])
def test_a_norm_before_the_head(pooling):
    """Then the head reads numbers of variance 1, whatever the size of what the blocks add up to."""
    model = make_model(norm_out=True, pooling=pooling)
    x, read = random_input(), []
    model.head.fc1.register_forward_hook(lambda layer, inputs, result: read.append(inputs[0]))
    y, _ = model(x)
    assert_close(read[0].mean(-1), torch.zeros(read[0].shape[:-1], dtype=x.dtype))
    torch.testing.assert_close(read[0].var(-1, correction=0), torch.ones_like(read[0][..., 0]), rtol=1e-4, atol=0)
    stepped, _ = run_steps(model, x)
    assert_close({"none": stepped, "last": stepped[:, -1], "mean": stepped.mean(1)}[pooling], y)


def test_steps_in_float32_flip_few_gates():
    """Matrix products of other shapes round differently, so a gate may flip: rare, and printed."""
    model = make_model(torch.float32, cells=("bmru", "bmru"), d_model=64, d_state=64)
    torch.manual_seed(2)
    x = torch.randn(8, 200, 2)
    states, state = [], None
    for t in range(x.shape[1]):
        _, state = model.step(x[:, t], state)
        states.append(torch.cat(state.cells, dim=-1))
    whole = []
    for block in model.blocks:
        block.cell.register_forward_hook(lambda cell, inputs, result: whole.append(result[0]))
    model(x)
    flipped = (torch.cat(whole, dim=-1) != torch.cat(states).transpose(0, 1)).double().mean().item()
    print(f"share of states that differ between step and forward in float32: {flipped:.2e}")
    assert flipped < 0.01


@pytest.mark.parametrize("pooling", ["none", "last"])
@pytest.mark.parametrize("cell", NAMES)
def test_chunks_equal_whole(cell, pooling):
    model = make_model(cells=(cell, "bmru", cell), pooling=pooling)
    x = random_input()
    y, state = model(x)
    outputs, carried = [], None
    for chunk in x.split([1, 4, 6], dim=1):
        output, carried = model(chunk, carried)
        carried = carried.detach().to("cpu")
        outputs.append(output)
    assert_close(torch.cat(outputs, dim=1) if pooling == "none" else outputs[-1], y)
    assert torch.equal(carried.position, torch.full((B,), T))
    for a, b in zip(carried.cells, state.cells, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("cell", ["bmru", "hybrid", "lstm"])
@pytest.mark.parametrize("lengths", [None, torch.tensor([T, 4, 1])], ids=["whole", "padded"])
def test_pooling_modes_agree(cell, bidirectional, lengths):
    """``last`` and ``mean`` are the last and the mean of the outputs of ``none``, although computed differently."""
    model = make_model(cells=("lru", cell), bidirectional=bidirectional, pooling="none")
    x = random_input()
    every, _ = model(x, lengths=lengths)
    counts = torch.full((B,), T) if lengths is None else lengths
    expected = {
        "last": torch.stack([every[b, n - 1] for b, n in enumerate(counts.tolist())]),
        "mean": torch.stack([every[b, :n].mean(dim=0) for b, n in enumerate(counts.tolist())]),
    }
    for pooling, value in expected.items():
        other = build_model(dataclasses.replace(model.config, pooling=pooling)).double().eval()
        other.load_state_dict(model.state_dict())
        y, _ = other(x, lengths=lengths)
        assert_close(y, value)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_sequence_of_padding_does_not_affect_the_others(pooling, bidirectional):
    model, x = make_model(pooling=pooling, bidirectional=bidirectional), random_input()
    y, _ = model(x, lengths=torch.tensor([T, 0, 4]))
    expected, _ = model(x, lengths=torch.tensor([T, 1, 4]))
    assert_close(y[[0, 2]], expected[[0, 2]])
    assert y.isfinite().all()


def test_a_mean_over_valid_steps_does_not_overflow():
    """In float16, the sum of 1,000 outputs of 100 would."""
    head = Head(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)).half()
    for layer in (head.fc1, head.fc2):
        torch.nn.init.ones_(layer.weight), torch.nn.init.zeros_(layer.bias)
    x = torch.full((1, 1000, 1), 100.0).half()
    assert head.mean(x, torch.ones_like(x, dtype=torch.bool)).tolist() == head.mean(x, None).tolist() == [[100.0]]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("cell", ["bmru", "lru", "gru"])
def test_padding_changes_nothing(cell, mode):
    """Outputs, statistics and gradients depend on neither the content nor the length of the padding."""
    lengths, x = torch.tensor([T, 4, 1]), random_input()
    padding = torch.arange(T) >= lengths[:, None]
    results = []
    for extra, value in ((0, math.nan), (5, 1e6)):
        model = make_model(cells=(cell, cell), bidirectional=True).train(mode == "train")
        padded = torch.cat([x.masked_fill(padding[..., None], value), torch.full((B, extra, 2), value)], dim=1)
        y, state = model(padded, lengths=lengths)
        assert (y[:, T:] == 0).all()
        y.square().sum().backward()
        grads = [parameter.grad for parameter in model.parameters()]
        buffers = [buffer for _, buffer in model.named_buffers()]
        results.append([y[:, :T], *state.cells, state.position, *buffers, *grads])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_reset_equals_separate_sequences():
    model, x = make_model(bidirectional=True, cells=("hybrid", "bmru")), random_input()
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, 4] = True
    y, state = model(x, reset=reset)
    first, _ = model(x[:, :4])
    second, last = model(x[:, 4:])
    assert_close(y, torch.cat([first, second], dim=1))
    assert torch.equal(state.position, last.position)


def test_the_position_in_the_state_counts_valid_steps():
    model, x = make_model(), random_input()
    _, state = model(x, lengths=torch.tensor([T, 4, 0]))
    assert state.position.tolist() == [T, 4, 0]
    assert model(x[:, :0], state)[1].position.tolist() == [T, 4, 0]
    assert model(x, state, lengths=torch.tensor([0, 1, 2]))[1].position.tolist() == [T, 5, 2]


def test_a_state_is_saved_and_loaded_by_torch(tmp_path):
    state = make_model()(random_input())[1].detach()
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)  # accepts only known classes
    assert type(loaded) is ModelState
    assert torch.equal(loaded.position, state.position)
    assert all(torch.equal(a, b) for a, b in zip(loaded.cells, state.cells, strict=True))


def test_a_detached_state_has_no_history():
    state = make_model()(random_input())[1]
    assert all(h.requires_grad for h in state.cells)
    assert not any(h.requires_grad for h in state.detach().cells)
    assert {h.device.type for h in (*state.to("meta").cells, state.to("meta").position)} == {"meta"}


@pytest.mark.parametrize("cell", ["bmru", "lru", "hybrid"])
def test_training_in_bfloat16(cell):
    """Tell whether the first input was -2 or 2: the loss falls from log 2 to less than a tenth of that."""
    torch.manual_seed(0)
    model = build_model(ModelConfig((cell,), d_input=1, d_output=1, d_model=16, d_state=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(80):
        x, target = 0.1 * torch.randn(64, 10, 1), torch.randint(2, (64,)).float()
        x[:, 0, 0] = 4 * target - 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, state = model(x)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(y.float()[:, 0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert state.cells[0].dtype == torch.bfloat16
    assert loss.item() < 0.05
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_compiles_as_one_graph():
    """Forward and backward are traced; code generation, a minute on a CPU, is skipped."""
    torch._dynamo.reset()
    cells = ("bmru", "lru", "hybrid")
    model = make_model(cells=cells, pooling="last").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = random_input()
    results = []
    for run in (model, compiled):
        model.load_state_dict(make_model(cells=cells, pooling="last").state_dict())
        model.zero_grad()
        y, state = run(x)
        y.square().sum().backward()
        results.append([y, *state.cells, state.position, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_bad_input_raises():
    model, x = make_model(), random_input()
    with pytest.raises(ValueError, match=r"x must have shape \[B, T, 2\], got \[3, 11, 1\]"):
        model(x[..., :1])
    with pytest.raises(TypeError, match=r"x must have the dtype of the weights, torch.float\d\d, got torch.float16"):
        model(x.half())
    with pytest.raises(TypeError, match=r"x must be floating point, got torch.int64"):
        model(x.long())
    with pytest.raises(ValueError, match=r"x must be on cpu like the weights, got meta"):
        model(x.to("meta"))
    with pytest.raises(ValueError, match=r"x must have shape \[B, 2\], got \[3, 11, 2\]"):
        model.step(x)
    both = make_model(bidirectional=True)
    with pytest.raises(ValueError, match="state must be None for a bidirectional model"):
        both(x, both(x)[1])
    with pytest.raises(RuntimeError, match="step needs a unidirectional"):
        both.step(x[:, 0])


def test_a_state_of_another_model_or_batch_raises():
    """Without a check, the state of a model with more blocks would be accepted."""
    model, x = make_model(cells=("bmru", "lru")), random_input()
    state = model(x)[1]
    for call in (lambda state: model(x, state), lambda state: model.step(x[:, 0], state)):
        with pytest.raises(TypeError, match="state must be a ModelState, as a call returns it, got Tensor"):
            call(state.cells[0])
        with pytest.raises(ValueError, match="state must have tensors for 2 blocks, got 3"):
            call(state._replace(cells=(*state.cells, state.cells[0])))
        with pytest.raises(ValueError, match="state must have tensors for 2 blocks, got 1"):
            call(state._replace(cells=state.cells[:1]))
        with pytest.raises(ValueError, match=r"state must be of 3 sequences, got positions \[2\]"):
            call(state._replace(position=state.position[:2]))


@pytest.mark.parametrize("lengths", [None, [0, 0, 0]])
def test_pooling_needs_timesteps(lengths):
    x, lengths = torch.zeros(3, 0, 2).double(), None if lengths is None else torch.tensor(lengths)
    assert make_model(pooling="none")(x, lengths=lengths)[0].shape[:2] == (3, 0)
    for pooling in ("last", "mean"):
        with pytest.raises(ValueError, match=rf"x must have .* for pooling '{pooling}', got \[3, 0, 2\]"):
            make_model(pooling=pooling)(x, lengths=lengths)


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "float64", "float64-autocast"])
def test_one_feature_needs_no_matrix_product_where_compiled(monkeypatch, precision) -> None:
    dtype = torch.float64 if precision.startswith("float64") else torch.float32
    encoder, x, weight = nn.Linear(1, 64, dtype=dtype), torch.randn(8, 50, 1, dtype=dtype), torch.randn(8, 50, 64)
    outcomes = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision in ("bfloat16", "float64-autocast")):
            y = encode(encoder, x)
        outcomes.append((y, *torch.autograd.grad(y, list(encoder.parameters()), weight.to(y.dtype))))
    if precision == "bfloat16":
        tolerances.assert_same_bits(outcomes[1][0], outcomes[0][0])
    for product, fused in zip(*outcomes, strict=True):
        tolerances.assert_close(fused, product)


def test_an_encoder_with_hooks_is_called_where_compiled(monkeypatch) -> None:
    encoder, seen = nn.Linear(1, 4), []
    encoder.register_forward_hook(lambda *_: seen.append(True))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    encode(encoder, torch.randn(2, 3, 1))
    assert seen

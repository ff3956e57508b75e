"""Gradients piece by piece are those of the whole sequence, in memory that does not grow with its length."""

import gc
import json
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from multistable import (
    BMRU,
    BRC,
    FSM,
    LRU,
    Counter,
    HysteresisMRU,
    MinGRU,
    ModelConfig,
    PositionConfig,
    Stack,
    build_model,
)
from multistable.streamed import streamed
from tolerances import assert_close

SIZES = {
    "d_input": 3,
    "d_output": 2,
    "d_model": 8,
    "d_state": 8,
}
MAKE = {
    "bmru": lambda: BMRU(3, 6, 2, batch_first=True),
    "branch": lambda: BMRU(3, 6, batch_first=True, start="branch"),
    "lru": lambda: LRU(3, 6, batch_first=True),
    "mingru": lambda: MinGRU(3, 6, batch_first=True),
    "counter": lambda: Counter(3, 6, batch_first=True),
    "fsm": lambda: FSM(3, 6, n_states=3, batch_first=True),
    "brc": lambda: BRC(3, 6, batch_first=True),
    "stack": lambda: Stack("hybrid", 3, 6, 2, batch_first=True),
    "model": lambda: build_model(
        ModelConfig(("hybrid",), pooling="none", position=PositionConfig(T=40), **SIZES)
    ).eval(),
}
CUTS = [0, 7, 8, 8, 40]  # one piece is empty


@pytest.mark.parametrize("name", MAKE)
def test_gradients_are_those_of_the_whole_sequence(name):
    torch.manual_seed(0)
    alone, module = MAKE[name]().double(), MAKE[name]().double()
    module.load_state_dict(alone.state_dict())
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    expected, state = alone(x)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    piece = lambda i: x[:, CUTS[i] : CUTS[i + 1]]  # noqa: E731
    loss = lambda y, i: (y * weights[:, CUTS[i] : CUTS[i + 1]]).sum()  # noqa: E731
    step = streamed(module, piece, len(CUTS) - 1, loss)
    assert_close(step.loss, (expected * weights).sum().detach())
    for a, b in zip(torch.utils._pytree.tree_leaves(step.state), torch.utils._pytree.tree_leaves(state), strict=True):
        assert torch.allclose(a, b)
    for (key, a), b in zip(module.named_parameters(), alone.parameters(), strict=True):
        assert_close(a.grad, b.grad, key)


def test_gradients_of_the_initial_state_and_of_the_input():
    torch.manual_seed(0)
    rnn, embedding = BMRU(3, 6, batch_first=True).double(), torch.nn.Embedding(5, 3).double()
    tokens, h0 = torch.randint(5, (2, 30)), torch.randn(1, 2, 6, dtype=torch.float64).requires_grad_()
    rnn(embedding(tokens), h0)[0].square().sum().backward()
    expected = [h0.grad, embedding.weight.grad, *(x.grad for x in rnn.parameters())]
    leaves = [embedding.weight, *rnn.parameters()]
    for leaf in leaves:
        leaf.grad = None
    piece = lambda i: embedding(tokens[:, 10 * i : 10 * i + 10])  # noqa: E731
    step = streamed(rnn, piece, 3, lambda y, _: y.square().sum(), h0.detach(), leaves)
    for a, b in zip([step.grad_state, *(x.grad for x in leaves)], expected, strict=True):
        assert_close(a, b)
    once = [leaf.grad for leaf in leaves]
    streamed(rnn, piece, 3, lambda y, _: y.square().sum(), h0.detach(), leaves)
    for a, b in zip(leaves, once, strict=True):
        assert torch.equal(a.grad, 2 * b)  # added, as backward does


def test_dropout_is_the_same_in_both_passes():
    """The last state of the first pass and that of the second agree, which needs the same units dropped."""
    rnn = BMRU(3, 6, 3, batch_first=True, dropout=0.5)
    x, seen = torch.randn(2, 40, 3), []
    rnn.register_forward_hook(lambda _, __, result: seen.append(result[1]))
    streamed(rnn, lambda i: x[:, 10 * i : 10 * i + 10], 4, lambda y, _: y.sum())
    forward, again = seen[:3], seen[3:][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forward, again, strict=False))


def test_random_numbers_afterwards_are_those_without_it(monkeypatch):
    """On every GPU, not only on those of the parameters: seeds are set on all."""
    states = {0: torch.tensor(0), 1: torch.tensor(1)}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: states.update(dict.fromkeys(states, seed)))
    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    rnn, x = BMRU(3, 6, 2, batch_first=True, dropout=0.5), torch.randn(2, 5, 3)
    torch.manual_seed(7)
    before = states.copy()
    torch.randint(1 << 62, ())  # the seed of the pieces
    expected = torch.rand(3)
    torch.manual_seed(7)
    states.update(before)
    streamed(rnn, lambda _: x, 2, lambda y, _: y.sum())
    assert torch.equal(torch.rand(3), expected)
    assert states == before


def test_the_default_device_does_not_matter():
    rnn, x = BMRU(3, 6, batch_first=True), torch.randn(2, 5, 3)
    expected = streamed(rnn, lambda _: x, 2, lambda y, _: y.sum()).loss
    with torch.device("meta"):
        assert torch.equal(streamed(rnn, lambda _: x, 2, lambda y, _: y.sum()).loss, expected)


def test_nan_states_are_kept():
    rnn, x = BMRU(1, 4, batch_first=True), torch.ones(1, 4, 1)
    x[:, 1] = torch.nan
    step = streamed(rnn, lambda i: x[:, i : i + 1], 2, lambda y, _: y.sum())
    assert step.state.isnan().all()


@pytest.mark.parametrize(
    "rnn",
    [
        BMRU(3, 4, bidirectional=True),
        Stack("bmru", 3, 4, bidirectional=True),
        torch.nn.ModuleList([torch.nn.GRU(3, 4, bidirectional=True)]),
        Stack("bmru", 3, 4, norm="batch"),
        HysteresisMRU(3, 4),
    ],
    ids=["both", "both in a stack", "both inside", "norm", "exact"],
)
def test_modules_that_need_all_pieces_are_refused(rnn):
    with pytest.raises(ValueError, match="module must not"):
        streamed(rnn, lambda _: torch.zeros(1, 1, 3), 1, lambda y, _: y.sum())


@pytest.mark.parametrize("state", [None, torch.ones(2, 6)], ids=["zero", "given"])
def test_one_sequence_without_a_batch(state):
    torch.manual_seed(0)
    rnn, x = BMRU(3, 6, 2), torch.randn(30, 3)
    rnn(x, state)[0].square().sum().backward()
    expected = [parameter.grad for parameter in rnn.parameters()]
    rnn.zero_grad()
    streamed(rnn, lambda i: x[10 * i : 10 * i + 10], 3, lambda y, _: y.square().sum(), state)
    for a, b in zip(rnn.parameters(), expected, strict=True):
        assert torch.allclose(a.grad, b, atol=1e-5)


def test_no_piece_is_refused():
    with pytest.raises(ValueError, match="count must be a positive integer, got 0"):
        streamed(BMRU(3, 4), lambda _: torch.randn(2, 1, 3), 0, lambda y, _: y.sum())


def test_a_loss_of_several_numbers_is_refused():
    x = torch.randn(5, 2, 3)
    with pytest.raises(ValueError, match=r"loss must return one number, a tensor of shape \[\], got \[5, 2\]"):
        streamed(BMRU(3, 4), lambda i: x, 2, lambda output, i: output.sum(-1))


@pytest.mark.parametrize("where", ["loss", "loss alone", "piece"])
def test_parameters_outside_of_the_module_must_be_given(where):
    """A read-out in the loss would silently get no gradient."""
    rnn, x, own = BMRU(3, 4, batch_first=True), torch.randn(1, 20, 3), torch.nn.Linear(4, 3)

    def piece(i):
        x_i = x[:, 10 * i : 10 * i + 10]
        return own(torch.cat([x_i, x_i[..., :1]], -1)) if where == "piece" else x_i

    def loss(output, _):
        return {"loss": own(output).sum(), "loss alone": own.weight.sum(), "piece": output.sum()}[where]

    with pytest.raises(ValueError, match=r"parameters must be given: piece or loss uses one of shape \[3"):
        streamed(rnn, piece, 2, loss)
    assert own.weight.grad is None
    streamed(rnn, piece, 2, loss, parameters=[*rnn.parameters(), *own.parameters()])
    assert own.weight.grad is not None
    own.weight.grad = None
    streamed(rnn, piece, 2, loss, parameters=rnn.parameters())  # said to be wanted
    assert own.weight.grad is None
    own.requires_grad_(False)
    streamed(rnn, piece, 2, loss)


MEASURE = """
import json, sys, torch
from multistable import BMRU
from multistable.streamed import streamed
from pathlib import Path
torch.set_num_threads(1)
rnn = BMRU(16, 64, batch_first=True)
def peak():
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")]
    return 1024 * int(line.split()[1])
def run(count):
    streamed(rnn, lambda i: torch.randn(1, 4096, 16, generator=torch.Generator().manual_seed(i)), count,
             lambda y, _: y.sum())
    return peak()
run(2)
print(json.dumps([run(5), run(50)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_length():
    """50 pieces of 8 MB (states, projections and their gradients) need as much as 5, but for holes between them, which
    took up to 32 MB."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    few, many = json.loads(done.stdout)
    assert many - few < 64e6, f"{(many - few) / 1e6:.1f} MB more"


def bytes_alive():
    """Bytes of each piece of memory that a tensor has; tensors without any, which other tests may leave, have none."""
    found = {}
    for x in gc.get_objects():
        if type(x) is Tensor:
            with suppress(RuntimeError, NotImplementedError):
                found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return found


def test_a_piece_leaves_two_bits_per_unit():
    """All tensors that are alive when pieces 3 and 6 begin, in the first pass: 16 bytes more for each, of 64 units."""
    rnn, sizes = BMRU(3, 64, batch_first=True), []
    gc.collect()  # what other tests left must not go away in between

    def piece(i):
        if i in (3, 6) and len(sizes) < 2:
            sizes.append(sum(bytes_alive().values()))
        return torch.randn(1, 100, 3, generator=torch.Generator().manual_seed(i))

    streamed(rnn, piece, 9, lambda y, _: y.sum())
    assert sizes[1] - sizes[0] == 3 * 64 * 2 // 8

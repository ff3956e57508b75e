"""``BMRU`` in the place of ``nn.GRU``: the same constructor, the same calls, the same shapes, no other change."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from multistable import BMRU, BMRUCell

LENGTHS = torch.tensor([5, 9, 2, 7])


def constructors():
    """All combinations of num_layers, bias, batch_first, dropout and bidirectional."""
    for layers, bias, batch_first, both in itertools.product([1, 2], [True, False], [True, False], [True, False]):
        dropout = 0.3 if layers > 1 else 0.0
        yield {
            "num_layers": layers,
            "bias": bias,
            "batch_first": batch_first,
            "dropout": dropout,
            "bidirectional": both,
        }


def option_ids(options):
    return "-".join([f"layers{options['num_layers']}", *(k for k, v in options.items() if v is True)])


every_constructor = pytest.mark.parametrize("options", list(constructors()), ids=option_ids)


class Tagger(nn.Module):
    """An ordinary model around a packed, bidirectional, two-layer network; only the class of it changes."""

    def __init__(self, rnn_class):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = rnn_class(6, 8, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(16, 3)
        self.summary = nn.Linear(8, 2)

    def forward(self, tokens, lengths):
        self.rnn.flatten_parameters()
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        output, h_n = self.rnn(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        return self.head(output), self.summary(h_n[-1])


@pytest.mark.parametrize("rnn_class", [nn.GRU, BMRU])
def test_swapped_for_gru_a_model_trains(rnn_class):
    model, tokens = Tagger(rnn_class), torch.randint(0, 11, (4, 9))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(25):
        tags, summary = model(tokens, LENGTHS)
        assert tags.shape == (4, 9, 3)
        assert summary.shape == (4, 2)
        loss = nn.functional.cross_entropy(tags.flatten(0, 1), tokens.flatten() % 3)
        loss = loss + nn.functional.cross_entropy(summary, tokens[:, 0] % 2)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@every_constructor
@pytest.mark.parametrize("with_state", [False, True], ids=["no_h0", "h0"])
def test_shapes_are_those_of_gru(options, with_state):
    gru, rnn = nn.GRU(3, 5, **options), BMRU(3, 5, **options)
    count = options["num_layers"] * (2 if options["bidirectional"] else 1)
    packed = {s: pack_sequence([torch.randn(n, 3) for n in sizes], enforce_sorted=s) for s, sizes in
              {True: (9, 7, 2), False: (2, 9, 7)}.items()}  # fmt: skip
    cases = [(torch.randn(7, 4, 3), 7 if options["batch_first"] else 4), (torch.randn(7, 3), None)]
    cases += [(p, 3) for p in packed.values()]
    for x, B in cases:
        h0 = torch.randn(count, *([] if B is None else [B]), 5) if with_state else None
        (expected, expected_n), (output, h_n) = gru(x, h0), rnn(x, h0)
        assert h_n.shape == expected_n.shape
        assert type(output) is type(expected)
        if isinstance(output, PackedSequence):
            assert output.data.shape == expected.data.shape
            for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
                a, b = getattr(output, name), getattr(expected, name)
                assert (a is None) == (b is None), name
                assert a is None or torch.equal(a, b), name
        else:
            assert output.shape == expected.shape


@every_constructor
def test_last_state_is_the_last_output(options):
    rnn = BMRU(3, 5, **options).eval()
    output, h_n = rnn(torch.randn(7, 4, 3))
    output = output if options["batch_first"] else output.transpose(0, 1)
    h_n = h_n.unflatten(0, (options["num_layers"], -1))
    assert torch.equal(h_n[-1, 0], output[:, -1, :5])
    if options["bidirectional"]:
        assert torch.equal(h_n[-1, 1], output[:, 0, 5:])


@every_constructor
def test_every_parameter_has_a_gradient(options):
    rnn = BMRU(3, 5, **options)
    output, h_n = rnn(torch.randn(7, 4, 3), torch.randn(rnn.num_layers * len(rnn.suffixes), 4 + 3 * rnn.batch_first, 5))
    (output.sum() + h_n.square().sum()).backward()
    for name, parameter in rnn.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_equals_each_sequence_alone(enforce_sorted, bidirectional):
    rnn = BMRU(3, 5, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    lengths = LENGTHS.sort(descending=True)[0] if enforce_sorted else LENGTHS
    xs = [torch.randn(int(n), 3).double() for n in lengths]
    h0 = torch.randn(2 * len(rnn.suffixes), 4, 5).double()
    output, h_n = rnn(pack_sequence(xs, enforce_sorted=enforce_sorted), h0)
    padded, found = pad_packed_sequence(output)
    assert torch.equal(found, lengths)
    for i, x in enumerate(xs):
        alone, alone_n = rnn(x, h0[:, i])
        torch.testing.assert_close(padded[: len(x), i], alone, rtol=1e-12, atol=0)
        torch.testing.assert_close(h_n[:, i], alone_n, rtol=1e-12, atol=0)


def test_unbatched_is_a_batch_of_one():
    rnn = BMRU(3, 5, num_layers=2, bidirectional=True, dtype=torch.float64)
    x, h0, reset = torch.randn(7, 3).double(), torch.randn(4, 5).double(), torch.rand(7) < 0.3
    output, h_n = rnn(x, h0, reset=reset)
    batched, batched_n = rnn(x[:, None], h0[:, None], reset=reset[:, None])
    torch.testing.assert_close(output, batched[:, 0], rtol=1e-12, atol=0)
    torch.testing.assert_close(h_n, batched_n[:, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("batched", [True, False])
def test_step_is_forward(num_layers, batched):
    rnn = BMRU(3, 5, num_layers=num_layers, batch_first=True, dtype=torch.float64)
    batch = (4,) if batched else ()
    x, state = torch.randn(*batch, 9, 3).double(), torch.randn(num_layers, *batch, 5).double()
    expected, expected_n = rnn(x, state)
    outputs = []
    for x_t in x.unbind(-2):
        output, state = rnn.step(x_t, state)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, dim=-2), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(state, expected_n, rtol=1e-12, atol=0)


def test_step_without_state_starts_from_zero():
    rnn, x = BMRU(3, 5, num_layers=2, dtype=torch.float64), torch.randn(4, 3).double()
    assert torch.equal(rnn.step(x)[1], rnn.step(x, torch.zeros(2, 4, 5).double())[1])


@pytest.mark.parametrize("bias", [True, False])
def test_bmru_cell_in_a_loop_is_bmru(bias):
    """States, and the gradients of the parameters they share."""
    cell, rnn = BMRUCell(3, 5, bias=bias, dtype=torch.float64), BMRU(3, 5, bias=bias, dtype=torch.float64)
    rnn.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    x, h = torch.randn(9, 4, 3).double(), torch.randn(4, 5).double()
    output, h_n = rnn(x, h[None])
    for t in range(9):
        h = cell(x[t], h)
        torch.testing.assert_close(h, output[t], rtol=1e-12, atol=0)
    h.square().sum().backward()
    h_n.square().sum().backward()
    for name, parameter in cell.named_parameters():
        torch.testing.assert_close(parameter.grad, rnn.get_parameter(f"{name}_l0").grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", [(4, 3), (3,)], ids=["batched", "unbatched"])
def test_bmru_cell_shapes_are_those_of_gru_cell(shape):
    gru, cell, x = nn.GRUCell(3, 5), BMRUCell(3, 5), torch.randn(shape)
    assert cell(x).shape == gru(x).shape
    assert cell(x, cell(x)).shape == gru(x, gru(x)).shape


def test_forward_in_chunks_with_carried_state():
    rnn = BMRU(3, 5, num_layers=2, dtype=torch.float64)
    x = torch.randn(17, 4, 3).double()
    expected, expected_n = rnn(x)
    state, outputs = None, []
    for chunk in x.split([1, 2, 8, 6]):
        output, state = rnn(chunk, state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(state, expected_n, rtol=1e-12, atol=0)


def test_dropout_acts_between_layers_only():
    with pytest.warns(UserWarning, match=r"dropout=0.9 does nothing with num_layers=1"):
        single = BMRU(3, 5, dropout=0.9)
    x = torch.randn(7, 4, 3)
    assert torch.equal(single(x)[0], single(x)[0])
    double = BMRU(3, 50, num_layers=2, dropout=0.5)
    first, second = double(x), double(x)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1][0], second[1][0])  # the first layer comes before any dropout
    assert set(second[0].unique().tolist()) <= {-1.0, 0.0, 1.0}  # states of the last layer are neither cut nor scaled
    double.eval()
    assert torch.equal(double(x)[0], double(x)[0])


def test_dropout_of_a_step_is_that_of_a_sequence():
    """A probability of 1 leaves nothing to chance: the second layer sees zeros."""
    rnn, x = BMRU(3, 50, num_layers=2, dropout=1.0, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(rnn.step(x)[0], rnn(x[None])[0][0])
    assert not torch.equal(rnn.step(x)[0], rnn.eval().step(x)[0])
    assert torch.equal(rnn.step(x)[0], rnn(x[None])[0][0])


def test_state_dict_round_trip_and_deepcopy(tmp_path):
    rnn, x = BMRU(3, 5, num_layers=2, bidirectional=True), torch.randn(7, 4, 3)
    expected = rnn(x)[0]
    torch.save(rnn.state_dict(), tmp_path / "rnn.pt")
    other = BMRU(3, 5, num_layers=2, bidirectional=True)
    assert not torch.equal(other(x)[0], expected)
    other.load_state_dict(torch.load(tmp_path / "rnn.pt"))
    assert torch.equal(other(x)[0], expected)
    copied = copy.deepcopy(rnn)
    assert torch.equal(copied(x)[0], expected)
    assert copied.alpha_l0 is not rnn.alpha_l0


def test_alpha_is_learnable_and_starts_at_one():
    rnn = BMRU(3, 5)
    assert torch.equal(rnn.alpha_l0, torch.ones(5))
    assert rnn.alpha_l0.requires_grad
    bound = 3**-0.5
    assert rnn.weight_ih_l0.abs().max() <= bound
    assert rnn.bias_ih_l0.abs().max() <= bound


def test_repr_names_what_differs_from_the_defaults():
    assert repr(BMRU(3, 5, num_layers=2, backend="portable")) == "BMRU(3, 5, num_layers=2, backend='portable')"
    assert repr(BMRUCell(3, 5, bias=False)) == "BMRUCell(3, 5, bias=False)"
    for kind in (BMRU, BMRUCell):
        assert repr(kind(3, 5, beta_bias=4.0)) == f"{kind.__name__}(3, 5, beta_bias=4.0)"

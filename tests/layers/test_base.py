"""What layers inherit: unbatched input, single steps, packed input, dropout, state dicts, ``repr``, bad arguments."""

import copy
import inspect
from functools import partial

import pytest
import torch

from multistable import BMRU, BRC, LRU, MRU, NBRC, BMRUCell, ClockedRNN, Hybrid, HysteresisMRU, MinGRU, Stack
from multistable.dynamics import linear, simplified_brc
from multistable.layers import GRU, LSTM


def test_unbatched_is_a_batch_of_one():
    rnn = BMRU(3, 5, num_layers=2, bidirectional=True, dtype=torch.float64)
    x, h0, reset = torch.randn(7, 3).double(), torch.randn(4, 5).double(), torch.rand(7) < 0.3
    output, h_n = rnn(x, h0, reset=reset)
    batched, batched_n = rnn(x[:, None], h0[:, None], reset=reset[:, None])
    torch.testing.assert_close(output, batched[:, 0], rtol=1e-12, atol=0)
    torch.testing.assert_close(h_n, batched_n[:, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("batched", [True, False])
def test_steps_match_forward(num_layers, batched):
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
    assert torch.equal(first[1][0], second[1][0])  # the first layer precedes all dropout
    assert set(second[0].unique().tolist()) <= {
        -1.0,
        0.0,
        1.0,
    }  # states of the last layer are neither dropped nor scaled
    double.eval()
    assert torch.equal(double(x)[0], double(x)[0])


def test_step_applies_dropout_like_forward():
    """With probability 1 nothing is random: the second layer sees zeros."""
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


KINDS = [BMRU, BMRUCell, LRU, Hybrid, HysteresisMRU, BRC, NBRC, MinGRU, GRU, LSTM, MRU, ClockedRNN]
# For each keyword argument of a layer, a value other than its default; the parameters have device and dtype.
OTHERS = {
    "num_layers": 2,
    "batch_first": True,
    "dropout": 0.25,
    "bidirectional": True,
    "backend": "portable",
    "alpha_surr": 3.0,
    "beta_bias": 4.0,
    "position_size": 1,
    "r_min": 0.5,
    "r_max": 0.9,
    "theta_max": 1.5,
    "max_branches": 3,
    "max_gain": 3.0,
    "n_grid": 32,
    "n_clock": 5,
    "start": "branch",
    "thresholds": "paper",
    "lru_size": 4,
}


def make(kind, *args, **options):
    fields = [simplified_brc()] if kind in (MRU, ClockedRNN) else []
    return kind(*fields, *args, **options)


def keywords(kind):
    """The keyword arguments of a constructor and their defaults."""
    arguments = inspect.signature(kind).parameters.values()
    return {a.name: a.default for a in arguments if a.default is not a.empty and a.name not in ("device", "dtype")}


def repr_arguments(rnn):
    """The arguments shown in ``repr``; on a line of their own if the layer contains modules."""
    lines = repr(rnn).split("(", 1)[1].strip().splitlines()
    return lines[0] if len(lines) > 1 else lines[0].removesuffix(")")


@pytest.mark.parametrize("kind", KINDS)
def test_repr_shows_every_changed_argument(kind):
    """Each on its own, after the sizes, as in a call that creates the same layer."""
    plain = f"{simplified_brc()!r}, 4, 6" if kind in (MRU, ClockedRNN) else "4, 6"
    assert repr_arguments(make(kind, 4, 6)) == plain
    for name, default in keywords(kind).items():
        value = not default if name == "bias" else OTHERS[name]
        assert value != default, name
        options = {"num_layers": 2, name: value} if name == "dropout" else {name: value}
        rnn = make(kind, 4, 6, **options)
        assert repr_arguments(rnn) == ", ".join([plain, *(f"{key}={value!r}" for key, value in options.items())])
        if plain == "4, 6":
            again = eval(f"{kind.__name__}({repr_arguments(rnn)})")
            assert [getattr(again, key) for key in keywords(kind)] == [getattr(rnn, key) for key in keywords(kind)]


def test_repr_of_subclasses_with_constructors_of_their_own():
    """Arguments that are no attributes are unknown: those of the base class are shown."""

    class Fixed(BMRU):
        def __init__(self, sizes, **options):
            super().__init__(*sizes, alpha_surr=2.0, **options)

    class Passing(BMRU):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)

    class Named(BMRU):
        def __init__(self, **options):
            super().__init__(4, 6, **options)

    class Cell(BMRUCell):
        def __init__(self, sizes):
            super().__init__(*sizes)

    assert repr(Fixed((4, 6))) == "Fixed(4, 6, alpha_surr=2.0)"
    assert repr(Passing(4, 6, bias=False)) == "Passing(4, 6, bias=False)"
    assert repr(Named(start="branch")) == "Named(4, 6, start='branch')"
    assert repr(Cell((4, 6))) == "Cell(4, 6)"


@pytest.mark.parametrize("bias", [True, False])
def test_all_weights_are_those_of_each_layer_and_direction(bias):
    for kind in (BMRU, torch.nn.GRU, GRU, LSTM):
        rnn = kind(3, 4, num_layers=2, bidirectional=True, bias=bias)
        assert len(rnn.all_weights) == 4
        assert [id(x) for layer in rnn.all_weights for x in layer] == [id(x) for x in rnn.parameters()]


@pytest.mark.parametrize("kind", [Hybrid, partial(Stack, "hybrid")])
def test_all_weights_of_layers_made_from_others(kind):
    """Of a stack those of its cells."""
    rnn = kind(3, 4, num_layers=2, bidirectional=True)
    names = {id(parameter): name for name, parameter in rnn.named_parameters() if "_l0" in name}
    found = [[names.pop(id(x)) for x in weights] for weights in rnn.all_weights]
    assert not names
    for (layer, reverse), weights in zip([(0, False), (0, True), (1, False), (1, True)], found, strict=True):
        assert all(f".{layer}." in name and ("reverse" in name) == reverse for name in weights)


def test_repr_names_the_field_and_its_constants():
    clocked = ClockedRNN(linear(0.5), 3, 4, n_clock=[1, 2, 3, 4])
    assert repr(clocked) == "ClockedRNN(Linear(_linear, a=0.5), 3, 4, n_clock=(1, 2, 3, 4))"
    mru = MRU(simplified_brc(c=0.1), 4, 8, max_gain=3.0)
    assert repr(mru) == "MRU(Field(partial(_simplified_brc, 0.1)), 4, 8, max_gain=3.0)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size must be a positive integer, got 0"),
        ({"hidden_size": -1}, "hidden_size must be a positive integer, got -1"),
        ({"hidden_size": 2.5}, "hidden_size must be a positive integer, got 2.5"),
        ({"num_layers": 0}, "num_layers must be a positive integer, got 0"),
        ({"dropout": 1.5}, "dropout must be a probability between 0 and 1, got 1.5"),
        ({"dropout": True}, "dropout must be a probability between 0 and 1, got True"),
        ({"bias": "no"}, "bias must be True or False, got 'no'"),
        ({"batch_first": 1}, "batch_first must be True or False, got 1"),
        ({"bidirectional": None}, "bidirectional must be True or False, got None"),
        ({"alpha_surr": -1.0}, "alpha_surr must not be negative, got -1.0"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_bad_constructor_arguments_raise(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BMRU(**({"input_size": 3, "hidden_size": 5} | options))


def test_lengths_with_packed_input_raise():
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3, 3), torch.zeros(2, 3)])
    with pytest.raises(ValueError, match="reset and lengths go with padded input"):
        BMRU(3, 5)(packed, lengths=torch.tensor([3, 2]))


def test_bad_packed_input_raises():
    numbers = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    with pytest.raises(ValueError, match=r"input must be packed sequences \[T, 3\], got sequences \[T\]"):
        BMRU(3, 5)(numbers)
    unsorted = torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 3), torch.zeros(3, 3)], enforce_sorted=False)
    with pytest.raises(ValueError, match=r"hx must have shape \[1, 2, 5\] .*, got \[1, 1, 5\]"):
        BMRU(3, 5)(unsorted, torch.zeros(1, 1, 5))


def test_bad_arguments_of_step_raise():
    rnn = BMRU(3, 5, num_layers=2)
    with pytest.raises(ValueError, match=r"x must have shape \[B, 3\] or \[3\], got \[2, 4\]"):
        rnn.step(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"state must have shape \[2, 4, 5\], got \[1, 4, 5\]"):
        rnn.step(torch.zeros(4, 3), torch.zeros(1, 4, 5))
    with pytest.raises(TypeError, match=r"x must have the dtype of the weights, torch.float32, got torch.float64"):
        rnn.step(torch.zeros(2, 3).double())
    with pytest.raises(TypeError, match=r"state must be one tensor, got tuple"):
        rnn.step(torch.zeros(4, 3), (torch.zeros(2, 4, 5),) * 2)
    with pytest.raises(TypeError, match=r"state must be floating point, got torch.int64"):
        rnn.step(torch.zeros(4, 3), torch.zeros(2, 4, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"state must be on cpu like the input, got meta"):
        rnn.step(torch.zeros(4, 3), torch.zeros(2, 4, 5, device="meta"))
    with pytest.raises(RuntimeError, match="step needs a unidirectional BMRU"):
        BMRU(3, 5, bidirectional=True).step(torch.zeros(2, 3))


def test_autocast_does_not_convert_float64():
    """Other dtypes it does; torch itself would speak of mat1 and mat2."""
    x = torch.randn(5, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        BMRU(3, 4)(x.half())
        for rnn, given in ((BMRU(3, 4), x.double()), (BMRU(3, 4, dtype=torch.float64), x)):
            with pytest.raises(TypeError, match=r"input must have the dtype of the weights, torch.float\d\d, got"):
                rnn(given)


def test_integer_input_raises_and_reset_may_be_a_list():
    rnn = BMRU(3, 4, batch_first=True)
    with pytest.raises(TypeError, match=r"input must be floating point, got torch\.int64"):
        rnn(torch.ones(2, 5, 3, dtype=torch.int64))
    assert rnn(torch.randn(1, 2, 3), reset=[[True, False]])[0].shape == (1, 2, 4)
    assert rnn(torch.randn(2, 3), reset=[True, False])[0].shape == (2, 4)
    with pytest.raises(ValueError, match="dropout must be a probability between 0 and 1, got 'a'"):
        BMRU(3, 4, dropout="a")


def test_weights_and_biases_start_within_the_bound_of_linear():
    """Uniform between -1 / sqrt(D) and 1 / sqrt(D), D the number of inputs."""
    torch.manual_seed(0)
    rnn = MinGRU(100, 400)
    for parameter in (rnn.weight_ih_l0, rnn.bias_ih_l0):
        assert 0.095 < parameter.abs().max() <= 0.1


class Doubled(BMRU):
    """A layer of somebody who does not know that a BMRU copies its last state."""

    def scan_layer(self, x, layer, reverse, h0, steps):
        h = 2 * super().scan_layer(x, layer, reverse, h0, steps)[0]
        return h, h[-1]


@torch.no_grad()
def test_a_subclass_may_return_a_view_of_its_states():
    output, h_n = Doubled(3, 5)(torch.randn(7, 4, 3))
    expected = output.clone()
    assert torch.equal(h_n[0], output[-1])
    h_n.zero_()
    assert torch.equal(output, expected)

"""Proofs unit by unit: machines with units that do as they like, and no proof of what is wrong."""

import math
from copy import deepcopy
from itertools import permutations, product

import pytest
import torch

from built_machines import MOD_THREE, PARITY, TWO_BITS, build, two_layers
from multistable.machines import Machine, Transducer, certify
from multistable.machines.bound import prove_by_units

POINTS = 3
ELEMENTS = list(permutations(range(POINTS)))
S3 = Machine(
    tuple(tuple(ELEMENTS.index(tuple(a[i] for i in q)) for a in ELEMENTS) for q in ELEMENTS),
    tuple(range(len(ELEMENTS))),
)


@torch.no_grad()
def points(idle=0, read=0.0):
    """A model whose unit n tracks where point n is, and ``idle`` further units with random transitions, which the
    read-out reads with weights up to ``read``."""
    torch.manual_seed(0)
    model = Transducer(len(ELEMENTS), len(ELEMENTS), units=POINTS + idle, n_states=POINTS)
    weight, bias, value = model.rnn.parameters_of(0)
    weight.uniform_()
    bias.zero_()
    value.copy_(torch.eye(POINTS).expand_as(value))
    scores = weight.view(-1, POINTS, POINTS, len(ELEMENTS))
    names = [[n, *[i for i in range(POINTS) if i != n]] for n in range(POINTS)]  # state 0 of unit n is point n
    for n, (symbol, element), s in product(range(POINTS), enumerate(ELEMENTS), range(POINTS)):
        scores[n, s, names[n].index(element[names[n][s]]), symbol] = 2.0
    model.read_out.bias.zero_()
    read_out = model.read_out.weight.uniform_(-read, read).view(len(ELEMENTS), -1, POINTS)
    for (c, element), n, s in product(enumerate(ELEMENTS), range(POINTS), range(POINTS)):
        read_out[c, n, s] = float(element[n] == names[n][s])
    return model


def test_units_that_the_read_out_hardly_reads_may_do_as_they_like():
    """Twelve random units of three states have half a million joint states."""
    model = points(idle=12, read=0.01)
    verdict = certify(model, S3, max_pairs=1000)
    assert verdict.right is True
    assert verdict.margin > 1
    assert verdict.pairs <= (POINTS + 12) * POINTS * len(ELEMENTS)


def test_units_that_the_read_out_reads_are_not_ignored():
    model = points(idle=12, read=1.0)
    assert prove_by_units(model, S3)[0] < 0
    assert certify(model, S3).right is False


@torch.no_grad()
def test_where_rounding_may_decide_all_transitions_are_followed():
    """Ties in a unit that nobody reads prove nothing about it, and nothing need be proven; in one that counts they
    do."""
    model = points(idle=1)
    scores = model.rnn.weight_ih_l0.view(-1, POINTS, POINTS, len(ELEMENTS))
    scores[-1] = 0.0
    assert certify(model, S3).right is True
    scores[0] = 0.0
    assert not prove_by_units(model, S3)[0] > 1


def test_a_read_out_without_bias():
    model = points(idle=12, read=0.01)
    model.read_out.register_parameter("bias", None)  # it is zero
    assert certify(model, S3) == certify(points(idle=12, read=0.01), S3)


@pytest.mark.parametrize("name", ["rnn.weight_ih_l0", "rnn.value_l0", "read_out.weight", "read_out.bias"])
def test_nan_proves_nothing(name):
    model = points(idle=1)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = torch.nan
    assert not prove_by_units(model, S3)[0] > 1
    verdict = certify(model, S3)
    assert verdict.right is None
    assert math.isnan(verdict.margin)


ONE_STATE = Machine(((0,),), (1,))


@torch.no_grad()
def never_in_state_1():
    """A model that is ``ONE_STATE``. Its read-out multiplies the value of state 1 by zero."""
    model = Transducer(1, 2, units=1, n_states=2)
    for parameter in model.parameters():
        parameter.zero_()
    model.rnn.bias_ih_l0[0] = 1.0  # stay in state 0
    model.read_out.bias[1] = 1.0
    assert certify(model, ONE_STATE).right is True
    return model


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_state_that_is_never_reached_spoils_the_answers_too(number):
    model = never_in_state_1()
    with torch.no_grad():
        model.rnn.value_l0[0, 1, 0] = number
    assert model(torch.tensor([[0]]))[0].isnan().all()
    assert certify(model, ONE_STATE).right is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("small", ["value_l0", "weight"])
def test_subnormal_parameters_prove_nothing(small, dtype):
    """A product of a subnormal number and a large one is not small, but many CPUs take the first for zero: in bfloat16
    always (AVX-512), in other dtypes if they are told to."""
    model = build(MOD_THREE, units=4).to(getattr(torch, dtype))
    numbers, words = torch.finfo(model.read_out.weight.dtype), torch.randint(2, (64, 64))
    with torch.no_grad():
        for name, parameter in (("value_l0", model.rnn.value_l0), ("weight", model.read_out.weight)):
            parameter.mul_(numbers.tiny / 4 if name == small else 0.25 / numbers.tiny)
    assert certify(model, MOD_THREE).right is None
    model(words)  # numpy, which it may import, warns where subnormal numbers are zero
    if torch.set_flush_denormal(True):
        try:
            assert (model(words)[0].argmax(-1) != MOD_THREE.run(words)).any()
        finally:
            torch.set_flush_denormal(False)


def test_subnormal_numbers_in_float16_are_numbers():
    """They are multiplied in float32."""
    model = build(PARITY).half()
    with torch.no_grad():
        model.read_out.weight.mul_(2.0**-16)
        model.rnn.value_l0.mul_(2.0**12)
    assert certify(model, PARITY).right is True


@pytest.mark.parametrize(("number", "right"), [(1e38, True), (3e38, None)])
def test_parameters_that_lower_precision_makes_infinite_prove_nothing(number, right):
    """Nobody reads the second unit, but zero times infinity is NaN."""
    model = build(PARITY, units=2)
    with torch.no_grad():
        model.rnn.weight_ih_l0[-1, 1] = number
    assert certify(model, PARITY).right is right


class _Infinite(torch.nn.Module):
    def forward(self, value):
        return value.index_fill(1, torch.tensor(1), torch.inf)


def test_what_a_parametrization_computes_counts():
    model = never_in_state_1()
    torch.nn.utils.parametrize.register_parametrization(model.rnn, "value_l0", _Infinite(), unsafe=True)
    assert model(torch.tensor([[0]]))[0].isnan().all()
    assert certify(model, ONE_STATE).right is None


@pytest.mark.parametrize(
    ("size", "dtype"), [(1e-30, "float32"), (1e30, "float32"), (1e-5, "float16"), (1e3, "float16")]
)
@pytest.mark.parametrize(
    ("model", "target"), [(build(PARITY), PARITY), (two_layers(), TWO_BITS)], ids=["units", "walk"]
)
def test_products_that_underflow_or_overflow_prove_nothing(model, target, size, dtype):
    """Logits of 1e-60 and 2e-60 are both zero in float32, and those of 1e60 and 2e60 both infinite."""
    model, last = deepcopy(model), model.rnn.num_layers - 1
    with torch.no_grad():
        model.read_out.weight.copy_(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        assert certify(model, target).right is True
        model.read_out.weight.mul_(size)
        model.rnn.parameters_of(last)[2].mul_(size)
    model = model.to(getattr(torch, dtype))
    logits = model(torch.zeros(1, 4, dtype=torch.long))[0]
    assert (logits == logits[..., :1]).all()
    assert certify(model, target).right is None


@pytest.mark.parametrize("units", [254, 255, 300])
def test_sums_too_long_for_a_bound_prove_nothing(units):
    """In bfloat16 the bound ``n u / (1 - n u)`` on the rounding of n = 256 terms is infinite, and negative beyond."""
    model = Transducer(1, 2, units=units, n_states=1, dtype=torch.bfloat16)
    right = Machine(((0,),), (1,))
    with torch.no_grad():
        model.read_out.weight.zero_()
        model.read_out.bias.copy_(torch.tensor([-1.0, 1.0]))
    verdict = certify(model, right)
    assert verdict.right is None
    assert 0 <= verdict.margin < 1


def test_what_is_proven_is_right():
    """Random models near a right one: of those that are proven, none errs on a word of up to four symbols."""
    words = torch.tensor(list(product(range(len(ELEMENTS)), repeat=4)))
    right, proven = S3.run(words), 0
    for seed in range(40):
        model = points(idle=3, read=0.3)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.15 * torch.randn_like(parameter))
            errs = bool((model(words)[0].argmax(-1) != right).any())
        found = prove_by_units(model, S3)[0] > 1
        assert not (found and errs)
        proven += found
    assert 0 < proven < 40


@torch.no_grad()
def test_restricted_transitions():
    """A latch with two units: symbol 0 keeps, 1 sets state 0, 2 sets state 1."""
    target = Machine(((0, 0, 1), (1, 0, 1)), (0, 1))
    model = Transducer(3, 2, units=2, n_states=2, transitions="set")
    model.rnn.weight_ih_l0.copy_(torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]).repeat(2, 1))
    model.rnn.bias_ih_l0.zero_()
    model.rnn.value_l0.copy_(torch.eye(2).expand(2, 2, 2))
    model.read_out.weight.copy_(torch.eye(2).repeat(1, 2))
    model.read_out.bias.zero_()
    assert prove_by_units(model, target)[0] > 1
    model.rnn.weight_ih_l0[1, 2] = 0.5  # symbol 2 still sets state 1
    assert prove_by_units(model, target)[0] > 1
    model.rnn.weight_ih_l0[1, 2] = -0.5  # symbol 2 keeps, or sets state 0
    assert prove_by_units(model, target)[0] < 1


@torch.no_grad()
def test_margins_below_the_rounding_prove_nothing():
    """Scores, or logits, that differ by units in the last place: another order of summation could decide otherwise."""
    for layer in ("rnn.weight_ih_l0", "read_out.weight"):
        model = build(PARITY)
        model.rnn.bias_ih_l0.fill_(1.0)
        model.read_out.bias.fill_(1.0)
        assert certify(model, PARITY).right is True
        model.get_parameter(layer).mul_(2.0**-23)
        assert prove_by_units(model, PARITY)[0] <= 1
        assert certify(model, PARITY).right is None

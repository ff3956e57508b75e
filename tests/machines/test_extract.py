"""The machine of a model: what it does, in a table."""

import pytest
import torch

from built_machines import PARITY, TWO_BITS, build, two_layers
from multistable.machines import Transducer, extract


def test_a_machine_comes_back():
    assert extract(build(PARITY)) == PARITY
    assert extract(build(PARITY, units=3)) == PARITY, "units that move together are one"


@pytest.mark.parametrize("swap", [False, True])
def test_the_start_has_the_output_that_float64_decides(swap):
    """As every other state: in float32 these logits are equal."""
    model = build(PARITY)
    with torch.no_grad():
        model.read_out.weight.mul_(2.0**-30)
        model.read_out.bias.fill_(1.0)
        if swap:
            model.read_out.weight.copy_(model.read_out.weight.flip(0))
    assert extract(model).output == ((1, 0) if swap else (0, 1))


def test_layers_are_one_machine():
    found = extract(two_layers())
    word = torch.zeros(1, 20, dtype=torch.int64)
    assert found.n_states == 4
    assert torch.equal(found.run(word), TWO_BITS.run(word))


def test_a_random_model_and_its_machine_agree():
    torch.manual_seed(0)
    model, symbols = Transducer(3, 4, units=2, n_states=3), torch.randint(3, (8, 200))
    assert torch.equal(extract(model).run(symbols), model(symbols)[0].argmax(-1))


def test_too_many_states():
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="at most max_states = 5"):
        extract(Transducer(3, 4, units=4, n_states=8), max_states=5)

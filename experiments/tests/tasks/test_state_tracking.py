"""State tracking: the machines, the samples, and the failing length."""

import itertools

import pytest
import torch

from multistable.machines import Machine
from multistable_experiments.tasks.state_tracking import (
    failing_length,
    machine,
    random_symbols,
)

ORDERS = {"Z2": 2, "Z3": 3, "Z6": 6, "S3": 6, "D4": 8, "A4": 12, "S4": 24, "A5": 60}


@pytest.mark.parametrize(("name", "order"), ORDERS.items())
def test_word_problems_are_groups(name, order):
    table = machine(name).table
    assert len(table) == order
    assert table[0] == tuple(range(order))  # the identity is the start
    elements = range(order)
    assert all(sorted(row) == list(elements) for row in table)  # symbols can be undone
    some = list(itertools.product(elements, repeat=3))[:: max(1, order**3 // 500)]
    assert all(table[table[a][b]][c] == table[a][table[b][c]] for a, b, c in some)


def test_groups_of_equal_order_differ():
    """Z6 commutes, S3 does not; A5 has no element of order 4 and is not solvable, so it must have order 60."""
    commutes = {name: all(a == b for a, b in pairs(machine(name).table)) for name in ("Z6", "S3", "D4")}
    assert commutes == {"Z6": True, "S3": False, "D4": False}


def pairs(table):
    return [(table[a][b], table[b][a]) for a in range(len(table)) for b in range(len(table))]


def test_counters_and_flip_flop():
    bits = torch.randint(2, (4, 50))
    for n in (2, 3, 7):
        assert torch.equal(machine(f"mod{n}").run(bits), bits.cumsum(1) % n)
    assert machine("parity") == machine("mod2")
    symbols = torch.tensor([[0, 2, 0, 0, 1, 0, 2]])
    assert machine("flip-flop").run(symbols).tolist() == [[0, 1, 1, 1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("word", "outputs"),
    [
        ("()", [1, 0]),
        ("([])", [1, 1, 1, 0]),
        ("([)]", [1, 1, 2, 2]),
        ("(((()", [1, 1, 1, 2, 2]),
        (")(", [2, 2]),
        ("[][](", [1, 0, 1, 0, 1]),
    ],
)
def test_brackets(word, outputs):
    symbols = torch.tensor([["([)]".index(bracket) for bracket in word]])
    assert machine("dyck").run(symbols).tolist() == [outputs]


def test_random_brackets_are_seldom_broken():
    symbols = random_symbols(machine("dyck"), (500, 30), torch.Generator().manual_seed(0))
    shares = torch.bincount(machine("dyck").run(symbols)[:, -1], minlength=3) / 500
    assert (shares > 0.02).all()
    assert shares[2] < 0.6


def test_failing_length():
    target = machine("mod3")
    wrong_from_seven = Machine((*((q + 1,) * 2 for q in range(9)), (9, 9)), (0,) * 7 + (1,) * 3)

    def model(symbols, state):
        steps = torch.zeros(len(symbols), dtype=torch.int64) if state is None else state
        late = wrong_from_seven.run(symbols) if state is None else torch.ones_like(symbols)
        answers = (target.run(symbols) + late) % 3
        return torch.nn.functional.one_hot(answers, 3).float(), steps

    assert failing_length(model, target, longest=30, sequences=3) == 7
    right = lambda symbols, state: (torch.nn.functional.one_hot(target.run(symbols), 3), symbols)  # noqa: E731
    assert failing_length(right, target, longest=30, sequences=3) is None


@pytest.mark.parametrize("name", ["S5", "mod1", "mod04", "mod99999999999"])
def test_unknown_machines(name):
    """A counter of so many states would take all memory."""
    with pytest.raises(
        ValueError, match=f"machine must be one of parity, .* or modN with N from 2 to 9999, got {name!r}"
    ):
        machine(name)

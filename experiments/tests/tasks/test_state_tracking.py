"""State tracking: the machines, the samples, and the failing length."""

import itertools
import math

import pytest
import torch

from multistable.machines import Machine
from multistable_experiments.tasks.state_tracking import (
    MACHINES,
    StateTracking,
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


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("answers", ["last", "every"])
def test_samples(name, answers):
    task = StateTracking(name, length=9, answers=answers, train_samples=40, test_samples=10, blanks=0.2)
    for split, size in (("train", 36), ("valid", 4), ("test", 10)):
        samples = task.samples(split, seed=0)
        x = task.inputs(samples.stored)
        assert x.shape == (size, 9, task.d_input)
        assert samples.target.shape == ((size,) if answers == "last" else (size, 9))
        shape = (size, task.d_output) if answers == "last" else (size, 9, task.d_output)
        losses = task.losses(torch.zeros(shape), samples.target)
        assert losses.shape == task.scores(torch.zeros(shape), samples.target).shape == (size,)
        torch.testing.assert_close(losses, torch.full((size,), math.log(task.d_output)))


def test_blanks_change_nothing():
    task = StateTracking("S3", length=40, answers="last", blanks=0.5, train_samples=50)
    samples = task.samples("train", seed=0)
    for stored, target in zip(samples.stored, samples.target, strict=True):
        symbols = stored[stored < 6].long()
        expected = machine("S3").run(symbols[None])[0, -1] if len(symbols) else 0
        assert target == expected


def test_lengths_vary():
    stored = StateTracking("parity", length=30, shortest=5).samples("train", seed=0).stored
    lengths = (stored < 2).sum(1)
    assert (int(lengths.min()), int(lengths.max())) == (5, 30)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machine": "S5"}, "machine must be one of parity, .* got 'S5'"),
        ({"shortest": 200}, "shortest must be at most length = 128, got 200"),
        ({"blanks": 1.0}, "blanks must be a probability below 1, got 1.0"),
        ({"answers": "first"}, "answers must be 'last' or 'every', got 'first'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        StateTracking(**options)

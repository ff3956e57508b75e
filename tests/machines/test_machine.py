"""Machines: bad tables are refused."""

import pytest
import torch

from multistable.machines import Machine


def test_run():
    machine = Machine(((0, 1), (2, 1), (0, 0)), (0, 1, 1))
    assert machine.states(torch.tensor([[1, 0, 0, 1]])).tolist() == [[1, 2, 0, 1]]
    assert machine.run(torch.tensor([[1, 0, 0, 1]])).tolist() == [[1, 1, 0, 1]]
    assert (machine.n_states, machine.n_symbols, machine.n_outputs) == (3, 2, 2)


@pytest.mark.parametrize(
    ("table", "output", "message"),
    [
        ((), (), "table must have a row"),
        (((0, 1), (0,)), (0, 1), "table must have a row of equal length"),
        (((0, 2), (0, 1)), (0, 1), "table must have states from 0 to 1"),
        (((0, 1), (0, 1)), (0,), "output must have a number from 0 for each of 2 states"),
    ],
)
def test_bad_machines(table, output, message):
    with pytest.raises(ValueError, match=message):
        Machine(table, output)


@pytest.mark.parametrize("Q", [2, 20], ids=["scan", "loop"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16, torch.int64])
def test_symbols_of_any_integer_dtype(dtype, Q):
    counter = Machine(tuple((q, (q + 1) % Q) for q in range(Q)), tuple(range(Q)))
    states = counter.states(torch.tensor([[1, 0, 1]]).to(dtype))
    assert states.tolist() == [[1, 1, 2 % Q]]
    assert states.dtype == torch.int64


@pytest.mark.parametrize(
    ("symbols", "start", "message"),
    [
        (torch.tensor([[0, -1]]), None, "symbols must lie between 0 and 1, got -1 to 0"),
        (torch.tensor([[0, 2]]), None, "symbols must lie between 0 and 1, got 0 to 2"),
        (torch.tensor([[0.0, 1.0]]), None, "symbols must be integers .B, T., got torch.float32"),
        (torch.tensor([0, 1]), None, r"symbols must be integers .B, T., got torch.int64 \[2\]"),
        (torch.tensor([[0, 1]]), torch.tensor([256]), "start must lie between 0 and 1, got 256"),
    ],
)
def test_bad_input(symbols, start, message):
    with pytest.raises(ValueError, match=message):
        Machine(((0, 1), (1, 0)), (0, 1)).states(symbols, start)

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

"""The demo learns, remembers, and leaves its table and picture."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from multistable import BMRU, demo


@pytest.fixture(scope="module")
def trained() -> demo.HoldBit:
    torch.manual_seed(0)
    model = demo.HoldBit(BMRU(1, 1, batch_first=True))
    demo.train(model, range(500))
    return model


@pytest.mark.parametrize("T", [1, 2, 10, 5000, 10**5])
def test_trained_unit_holds_its_bit(trained: demo.HoldBit, T: int) -> None:
    test = demo.recall(trained, T)
    assert test.error < 1e-2
    assert test.streamed_equal
    assert test.states.shape == (2, T)
    alpha = trained.rnn.get_parameter("alpha_l0").abs().detach()
    assert torch.equal(test.states.abs(), alpha.expand(2, T))
    assert torch.equal(test.states[0], -test.states[1])


def test_untrained_unit_does_not_pass() -> None:
    torch.manual_seed(0)
    assert demo.recall(demo.HoldBit(BMRU(1, 1, batch_first=True)), 100).error > 0.1


def test_linear_unit_is_its_recurrence_and_streams() -> None:
    unit = demo.LinearUnit()
    x = torch.randn(2, 5, 1)
    h, last = unit(x)
    a, state = torch.exp(-torch.exp(unit.log_nu)), torch.zeros(2, 1)
    for t in range(5):
        state = a * state + unit.weight * x[:, t]
        torch.testing.assert_close(h[:, t], state)
    first, carried = unit(x[:, :2])
    second, _ = unit(x[:, 2:], carried)
    torch.testing.assert_close(torch.cat([first, second], dim=1), h)
    assert last.shape == (1, 2, 1)


def test_run_prints_a_table_and_saves_a_picture(tmp_path: Path) -> None:
    console = Console(record=True, width=140, quiet=False, force_terminal=False)
    recalls = demo.run(tmp_path / "new" / "demo", steps=20, lengths=(10, 5000), console=console)
    text = console.export_text()
    assert list(recalls) == ["BMRU", "linear"]
    assert [test.length for test in recalls["linear"]] == [10, 5000]
    for words in ("5,000", "BMRU error", "linear error", "same bits", "hold_bit.png"):
        assert words in text
    picture = tmp_path / "new" / "demo" / "hold_bit.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000

"""Updates of a learner: every memory takes its turn."""

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl import speed


def test_rows(monkeypatch):
    monkeypatch.setattr(speed, "LENGTHS", (4, 8))
    rows = list(speed.rows(repeats=1))
    assert len(rows) == 2 * 2 * len(speed.MEMORIES)
    assert {row.baseline for row in rows} == {"nn.GRU", "nn.LSTM"}
    assert all(row.value > 0 and row.baseline_value > 0 for row in rows)

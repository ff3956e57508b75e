"""The benchmark's measuring and its report, on tiny sizes: the numbers mean nothing here, their form does."""

import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from multistable_experiments.bench import cpu, measure, report


def test_take_turns_alternates_and_takes_the_median_of_what_counts() -> None:
    calls, naps = [], iter([0.2, 0.0, 0.05, 0.0])  # the first is warm-up, then median of 0, 0.05, 0

    def sleepy() -> None:
        calls.append("sleepy")
        time.sleep(next(naps))

    sleepy_ms, other_ms = measure.take_turns([sleepy, lambda: calls.append("other")], repeats=3)
    assert calls == ["sleepy", "other"] * 4
    assert other_ms < 50
    assert sleepy_ms < 50


@pytest.mark.parametrize(
    ("kind", "goal", "ratio", "reached"),
    [("cost", 1.5, 1.25, True), ("cost", 1.2, 1.25, False), ("gain", 0.8, 0.8, True), ("gain", 6.0, 0.8, False),
     ("cost", None, 1.25, None)],
)  # fmt: skip
def test_ratio_and_goal(kind: str, goal: float | None, ratio: float, reached: bool | None) -> None:
    row = report.Row("x", (1, 2, 3), "float32", 5.0, "y", 4.0, kind=kind, goal=goal)  # type: ignore[arg-type]
    assert row.ratio == ratio
    assert row.reached is reached


def test_results_file_and_table(tmp_path: Path) -> None:
    path = tmp_path / "results" / "cpu.json"
    console = Console(record=True, width=200)
    rows = [*cpu.scan_rows((2, 64, 8), repeats=3), *cpu.layer_rows((2, 64, 8), repeats=1)]
    rows += [*cpu.exact_rows((2, 64, 8), repeats=1), *cpu.step_rows(N=8, repeats=1)]
    rows += [*cpu.time_growth((64, 128), N=8, repeats=1)]
    report.run(iter(rows), "cpu", path, console)

    content = json.loads(path.read_text())
    assert {"processor", "cores", "torch", "numba", "commit", "dirty", "date"} <= set(content["machine"])
    assert len(content["rows"]) == len(rows) == 2 + 6 + 2 + 2 + 2 * 4
    for row in content["rows"]:
        unit = "ms" if "ms" in row else "us"
        assert {"name", "shape", "dtype", "kind", "baseline", "ratio", "goal", "reached"} <= set(row)
        assert row[unit] > 0
        wanted = row[unit] / row[f"baseline_{unit}"]
        assert row["ratio"] == pytest.approx(wanted if row["kind"] == "cost" else 1 / wanted)
        assert (row["goal"] is None) == (row["reached"] is None)
    assert "bmru_scan backward" in console.export_text()


def test_peak_memory_sees_what_a_layer_holds() -> None:
    """At T = 2^15, N = 64: input and states are 8 MiB each, a tile of the projection 4 MiB, the whole would be 16.

    To train, the projection is kept, and the loss has a few tensors of the size of the states.
    """
    peak = measure.peak_bytes_of("multistable_experiments.bench.cpu", "forward", 2**15, 64)
    assert 16 * 2**20 <= peak < 30 * 2**20
    peak = measure.peak_bytes_of("multistable_experiments.bench.cpu", "training step", 2**15, 64)
    assert 32 * 2**20 <= peak < 72 * 2**20

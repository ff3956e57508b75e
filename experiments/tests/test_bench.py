"""The benchmark's measurements and report, at tiny sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from multistable import ModelConfig
from multistable_experiments.bench import cpu, long_sequence, measure, packing, passes, ranks, report, scale
from multistable_experiments.bench.shapes import random_shapes, seed_of
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.run import Run
from sources import EXPERIMENTS


def test_take_turns_alternates_and_takes_the_median_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    durations = {"first": iter([99, 1, 7, 2]), "second": iter([50, 3, 3, 90])}  # seconds; round 1 is the warm-up
    calls = []

    def compute(name: str) -> None:
        nonlocal clock
        calls.append(name)
        clock += next(durations[name])

    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock)
    times = measure.take_turns([lambda: compute("first"), lambda: compute("second")], repeats=3)
    assert times == [2000, 3000]  # means would be 3333 and 32000
    assert calls == ["first", "second"] * 4


@pytest.mark.parametrize(
    ("kind", "goal", "ratio", "reached"),
    [("cost", 1.5, 1.25, True), ("cost", 1.2, 1.25, False), ("gain", 0.8, 0.8, True), ("gain", 6.0, 0.8, False),
     ("cost", None, 1.25, None)],
)  # fmt: skip
def test_ratio_and_goal(kind: str, goal: float | None, ratio: float, reached: bool | None) -> None:
    row = report.Row("x", (1, 2, 3), "float32", 5.0, "y", 4.0, kind=kind, goal=goal)  # type: ignore[arg-type]
    assert row.ratio == ratio
    assert row.reached is reached


@pytest.mark.extra
def test_results_file_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results" / "cpu.json"
    console = Console(record=True, width=200)
    rows = [*cpu.scan_rows((2, 64, 8), repeats=3), *cpu.map_rows((2, 64, 8), repeats=1)]
    rows += [*cpu.layer_rows((2, 64, 8), repeats=1)]
    rows += [*cpu.exact_rows((2, 64, 8), repeats=1), *cpu.step_rows(N=8, repeats=1)]
    rows += [*cpu.time_growth((64, 128), N=8, repeats=1)]
    monkeypatch.setattr(cpu, "rows", lambda: iter(rows))
    report.run("cpu", path, tmp_path / "not used", console)

    content = json.loads(path.read_text())
    assert {"processor", "cores", "torch", "numba", "commit", "dirty", "date"} <= set(content["machine"])
    assert len(content["rows"]) == len(rows) == 2 + 4 + 6 + 2 + 2 + 2 * 4
    for row in content["rows"]:
        unit = "ms" if "ms" in row else "us"
        assert {"name", "shape", "dtype", "kind", "baseline", "ratio", "goal", "reached"} <= set(row)
        assert row[unit] > 0
        wanted = row[unit] / row[f"baseline_{unit}"]
        assert row["ratio"] == pytest.approx(wanted if row["kind"] == "cost" else 1 / wanted)
        assert (row["goal"] is None) == (row["reached"] is None)
    assert "bmru_scan backward" in console.export_text()


def test_peak_memory_includes_what_a_layer_holds() -> None:
    """At T = 2^15 and N = 64, input and states take 8 MiB each, a tile of the projection 4 MiB, all of it 16 MiB.

    Training keeps the projection, and the loss has a few tensors of the states' size.
    """
    peak = cpu.peak_bytes("forward", 2**15, 64)
    assert 16 * 2**20 <= peak < 30 * 2**20
    peak = cpu.peak_bytes("training step", 2**15, 64, runs=1)
    assert 32 * 2**20 <= peak < 72 * 2**20


def test_results_are_written_where_the_tools_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "rows", lambda: iter([report.Row("x", (1, 2, 3), "float32", 5.0, "y", 4.0)]))
    report.run("cpu", None, tmp_path, Console(record=True))
    [row] = json.loads((tmp_path / "cpu.json").read_text())["rows"]
    published = json.loads((EXPERIMENTS / "benchmarks" / "results" / "cpu.json").read_text())["rows"][0]
    assert row.keys() == published.keys()


def test_random_shapes_are_those_of_their_seed() -> None:
    shapes = random_shapes(seed_of("908ba2a1ffff"))
    assert shapes == random_shapes(0x908BA2A1)
    assert shapes != random_shapes(1)
    assert len(shapes) == 40
    for (B, T, N), itemsize in shapes:
        assert 1 <= B <= 1024
        assert 64 <= T <= 1 << 20
        assert 32 <= N <= 4096
        assert 256e6 <= 3 * itemsize * B * T * N <= 4e9
    widths = [N for (_, _, N), _ in shapes]
    assert sum(N % 64 == 0 for N in widths) >= 20
    assert sum(N % 8 == 0 for N in widths) >= 30
    assert any(N % 8 for N in widths)
    assert {itemsize for _, itemsize in shapes} == {2, 4}
    assert sum(itemsize == 2 for _, itemsize in shapes) == 20


def test_long_sequence_does_not_depend_on_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens are alike here, so that cutting differently leaves the input the same."""
    monkeypatch.setattr(torch, "randint", lambda high, size, **_: torch.zeros(size, dtype=torch.int64))
    losses = []
    for piece in (16, 50):
        torch.manual_seed(0)
        with torch.random.fork_rng():
            losses.append(long_sequence.train_once(50, piece, 4, "cpu", torch.float64)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_ranks_measures_one_process(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        row = ranks.measure(1, 100, 8, "cpu", torch.float32, repeats=1)
    finally:
        dist.destroy_process_group()
    assert row["ranks"] == 1
    assert all(row[name] > 0 for name in ("whole", "in_pieces", "exchange"))


def test_passes_are_all_measured() -> None:
    for name, piece in passes.pieces_of(1, 300, 8, "cpu", torch.float32):
        times = passes.measure(piece, ranks=3, repeats=1)
        assert len(times) == 6
        assert min(times.values()) > 0, name


@pytest.mark.extra
def test_runs_that_share_a_device_are_counted_together() -> None:
    sizes = {"d_input": 2, "d_output": 1, "d_model": 4, "d_state": 4}
    task = CopyFirst(length=5, train_samples=100, test_samples=10)
    run = Run(task, ModelConfig(("bmru",), **sizes), epochs=10, batch_size=30)
    rows = list(packing.measure(run, (1, 2), seconds=1.0, device="cpu"))
    assert [row["packed"] for row in rows] == [1, 2]
    for row in rows:
        assert row["epochs_per_s"] > 1
        assert row["runs_per_hour"] == pytest.approx(360 * row["epochs_per_s"])


@pytest.mark.extra
def test_a_part_that_fails_or_hangs_leaves_the_others(tmp_path: Path) -> None:
    path, small = tmp_path / "scale.json", "long_sequence --device cpu --dtype float32 --width 4 --piece 8"
    parts = {
        "bad": ("passes --dtype none", 60),
        "slow": (f"{small} --steps 16 2**26", 15),
        "good": (f"{small} --steps 16", 60),
    }
    scale.measure(path, parts)
    content = json.loads(path.read_text())
    assert "invalid choice" in content["bad"]["error"]
    assert "ended after 15 s" in content["slow"]["error"]
    assert [row["T"] for row in content["slow"]["rows"]] == [16]
    assert [row["T"] for row in content["good"]["rows"]] == [16]
    assert "error" not in content["good"]
    assert content["good"]["machine"]["commit"]
    scale.measure(path, {"bad": parts["good"]})
    again = json.loads(path.read_text())
    assert again["good"] == content["good"]
    assert "error" not in again["bad"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("N", [80, 77])
def test_a_copy_by_rows_copies(N: int, dtype: torch.dtype) -> None:
    """In Triton's interpreter, which an environment chooses before Triton is imported."""
    pytest.importorskip("triton", reason="Triton is not installed: it is part of torch for GPUs")
    code = f"""
import torch
from multistable_experiments.bench import row_copy
from multistable_experiments.bench.row_copy import walk
row_copy.CHUNK = 8
x = torch.randn(2, 13, {N}).to({dtype})
y = torch.zeros_like(x)
walk(x, y, 64, 2)
assert torch.equal(x, y)
"""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)

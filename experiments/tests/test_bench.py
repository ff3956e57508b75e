"""The benchmark's measurements and report, at tiny sizes."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from multistable import ModelConfig
from multistable_experiments.bench import cpu, long_sequence, measure, packing, passes, ranks, report, scale
from multistable_experiments.bench.shapes import random_shapes, seed_of
from multistable_experiments.files import DamagedFileError
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
    monkeypatch.setattr(cpu, "PARTS", {"all": lambda: iter(rows)})
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


@pytest.mark.extra
def test_peak_memory_includes_what_a_layer_holds() -> None:
    """At T = 2^15 and N = 64, input and states take 8 MiB each, a tile of the projection 4 MiB, all of it 16 MiB.

    Training keeps the projection, and the loss has a few tensors of the states' size.
    """
    peak = cpu.peak_bytes("forward", 2**15, 64)
    assert 16 * 2**20 <= peak < 30 * 2**20
    peak = cpu.peak_bytes("training step", 2**15, 64, runs=1)
    assert 32 * 2**20 <= peak < 72 * 2**20


def test_results_are_written_where_the_tools_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PARTS", {"all": lambda: iter([report.Row("x", (1, 2, 3), "float32", 5.0, "y", 4.0)])})
    report.run("cpu", None, tmp_path, Console(record=True))
    [row] = json.loads((tmp_path / "cpu.json").read_text())["rows"]
    published = json.loads((EXPERIMENTS / "benchmarks" / "results" / "cpu.json").read_text())["rows"][0]
    assert row.keys() == published.keys()


def test_a_part_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file keeps the rows of all other parts, in their order, and says of which commit each part is."""
    value = 5.0
    row = lambda name: iter([report.Row(name, (1, 2, 3), "float32", value, "y", 4.0)])  # noqa: E731
    monkeypatch.setattr(cpu, "PARTS", {"scans": lambda: row("scan"), "maps": lambda: row("map")})
    run = partial(report.run, "cpu", None, tmp_path, Console(record=True))
    monkeypatch.setenv("MULTISTABLE_COMMIT", "a" * 40)
    run()
    monkeypatch.setenv("MULTISTABLE_COMMIT", "b" * 40)
    value = 7.0
    run(["scans"])
    content = json.loads((tmp_path / "cpu.json").read_text())
    assert [(row["part"], row["ms"]) for row in content["rows"]] == [("scans", 7.0), ("maps", 5.0)]
    assert {part: source["commit"][0] for part, source in content["parts"].items()} == {"scans": "b", "maps": "a"}

    def stop():
        raise KeyboardInterrupt

    monkeypatch.setenv("MULTISTABLE_COMMIT", "c" * 40)
    monkeypatch.setitem(cpu.PARTS, "maps", stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    content = json.loads((tmp_path / "cpu.json").read_text())
    assert {part: source["commit"][0] for part, source in content["parts"].items()} == {"scans": "c", "maps": "a"}
    assert len(content["rows"]) == 2

    with pytest.raises(ValueError, match="--part must be one of scans, maps, got 'steps'"):
        report.run("cpu", None, tmp_path / "new", Console(record=True), ["steps"])
    assert not (tmp_path / "new").exists()
    content["machine"]["torch"] = "1.0"
    (tmp_path / "cpu.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"cpu.json is of torch '1.0', not"):
        run(["scans"])
    (tmp_path / "cpu.json").write_text("{}")
    with pytest.raises(DamagedFileError, match=r"cpu.json is not a file of this benchmark"):
        run(["scans"])
    monkeypatch.setitem(cpu.PARTS, "maps", lambda: row("map"))
    run()  # measures all, so that nothing of the file is needed
    assert len(json.loads((tmp_path / "cpu.json").read_text())["rows"]) == 2


def test_two_benchmarks_of_one_file_keep_both_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = lambda name: iter([report.Row(name, (1, 2, 3), "float32", 5.0, "y", 4.0)])  # noqa: E731
    run = partial(report.run, "cpu", None, tmp_path, Console(record=True))

    def meanwhile():
        run(["maps"])
        return row("scan")

    monkeypatch.setattr(cpu, "PARTS", {"scans": meanwhile, "maps": lambda: row("map")})
    run(["scans"])
    assert [row["part"] for row in json.loads((tmp_path / "cpu.json").read_text())["rows"]] == ["scans", "maps"]


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


@pytest.mark.parametrize("layer", ["bmru", "lru"])
def test_random_shapes_need_no_kernels_but_those_compiled_beforehand(monkeypatch, layer):
    """1,000 shapes on an H200, of whose kernels nothing is launched."""
    pytest.importorskip("triton")
    from multistable.ops.triton import launch, primitives, variants

    monkeypatch.setattr(primitives, "NO_ASSEMBLY", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: 227 * 1024 * 7 // 8)
    launch.launch_config.cache_clear()
    options = {
        "h0": False,
        "reset": False,
        "gradients": (True, False),
        "alpha_surr": 1.0,
        "device": torch.device("cpu"),
    }
    for dtype in (torch.float32, torch.bfloat16):
        widths = [2 * N if layer == "lru" else N for N in variants.widths_of_every_kind()]
        calls = (variants.Calls(width, dtype, dtype, **options) for width in widths)
        compiled = {key for each in calls for key in variants.plan_variants(layer, each)}
        met = set()
        for (B, T, N), itemsize in random_shapes(5, count=1000):
            if itemsize == dtype.itemsize:
                width = 2 * N if layer == "lru" else N
                with primitives.planning() as planned:
                    for backward in (False, True):
                        call = variants.LAYERS[layer][0]
                        call(variants.Calls(width, dtype, dtype, **options), B, T, backward)
                met |= planned.keys()
        assert len(met) > 10
        assert met <= compiled
    launch.launch_config.cache_clear()


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

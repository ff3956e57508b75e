"""The plan on paper agrees with the measurement it starts from."""

import importlib.util
import math
import sys
from pathlib import Path

PATH = Path(__file__).parents[1] / "tools" / "plan.py"


def test_one_gpu_takes_what_was_measured(monkeypatch):
    spec = importlib.util.spec_from_file_location("plan", PATH)
    plan = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plan", plan)  # dataclasses ask for it
    spec.loader.exec_module(plan)
    kernels, given = plan.Kernels.read(), plan.Assumptions()
    alone = plan.step_seconds(kernels, given, 1 << 20, 1, layers=2)
    assert math.isclose(sum(alone.values()), 2 * (1 << 20) * kernels.layer)
    shared = plan.step_seconds(kernels, given, 1 << 20, 8, layers=2)
    assert shared["compute"] == alone["compute"] / 8
    assert shared["exchange"] > 0
    long = plan.step_seconds(kernels, given, 1 << 30, 1, layers=1)
    assert long["again"] > 0  # does not fit into memory at once
    table = plan.show(kernels, given, 1)
    assert "network_latency_s" in table
    assert "2^30" in table

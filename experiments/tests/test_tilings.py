"""experiments/benchmarks/tilings.py compiles and runs every tiling, and leaves the tables as they were."""

import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from h200 import pretend
from multistable.ops import triton as kernels
from multistable.ops.triton import latch, launch, maps, primitives

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "tilings.py"))

pytestmark = [
    pytest.mark.extra,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),  # Triton 3.9
    pytest.mark.skipif(bool(primitives.NO_ASSEMBLY), reason="the kernels are interpreted, or not for NVIDIA"),
]


@pytest.fixture
def gpu(monkeypatch):
    yield pretend(monkeypatch)
    launch.launch_config.cache_clear()


def test_every_tiling_is_compiled_and_timed(gpu, monkeypatch):
    """The last one gives another result."""
    trials = TOOL["trials_of"]({"steps": (2, 4), "stages": (2,), "warps": (1,), "columns": (32, 64)})
    assert [(trial.tiling.U, trial.tiling.BN, trial.cut) for trial in trials] == [
        (2, 32, False), (2, 32, True), (4, 32, False), (4, 32, True),
    ]  # fmt: skip
    cand, beta, h = torch.randn(3, 1, 2000, 64).unbind()
    before, last = dict(latch._TILINGS), ((TOOL["CUT"], trials[-1].tiling),)

    def call():
        kernels.bmru_forward(cand, beta, torch.ones(64), None, None, h, reverse=False)
        return (torch.full((3,), 2.0 if latch._TILINGS["wide"] == last else 1.0),)

    for name, replaced in {
        "call_of": lambda *_: (call, 1000),
        "milliseconds": lambda _: float(len(gpu.launched)),
        "copy_bandwidth": lambda: 1.0,
    }.items():
        monkeypatch.setitem(TOOL["tune"].__globals__, name, replaced)
    used, copy = TOOL["tune"]("bmru-forward", (1, 2000, 64), torch.float32, trials)
    assert copy == 1000
    assert [trial.wrong for trial in trials] == [False, False, False, True]
    assert 0 < used < trials[0].ms < trials[1].ms
    assert all(trial.compilation > 0 for trial in trials)
    assert before == latch._TILINGS


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("kernel", "per_word"), [("map-4", 4), ("map-4-single", 1)])
def test_maps_by_the_word_or_one_by_one(monkeypatch, kernel, per_word):
    words = torch.zeros(1, 64, 64, dtype=torch.uint8)

    def forward():
        maps.map_forward(words, None, None, torch.empty_like(words), K=4, reverse=False)

    monkeypatch.setattr(maps, "can_pack", maps.can_pack)  # the tool replaces it
    monkeypatch.setitem(TOOL["call_of"].__globals__, "map_pass", lambda shape, K: (words, forward))
    call, size = TOOL["call_of"](kernel, (1, 64, 64), torch.uint8)
    with primitives.planning() as plan:
        call()
    assert [variant.args[-1]["PER_WORD"] for variant in plan.values()] == [per_word]
    assert size == 2 * words.nbytes

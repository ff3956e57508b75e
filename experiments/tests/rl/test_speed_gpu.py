"""An update as a CUDA graph learns what one without learns."""

from functools import partial

import pytest
import torch

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

from multistable_experiments.rl import speed  # noqa: E402


def losses(graph: bool, monkeypatch) -> list[float]:
    """The loss after each of some updates; a graph is warmed up by three before."""
    torch.manual_seed(0)
    learners = []

    class Kept(speed.Learner):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            learners.append(self)

        def descend(self, rollout):
            self.rollout = rollout
            super().descend(rollout)

    with monkeypatch.context() as patch:
        patch.setattr(speed, "Learner", Kept)
        if not graph:  # nor a compiled loss
            plain = partial(speed.objective, space=speed.NoEnvs().single_action_space, settings=speed.Settings())
            patch.setattr(speed, "_compiled_objective", lambda: plain)
            patch.setattr(speed, "replayed", lambda update: [update() for _ in range(3)] and update)
        update = speed.build_update(speed.MEMORIES["BMRU"](), 64, "cuda")
    found = []
    for _ in range(3):
        update()
        found.append(learners[0].loss(learners[0].rollout).item())
    return found


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler reads it
def test_a_graph_learns_the_same(monkeypatch):
    eager = losses(False, monkeypatch)
    assert eager[0] > eager[1] > eager[2]
    assert losses(True, monkeypatch) == pytest.approx(eager, rel=1e-3)

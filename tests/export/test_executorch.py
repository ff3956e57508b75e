"""Programs for ExecuTorch: its runtime computes what torch does. Needs ``pip install executorch``."""

import pytest
import torch

from multistable import BMRU, ModelConfig, Stack, build_model
from multistable.export import decompositions

exir = pytest.importorskip("executorch.exir")
runtime = pytest.importorskip("executorch.runtime")
pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]


class Step(torch.nn.Module):
    """A layer, one timestep at a time."""

    def __init__(self, rnn: torch.nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x, state):
        return self.rnn.step(x, state)


def run(model, args, folder):
    """Lower ``model`` to ExecuTorch, write it, and execute it by the runtime."""
    program = torch.export.export(model, args).run_decompositions(decompositions())
    path = folder / "model.pte"
    path.write_bytes(exir.to_edge(program).to_executorch().buffer)
    return runtime.Runtime.get().load_program(path).load_method("forward").execute(list(args))


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
def test_layer_has_the_same_states(tmp_path, bidirectional):
    """Sums of three products of quarters are exact, whatever the order."""
    torch.manual_seed(0)
    rnn = BMRU(3, 8, 2, batch_first=True, bidirectional=bidirectional).eval()
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.copy_((4 * parameter).round() / 4)
        x = torch.randint(-8, 9, (2, 30, 3)) / 4
        for actual, expected in zip(run(rnn, (x,), tmp_path), rnn(x), strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("make", [lambda: BMRU(3, 8, 2), lambda: Stack("hybrid", 3, 8, 2)], ids=["bmru", "stack"])
def test_single_steps(tmp_path, make):
    torch.manual_seed(0)
    model, args = Step(make()).eval(), (torch.randn(2, 3), torch.randn(2, 2, 8))
    with torch.no_grad():
        for actual, expected in zip(run(model, args, tmp_path), model(*args), strict=True):
            torch.testing.assert_close(actual, expected)


def test_model(tmp_path):
    torch.manual_seed(0)
    model, x = build_model(ModelConfig(("bmru", "bmru"), 3, 2, d_model=8, d_state=8)).eval(), torch.randn(2, 20, 3)
    with torch.no_grad():
        y, state = model(x)
        actual, position, *cells = run(model, (x,), tmp_path)
    torch.testing.assert_close(actual, y)
    assert torch.equal(position, state.position)
    for a, b in zip(cells, state.cells, strict=True):
        assert torch.equal(a, b)

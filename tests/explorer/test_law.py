"""The laws of the explorer's page are the library's: 10,000 random inputs, computed by Node and by multistable."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from multistable import LRU, ops
from multistable.dynamics.hysteresis import folds, hysteresis_scan, roots

SOURCES = Path(__file__).parents[2] / "explorer"
B, T = 100, 100
pytestmark = [
    pytest.mark.skipif(not SOURCES.exists(), reason="the sdist has no explorer"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node here"),
]


def node(program: str, values: Any) -> Any:
    """What the program makes of the values; it may use everything the modules of laws export."""
    imports = [f'import * as {name} from "{(SOURCES / name).as_uri()}.mjs";' for name in ("law", "scan", "signal")]
    script = "\n".join([*imports, 'import fs from "node:fs";', "const v = JSON.parse(fs.readFileSync(0));", program])
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script], input=json.dumps(values), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    """``[B, T]``: of any size, and some that stay."""
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(B, T, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(B, T, generator=generator) < 0.3, 0.1 * x, x)


@pytest.fixture(scope="module")
def betas() -> torch.Tensor:
    """One for each sequence, from -2 to 4."""
    return torch.linspace(-2, 4, B, dtype=torch.float64)


def states(law: str, inputs: torch.Tensor, betas: torch.Tensor, start: float = 0.0) -> torch.Tensor:
    program = f"console.log(JSON.stringify(v.x.map((x, i) => law.run((h, x) => {law}, x, v.start))))"
    program = program.replace("beta", "v.beta[i]")
    found = node(program, {"x": inputs.tolist(), "beta": betas.tolist(), "start": start})
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("start", [0.0, 0.9, -0.3])
def test_exact_unit(inputs, betas, start):
    found = states("law.exactStep(h, x, beta)", inputs, betas, start)
    h0 = torch.full((B, 1), start, dtype=torch.float64)
    expected = hysteresis_scan(inputs[..., None], betas[:, None, None].expand(B, T, 1), h0)[..., 0]
    assert (expected > 0).any()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_bmru_bit_for_bit(inputs, betas):
    found = states("law.bmruStep(h, x, beta, 0.7)", inputs, betas)
    thresholds = betas[:, None, None].expand(B, T, 1)
    alpha = torch.tensor([0.7], dtype=torch.float64)
    expected = ops.bmru_scan(inputs[..., None], thresholds, alpha)[..., 0]
    assert torch.equal(found, expected)
    assert 0.2 < (inputs.abs() >= betas[:, None].abs()).double().mean() < 0.8


def test_lru(inputs, betas):
    radius = 0.97
    found = states(f"law.lruStep(h, x, {radius})", inputs, betas)
    rnn = LRU(1, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0]]))
        rnn.log_nu_l0.copy_(torch.tensor([radius], dtype=torch.float64).log().neg().log())
        rnn.log_theta_l0.fill_(-torch.inf)
        rnn.log_gamma_l0.copy_(torch.tensor([1 - radius], dtype=torch.float64).log())
        expected = rnn(inputs[..., None])[0][..., 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_folds_and_equilibria(inputs, betas):
    x, beta = inputs[:, 0], betas
    program = "console.log(JSON.stringify(v.x.map((x, i) => [law.fold(v.beta[i]), law.equilibria(x, v.beta[i])])))"
    found = node(program, {"x": x.tolist(), "beta": beta.tolist()})
    h_c, x_c = folds(beta)
    upper, lower = roots(x, beta)
    for (fold, roots_), *expected in zip(found, h_c, x_c, upper, lower, strict=True):
        torch.testing.assert_close(
            torch.tensor([fold["h"], fold["x"], roots_["upper"], roots_["lower"]], dtype=torch.float64),
            torch.stack(expected),
            rtol=0,
            atol=1e-9,
        )
    middle = [
        (u["unstable"], xi, bi) for (_, u), xi, bi in zip(found, x, beta, strict=True) if u["unstable"] is not None
    ]
    assert len(middle) > 10
    for h, xi, bi in middle:
        assert abs(torch.tanh(xi + (bi + 1) * h) - h) < 1e-12
        assert (bi + 1) * (1 - h * h) > 1  # its slope: unstable


def test_the_beta_of_a_fold_is_the_inverse():
    betas = torch.linspace(0, 3, 31, dtype=torch.float64)
    program = "console.log(JSON.stringify(v.map((beta) => law.betaOfFold(law.fold(beta).x))))"
    torch.testing.assert_close(
        torch.tensor(node(program, betas.tolist()), dtype=torch.float64), betas, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_scan_over_chunks_is_the_latch(chunks):
    generator = torch.Generator().manual_seed(chunks)
    steps = torch.randint(-1, 2, (50, 16), generator=generator)
    program = f"console.log(JSON.stringify(v.map((steps) => scan.pictures(steps, {chunks}))))"
    shown = node(program, steps.tolist())
    assert {len(pictures) for pictures in shown} == {1 + 16 // chunks + chunks + 1}
    h0 = torch.full((50, 1), -1.0)
    expected = ops.latch_scan((steps != 0)[..., None], steps.float()[..., None], h0)[..., 0]
    assert torch.equal(torch.tensor([pictures[-1]["states"] for pictures in shown]).float(), expected)


def test_noise_has_variance_one():
    random = torch.tensor(node("console.log(JSON.stringify([1, 2, 3, 4].map(signal.noise)))", 0), dtype=torch.float64)
    assert random.shape == (4, 160)
    assert abs(random.mean()) < 0.1
    assert abs(random.std() - 1) < 0.1
    assert not torch.equal(random[0], random[1])

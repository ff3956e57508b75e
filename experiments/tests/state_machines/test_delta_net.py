"""The delta rule by its definition, and the layer: in pieces, with gradients, and with negative eigenvalues."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from multistable_experiments.state_machines.delta_net import TAPS, DeltaNet, DeltaStack, delta_rule


def inputs(T, d, N, dtype=torch.float64):
    """Keys of length 1, rates from 0 to 2, and a state."""
    random = torch.Generator().manual_seed(T + d + N)
    q, k, v = (torch.randn(T, d, N, generator=random, dtype=dtype) for _ in range(3))
    beta = 2 * torch.rand(T, 1, N, generator=random, dtype=dtype)
    return F.normalize(q, dim=1), F.normalize(k, dim=1), v, beta, torch.randn(d, d, N, generator=random, dtype=dtype)


@pytest.mark.parametrize(("T", "d", "N"), [(1, 1, 1), (7, 3, 2), (40, 5, 4)])
def test_the_loop_is_the_formula(T, d, N):
    """One matrix product for each step, sequence by sequence."""
    q, k, v, beta, state = inputs(T, d, N)
    y, last = delta_rule(q, k, v, beta, state)
    for i in range(N):
        S = state[..., i]
        for t in range(T):
            key, rate = k[t, :, i], beta[t, 0, i]
            S = S @ (torch.eye(d, dtype=S.dtype) - rate * torch.outer(key, key)) + rate * torch.outer(v[t, :, i], key)
            torch.testing.assert_close(y[t, :, i], S @ q[t, :, i], rtol=0, atol=1e-12)
        torch.testing.assert_close(last[..., i], S, rtol=0, atol=1e-12)


def test_gradients():
    """Of every argument, by finite differences."""
    arguments = [x.requires_grad_() for x in inputs(4, 2, 2)]
    assert torch.autograd.gradcheck(delta_rule, arguments)


def test_a_rate_of_two_reflects():
    """With v = 0 the state is mirrored by each step, and back by the next: the eigenvalue is -1."""
    k = F.normalize(torch.tensor([[1.0], [2.0], [2.0]], dtype=torch.float64), dim=0).expand(2, 3, 1)
    state = (3 * k[0, :, 0]).expand(3, 3).unsqueeze(-1)
    beta, v = torch.full((2, 1, 1), 2.0, dtype=k.dtype), torch.zeros_like(k)
    y, last = delta_rule(k, k, v, beta, state)
    torch.testing.assert_close(y, torch.tensor([-3.0, 3.0], dtype=k.dtype)[:, None, None].expand(2, 3, 1))
    torch.testing.assert_close(last, state)


def test_eigenvalues_reach_below_zero():
    """``1 - beta`` lies between -1 and 1; at the start around 0, as in the authors' layer."""
    torch.manual_seed(0)
    layer, x = DeltaNet(18), torch.randn(8, 50, 18)
    eigenvalues = 1 - layer.rates(x)
    assert eigenvalues.shape == (8, 50, 4)
    assert -0.8 < eigenvalues.min() < -0.1
    assert 0.1 < eigenvalues.max() < 0.8
    with torch.no_grad():
        layer.beta.weight.mul_(100)
    eigenvalues = 1 - layer.rates(x)
    assert -1 <= eigenvalues.min() < -0.99
    assert 0.99 < eigenvalues.max() <= 1


def test_the_layer_is_its_equations():
    """Head by head and step by step, with convolutions written out."""
    torch.manual_seed(1)
    layer, x = DeltaNet(6, heads=2).double(), torch.randn(1, 9, 6, dtype=torch.float64)
    padded = F.pad(layer.qkv(x)[0], (0, 0, TAPS - 1, 0))
    taps = layer.conv.weight[:, 0]  # [3K, 4]: the last one is that of the present
    features = F.silu(torch.stack([(padded[t : t + TAPS] * taps.T).sum(0) for t in range(9)]))
    q, k, v = features.view(9, 3, 2, 3).unbind(1)  # [T, heads, d] each
    heads = []
    for head in range(2):
        S, outputs = torch.zeros(3, 3, dtype=torch.float64), []
        for t in range(9):
            query, key = (each / (each.square().sum() + 1e-6).sqrt() for each in (q[t, head], k[t, head]))
            rate = 2 * torch.sigmoid(layer.beta.weight[head] @ x[0, t])
            S = S - rate * torch.outer(S @ key, key) + rate * torch.outer(v[t, head], key)
            outputs.append(layer.norm(S @ query))
        heads.append(torch.stack(outputs))
    expected = layer.out(torch.cat(heads, 1))
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cuts", [(1,) * 12, (5, 7), (2, 1, 9)], ids=["steps", "halves", "shorter than the taps"])
def test_pieces_equal_the_whole(cuts):
    """The state carries the inputs that the convolutions still need, and S, in both blocks."""
    torch.manual_seed(2)
    model, x = DeltaStack(3, 10, 2).double(), torch.randn(4, 12, 3, dtype=torch.float64)
    whole, last = model(x)
    state, outputs = None, []
    for piece in x.split(cuts, 1):
        y, state = model(piece, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


def test_every_parameter_has_a_gradient():
    torch.manual_seed(3)
    model = DeltaStack(3, 10, 2)
    model(torch.randn(4, 12, 3))[0].square().mul(torch.randn(4, 12, 10)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_initialisation():
    """Each of q, k and v is drawn for itself: Glorot's bound with the gain of the authors."""
    layer = DeltaNet(400)
    for weight in (*layer.qkv.weight.chunk(3), layer.out.weight):
        bound = 2**-2.5 * (6 / (400 + 400)) ** 0.5
        assert 0.99 * bound < weight.abs().max() <= bound
    bound = 2**-2.5 * (6 / (400 + 4)) ** 0.5
    assert 0.98 * bound < layer.beta.weight.abs().max() <= bound
    assert 0.49 < layer.conv.weight.abs().max() <= 0.5


@pytest.mark.extra
def test_against_the_authors_kernel():
    """Step by step in float32, in Triton's interpreter, which has to be chosen before Triton is imported."""
    for package in ("triton", "fla"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("delta_net_peer.py"))]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6

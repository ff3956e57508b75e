"""Blocks: their equation, their first weights, and dropout."""

import pytest
import torch

from multistable import Stack
from multistable.layers.base import Part
from multistable.layers.sequences import Steps
from multistable.models.block import ReadOut
from small_models import B, T, assert_close, make_model, random_input


def test_block_matches_its_equation():
    """x + GLU(out_proj(cell(norm(x), position)) + skip * norm(x)), with one matrix per direction and part."""
    block = make_model(cells=("hybrid",), bidirectional=True).blocks[0]
    torch.manual_seed(3)
    x, position = torch.randn(B, T, 8, dtype=torch.float64), torch.randn(1, T, 4, dtype=torch.float64)
    y, _ = block(x, None, Steps.of(x, True, None, None), position)
    norm = block.norm
    u = (x - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    features, _ = block.cell(torch.cat([u, position.expand(B, T, 4)], dim=-1))
    bmru, lru = block.out_proj.bmru.chunk(2, dim=1), block.out_proj.lru.chunk(2, dim=1)
    out = block.skip * u
    for part, weight in zip(features.split([3, 6, 3, 6], dim=-1), (bmru[0], lru[0], bmru[1], lru[1]), strict=True):
        out = out + part @ weight.T
    a, b = block.glu(out).chunk(2, dim=-1)
    assert_close(y, x + a * torch.sigmoid(b))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}], ids=str)
def test_merged_matrices_compute_what_the_modules_do(options):
    """In compiled training, and their gradients."""
    torch.manual_seed(0)
    stack = Stack("bmru", 3, 8, dtype=torch.float64, **options)
    x = torch.randn(T, B, 3, dtype=torch.float64)
    outcomes = []
    for module in (torch.compile(stack, backend="eager", fullgraph=True), stack):
        y = module(x)[0]
        outcomes.append((y, *torch.autograd.grad(y.square().sum(), list(stack.parameters()))))
    assert not torch.equal(outcomes[0][0], outcomes[1][0])  # rounded otherwise
    for merged, apart in zip(*outcomes, strict=True):
        assert_close(merged, apart)


def test_matrices_are_merged_where_compiled_if_that_saves_products(monkeypatch):
    block = Stack("bmru", 3, 8).blocks[0]
    assert not block._can_merge(torch.zeros(5, 2, 8))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert block._can_merge(torch.zeros(5, 2, 8))
    assert not block._can_merge(torch.zeros(5, 2, 16))


@pytest.mark.parametrize("name", ["glu", "out_proj"])
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_modules_with_hooks_are_not_merged(name, kind, monkeypatch):
    block = Stack("bmru", 3, 8).blocks[0]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    getattr(getattr(block, name), f"register_{kind}")(lambda *_: None)
    assert not block._can_merge(torch.zeros(5, 2, 8))


def test_dropout_acts_in_training_only():
    model, x = make_model(dropout=0.5), random_input()
    assert torch.equal(model(x)[0], model(x)[0])
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])
    assert torch.equal(model.step(x[:, 0])[0], model.step(x[:, 0])[0])


def test_weights_of_the_read_out_start_with_their_variance():
    """1 / (number of features) for units, 2 / (number of features) for pairs."""
    torch.manual_seed(0)
    parts = (Part("bmru", 300), Part("lru", 300, pairs=True))
    read_out = ReadOut(parts, 2, 500)
    assert read_out.bmru.var().item() == pytest.approx(1 / 1200, rel=0.02)
    assert read_out.lru.var().item() == pytest.approx(2 / 1200, rel=0.02)
    assert ReadOut(parts[:1], 1, 500, 1 / 3).bmru.var().item() == pytest.approx(1 / 900, rel=0.02)

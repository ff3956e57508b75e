"""Parameter groups by weight decay."""

import torch

from multistable.models import build_model
from multistable_experiments.training.optim import bmru_parameters, build_optimizer, decay_groups, set_rate
from multistable_experiments.training.run import Decay
from small_models import make_model
from training_runs import copy_first_run


def weight_decays(cells, decay):
    """The weight decay of each parameter, by name."""
    model = build_model(copy_first_run(cells).model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (names[id(parameter)], group["weight_decay"])
        for group in decay_groups(model, decay)
        for parameter in group["params"]
    ]
    assert len(found) == len(names), "each parameter once"
    return dict(found)


def test_weight_decay_matches_the_paper():
    found = weight_decays(("bmru", "lru", "hybrid"), Decay())
    bmru = {name for name, strength in found.items() if strength == 1e-4}
    assert bmru == {
        "blocks.0.cell.weight_ih_l0",
        "blocks.0.cell.bias_ih_l0",
        "blocks.0.cell.alpha_l0",
        "blocks.0.out_proj.bmru",
        "blocks.2.cell.bmru.0.weight_ih_l0",
        "blocks.2.cell.bmru.0.bias_ih_l0",
        "blocks.2.cell.bmru.0.alpha_l0",
        "blocks.2.out_proj.bmru",
    }
    assert {strength for name, strength in found.items() if name not in bmru} == {0.05}
    assert found["blocks.0.norm.weight"] == found["blocks.1.cell.log_nu_l0"] == 0.05


def test_usual_weight_decay_excludes_norms_and_dynamics():
    paper, usual = (weight_decays(("bmru", "lru"), Decay(reading=reading)) for reading in ("paper", "usual"))
    spared = {name for name in paper if paper[name] != usual[name]}
    assert {usual[name] for name in spared} == {0.0}
    dynamics = {f"blocks.1.cell.log_{what}_l0" for what in ("nu", "theta", "gamma")}
    norms = {f"blocks.{i}.norm.{what}" for i in (0, 1) for what in ("weight", "bias")}
    assert dynamics | norms | {"blocks.1.skip"} <= spared
    assert not any(name.endswith("weight") for name in spared - norms)
    assert usual["blocks.0.cell.alpha_l0"] == 1e-4


def test_decay_shrinks_weights_by_rate_times_decay():
    """With zero gradients AdamW multiplies each weight by 1 - rate * decay and does nothing else."""
    model = build_model(copy_first_run(("bmru", "lru")).model)
    optimizer = build_optimizer(model, Decay())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    set_rate(optimizer, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        strength = 1e-4 if parameter in set(bmru_parameters(model)) else 0.05
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.1 * strength))


def test_bmru_parameters():
    model = make_model(cells=("bmru", "lru", "hybrid"))
    ids = {id(parameter) for parameter in bmru_parameters(model)}
    names = [name for name, parameter in model.named_parameters() if id(parameter) in ids]
    assert names == [
        "blocks.0.cell.weight_ih_l0",
        "blocks.0.cell.bias_ih_l0",
        "blocks.0.cell.alpha_l0",
        "blocks.0.out_proj.bmru",
        "blocks.2.cell.bmru.0.weight_ih_l0",
        "blocks.2.cell.bmru.0.bias_ih_l0",
        "blocks.2.cell.bmru.0.alpha_l0",
        "blocks.2.out_proj.bmru",
    ]
    assert len(bmru_parameters(model)) == len(ids)

"""The first layer with a non-finite output is named."""

import math

import torch

from multistable.models import build_model
from multistable_experiments.training.diagnose import first_bad_layer
from training_runs import copy_first_run


def test_the_first_bad_layer_is_named():
    model = build_model(copy_first_run(("bmru", "lru")).model)
    x = torch.randn(4, 8, 2)
    assert "appeared in the loss" in first_bad_layer(model, x)
    assert "input of the model" in first_bad_layer(model, x / 0)
    with torch.no_grad():
        model.blocks[1].glu.weight[0, 0] = math.nan
    assert first_bad_layer(model, x) == (
        "first in the layer blocks.1.glu (Linear), whose parameters weight are not finite"
    )

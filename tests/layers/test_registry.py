"""Layers by name: plain names, and names with a field."""

import pytest
import torch

from multistable import MRU, ClockedRNN, ModelConfig, SequenceModel, build_model
from multistable.dynamics import FIELDS, Field
from multistable.layers import LAYERS, find_layer


def config(*cells: str) -> ModelConfig:
    return ModelConfig(cells, d_input=2, d_output=3, d_model=8, d_state=6)


def test_names_determine_field_and_number():
    kind, options = find_layer("clocked:brc:12")
    assert kind is ClockedRNN
    assert options["n_clock"] == 12
    assert list(options["field"].constants) == ["w_a", "w_c"]
    model = build_model(config("clocked:simplified_brc:4", "mru:brc", "mru:simplified_brc:3"))
    clocked, two, three = (block.cell for block in model.blocks)
    assert isinstance(clocked, ClockedRNN)
    assert isinstance(two, MRU)
    assert isinstance(three, MRU)
    assert (clocked.n_clock, two.max_branches, three.max_branches) == (4, 2, 3)
    assert all(find_layer(name) == (kind, {}) for name, kind in LAYERS.items())


def test_alpha_surr_of_the_configuration_reaches_an_mru():
    sharp = ModelConfig(("mru:brc",), 2, 3, d_model=8, d_state=6, alpha_surr=3.0)
    cell = build_model(sharp).blocks[0].cell
    assert isinstance(cell, MRU)
    assert cell.alpha_surr == 3.0


@pytest.mark.parametrize(
    "name",
    [
        "mru",
        "clocked",
        "clocked:brc",
        "clocked:brc:0",
        "clocked:brc:2.5",
        "mru:gru",
        "bmru:brc:2",
        "mru:brc:2:3",
        "mru:brc:17",
    ],
)
def test_unknown_names_raise(name):
    with pytest.raises(ValueError, match=r"cells must be names out of bmru, .*clocked:FIELD:N .* brc, .*, got '"):
        config(name)


def test_a_field_registered_by_the_user(monkeypatch, tmp_path):
    """Three stable states. Saved models do not contain the field, so it must be registered to load them."""
    pytest.importorskip("safetensors")

    def staircase() -> Field:
        step = lambda h: torch.tanh(8 * h)  # noqa: E731
        return Field(lambda h, x: 0.5 * (step(h + x - 0.5) + step(h + x + 0.5)), bounds=(-1.01, 1.01))

    with monkeypatch.context() as context:
        context.setitem(FIELDS, "staircase", staircase)
        model = build_model(config("mru:staircase:3", "clocked:staircase:2")).eval()
        model.save_pretrained(tmp_path)
        x = torch.randn(2, 9, 2)
        assert torch.equal(SequenceModel.from_pretrained(tmp_path)(x)[0], model(x)[0])
    with pytest.raises(ValueError, match=r"FIELD out of simplified_brc, .*, got 'mru:staircase:3'"):
        SequenceModel.from_pretrained(tmp_path)

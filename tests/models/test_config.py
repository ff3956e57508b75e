"""Configurations: JSON round trip, and errors for bad values."""

import dataclasses
import json

import pytest

from multistable import LRUConfig, ModelConfig, PositionConfig
from small_models import BASE


def test_config_survives_json():
    config = dataclasses.replace(BASE, lru=LRUConfig(r_min=0.5), dropout=0.1)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert ModelConfig.from_dict({"cells": ["bmru"], "d_input": 1, "d_output": 1}) == ModelConfig(("bmru",), 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": ["bmru", "xlstm"]}, "cells must be .* bmru, lru, .* got 'xlstm'"),
        ({"cells": "bmru"}, "cells must be a tuple of names, one per block, got the string 'bmru'"),
        ({"cells": []}, "cells must be .* bmru, lru, .* one per block, got none"),
        ({"d_model": 0}, "d_model must be a positive integer, got 0"),
        ({"pooling": "max"}, "pooling must be one of last, mean, none, got 'max'"),
        ({"dropout": 1.0}, "dropout must be a probability below 1"),
        ({"dropout": "much"}, "dropout must be a probability below 1, got 'much'"),
        ({"position": 16}, "position must be a PositionConfig or None, got 16"),
        ({"lru": 0.9}, "lru must be an LRUConfig, got 0.9"),
        ({"initial": "ones"}, "initial must be one of unit, torch, got 'ones'"),
        ({"depth": 3}, "ModelConfig cannot be made from the fields cells, .*, depth: .* argument 'depth'"),
        ({"lru": {"r": 3}}, "LRUConfig cannot be made from the fields r: .* argument 'r'"),
        ({"position": {"dim": 3, "T": 9}}, "dim must be even"),
        ({"position": {"dim": "3", "T": 9}}, "dim must be an integer of at least 2, got '3'"),
        ({"position": {"scale": "3", "T": 9}}, "PositionConfig cannot be made from the fields held, scale, T: "),
        ({"position": {}}, "PositionConfig needs T"),
        ({"position": {"T": 0}}, "T must be a positive integer, got 0"),
        ({"position": {"longest": 9.0}}, "PositionConfig needs T, the timesteps that BMRU units get, unless tuning"),
        ({"position": {"T": 9, "scale": 0.0}}, "scale must be positive, got 0.0"),
        ({"position": {"T": 9, "tuning": -1.0}}, "tuning must not be negative, got -1.0"),
        ({"position": {"T": 1}}, "shortest must lie between 0 and 2.0 steps, got 2.5"),
    ],
)
def test_bad_configs_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(BASE.to_dict() | changes)


def test_missing_fields_raise():
    with pytest.raises(
        ValueError, match=r"ModelConfig cannot be made from the fields d_output: .*'cells' and 'd_input'"
    ):
        ModelConfig.from_dict({"d_output": 1})
    with pytest.raises(ValueError, match="ModelConfig cannot be made from the fields none"):
        ModelConfig.from_dict({})


def test_the_longest_wavelength_defaults_to_twice_the_length():
    assert PositionConfig(T=784).longest_wavelength == 1568
    assert PositionConfig(T=784, longest=100.0).longest_wavelength == 100
    assert PositionConfig(longest=100.0, tuning=0.0).longest_wavelength == 100


@pytest.mark.parametrize(("cells", "expected"), [(("lru", "bmru"), True), (("hybrid",), True), (("lru", "gru"), False)])
def test_has_bmru(cells, expected):
    assert dataclasses.replace(BASE, cells=cells).has_bmru == expected


def test_tuning_needs_the_length():
    with pytest.raises(ValueError, match="PositionConfig needs T, the timesteps that BMRU units get"):
        PositionConfig(longest=128.0)
    assert PositionConfig(longest=128.0, tuning=0).longest_wavelength == PositionConfig(T=64).longest_wavelength


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"tuning": -1}, "tuning must not be negative, got -1"),
        ({"scale": 0.0}, r"scale must be positive, got 0\.0"),
        ({"T": 0, "longest": 17.0}, "T must be a positive integer, got 0"),
        ({"dim": 0}, "dim must be an integer of at least 2, got 0"),
        ({"dim": 4.0}, r"dim must be an integer of at least 2, got 4\.0"),
        ({"dim": "4"}, "dim must be an integer of at least 2, got '4'"),
    ],
)
def test_bad_position_configs_raise(numbers, message):
    with pytest.raises(ValueError, match=message):
        PositionConfig(**{"T": 64} | numbers)


def test_an_unknown_initialisation_raises():
    with pytest.raises(ValueError, match="initial must be one of unit, torch, got 'zero'"):
        ModelConfig(("bmru",), 1, 1, initial="zero")


def test_positions_of_models_saved_before_they_could_be_held_go_on():
    saved = ModelConfig(("bmru",), 1, 1, position=PositionConfig(T=8)).to_dict()
    assert ModelConfig.from_dict(saved).position == PositionConfig(T=8, held=True)
    del saved["position"]["held"]
    assert ModelConfig.from_dict(saved).position == PositionConfig(T=8, held=False)

"""Machines as units: train and certify them, compare them with other layers, draw what they have learnt."""

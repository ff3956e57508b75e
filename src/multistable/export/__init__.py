"""Export layers and models to formats that other programs read."""

from multistable.export.onnx import decompositions, register

__all__ = ["decompositions", "register"]

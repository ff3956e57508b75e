"""Export layers and models to formats that other programs read."""

from multistable.export.onnx import decompositions

__all__ = ["decompositions"]

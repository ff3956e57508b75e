"""Pathfinder: are two dots joined by a dashed curve?

Read in this order: ``settings`` (parameters of the images), ``glyphs`` and ``tables`` (what is drawn and looked up),
``kernels`` (compiled loops), ``generator`` (batches of images), ``generated`` and ``release`` (the two kinds of files),
``task``.
"""

from multistable_experiments.tasks.pathfinder.task import Pathfinder

__all__ = ["Pathfinder"]

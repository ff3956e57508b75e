"""Pathfinder: are two dots joined by a dashed curve? Images, files, loader and task.

The walk: ``settings`` (parameters), ``glyphs`` and ``tables`` (what is drawn and looked up), ``kernels`` (compiled
loops), ``generator`` (batches of strokes), ``strokes`` (from strokes to pixels), ``compact`` and ``lra`` (the two file
formats), ``produce`` (many batches, in parallel, resumable), ``splits``, ``task``, ``sheet`` (a picture of samples),
``command`` (the command line).
"""

from multistable_experiments.tasks.pathfinder.settings import Settings, settings
from multistable_experiments.tasks.pathfinder.task import Pathfinder

__all__ = ["Pathfinder", "Settings", "settings"]

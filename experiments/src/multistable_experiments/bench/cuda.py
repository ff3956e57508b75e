"""Speed on a GPU: the scans against a copy of as many bytes, other libraries, layers, a training step.

Only bytes that must move are counted. BMRU forward: cand, beta and h, 3 tensors; backward: the gradient of h, cand and
beta in, two gradients out, 5 tensors (one row of h per strand is read too, and not counted). LRU on real pairs: forward
the input and h, 2 tensors of 2N numbers; backward the gradient of h, h and the gradient of the input, 3 tensors. A
*share* is the time in which the GPU copies that many bytes, at its measured copy bandwidth, over the measured time.

Times are medians over replays of a CUDA graph (``triton.testing.do_bench_cudagraph``), so that they exclude launching
from Python; tensors are several times the cache. Other libraries are measured if they are installed.
"""

from collections.abc import Callable, Iterator
from functools import partial

from multistable_experiments.bench.gpu_layers import layer_rows, training_rows
from multistable_experiments.bench.gpu_peers import peer_rows, random_peer_rows
from multistable_experiments.bench.gpu_python import first_call_rows, small_layer_rows, step_graph_rows, timestep_rows
from multistable_experiments.bench.gpu_scans import (
    LONG,
    SHAPES,
    fixed_rows,
    map_rows,
    random_rows,
    silent_rows,
    small_rows,
)
from multistable_experiments.bench.report import Row
from multistable_experiments.bench.shapes import seed_of
from multistable_experiments.machine import source_commit

__all__ = ["PARTS"]


def all_random_rows() -> Iterator[Row]:
    """At shapes that come from the measured commit: ours, a copy of such rows, another library's."""
    from multistable_experiments.bench.row_copy import row_copy_rows  # needs Triton

    seed = seed_of(source_commit())
    yield from random_rows(seed)
    yield from row_copy_rows(seed)
    yield from random_peer_rows(seed)


def all_peer_rows() -> Iterator[Row]:
    yield from peer_rows(SHAPES[0])
    yield from peer_rows(LONG)


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "tuned": fixed_rows,
    "random": all_random_rows,
    "small": small_rows,
    "silent": partial(silent_rows, LONG),
    "maps": partial(map_rows, SHAPES[0]),
    "peers": all_peer_rows,
    "layer": partial(layer_rows, SHAPES[0]),
    "first-call": first_call_rows,
    "python": small_layer_rows,
    "steps": timestep_rows,
    "graphs": step_graph_rows,
    "training": training_rows,
}
"""What is measured, each row yielded as soon as it is done."""

"""Speed on a GPU: the scans against a copy of as many bytes, other libraries, layers, a training step.

Only bytes that must move are counted. BMRU forward: cand, beta and h, 3 tensors; backward: the gradient of h, cand and
beta in, two gradients out, 5 tensors (one row of h per strand is read too, and not counted). LRU on real pairs: forward
the input and h, 2 tensors of 2N numbers; backward the gradient of h, h and the gradient of the input, 3 tensors. A
*share* is the time in which the GPU copies that many bytes, at its measured copy bandwidth, over the measured time.

Times are medians over replays of a CUDA graph (``triton.testing.do_bench_cudagraph``), so that they exclude launching
from Python; tensors are several times the cache. Other libraries are measured if they are installed.
"""

from collections.abc import Iterator

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

__all__ = ["rows"]


def rows() -> Iterator[Row]:
    """All measurements, each yielded as soon as it is done. The random shapes come from the measured commit."""
    yield from fixed_rows()
    seed = seed_of(source_commit())
    yield from random_rows(seed)
    from multistable_experiments.bench.row_copy import row_copy_rows  # needs Triton

    yield from row_copy_rows(seed)
    yield from random_peer_rows(seed)
    yield from small_rows()
    yield from silent_rows(LONG)
    yield from map_rows(SHAPES[0])
    yield from peer_rows(SHAPES[0])
    yield from peer_rows(LONG)
    yield from layer_rows(SHAPES[0])
    yield from first_call_rows()
    yield from small_layer_rows()
    yield from timestep_rows()
    yield from step_graph_rows()
    yield from training_rows()

"""Started once per rank by test_context.py: a sequence cut over ranks gives what one process computes.

Every rank computes the whole by itself and compares its piece. Whatever is wrong raises and ends the process.
"""

import sys

from cut_layers import check_layers, check_models
from cut_pieces import CUTS
from cut_scans import check_bits, check_bytes, check_bytes_of_others, check_gradients
from cut_wrappers import check_checkpointing, check_compile, check_mesh, check_refusals, check_streamed
from multistable.distributed import piece
from ranks import join, leave

if __name__ == "__main__":
    rank, size = join(sys.argv[1])
    for i, cuts in enumerate(CUTS[size]):
        piece._BLOCK = (3, 256, 1)[i]  # steps to search at first: less than a piece, more, and one by one
        check_bits(cuts)
        check_gradients(cuts)
        check_bytes(cuts)
        check_bytes_of_others(cuts)
        check_layers(cuts, thorough=i == 0)
        check_models(cuts)
    check_checkpointing(CUTS[size][0])
    check_refusals(CUTS[size][0])
    check_streamed(CUTS[size][0])
    check_compile(CUTS[size][0])
    if size == 4:
        check_mesh()
    leave("all equal")

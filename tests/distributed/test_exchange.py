"""A rank that dies or hangs ends the others within the timeout, with an error that names it."""

import pytest

from tests.distributed.test_context import launch


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_silent_rank_is_named(how, tmp_path):
    ranks = launch("silent.py", 3, tmp_path, how)
    try:
        results = [ranks[i].communicate(timeout=60) for i in (0, 2)]
    finally:
        for rank in ranks:
            rank.kill()
            if rank.stdout and not rank.stdout.closed:
                rank.communicate()
    for i, (output, errors) in zip((0, 2), results, strict=True):
        assert ranks[i].returncode == 3, output + errors[-3000:]
        assert "rank 1" in output.split("silent: ")[1], output
        assert "exchange 2, the states of bmru_layer" in output

"""A rank that dies or hangs ends the others within the timeout, with an error that names it."""

import pytest

from ranks import run


@pytest.mark.extra
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_silent_rank_is_named(how, tmp_path):
    for status, output, errors in run("silent_rank.py", 3, tmp_path, how, wait_for=(0, 2), timeout=100):
        assert status == 3, output + errors[-3000:]
        assert output.split("silent: ")[1].startswith("rank 1. "), output
        assert "exchange 2, the states of bmru_layer" in output

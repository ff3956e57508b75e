"""A rank that dies or hangs ends the others within the timeout, with an error that names it."""

import pytest
import torch
import torch.distributed as dist

from multistable.distributed import cut
from ranks import run


@pytest.mark.extra
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_silent_rank_is_named(how, tmp_path):
    for status, output, errors in run("silent_rank.py", 3, tmp_path, how, wait_for=(0, 2), timeout=100):
        assert status == 3, output + errors[-3000:]
        assert output.split("silent: ")[1].startswith("rank 1. "), output
        assert "exchange 2, the states of bmru_layer" in output


def test_a_group_of_others_is_refused(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="group must include this process, rank 0"):
            cut(torch.zeros(1, 4, 1), group=dist.GroupMember.NON_GROUP_MEMBER)
    finally:
        dist.destroy_process_group()

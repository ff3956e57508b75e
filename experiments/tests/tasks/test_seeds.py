"""Derived seeds."""

from multistable_experiments.tasks.seeds import derive


def test_derived_seeds_do_not_collide():
    seeds = {derive(seed, word, i) for seed in range(20) for word in ("order", "step") for i in range(50)}
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)

"""The learning rates that a search finds."""

import pytest

from multistable_experiments.rl.rates import is_search, maze_rates, most_right, popgym_rates


def result(cell, rate, seed=100, **values):
    return {"run": {"cell": cell, "rate": rate, "seed": seed, "window": 2}, **values}


def maze(rate, right, seed=100):
    return result("gru", rate, seed, training=[0.1, right, right, 0.3])


def test_the_best_rollouts_in_a_row():
    assert most_right(result("gru", 1e-3, training=[0.9, 0.1, 0.7, 0.8, 0.2])) == pytest.approx(0.75)


def test_mazes_in_whole_percent_and_the_first_of_equals():
    found = [maze(1e-3, 0.981), maze(3e-4, 0.984), maze(3e-3, 0.5)]
    assert maze_rates(found) == {"gru": 1e-3}
    assert maze_rates([*found, maze(1e-3, 0.9), maze(3e-4, 0.95), maze(3e-3, 0.5)]) == {"gru": 3e-4}
    assert maze_rates(found[:2]) == {}, "a search that is not complete decides nothing"
    assert maze_rates([*found, maze(3e-3, 1.0, seed=0)]) == {"gru": 1e-3}, "a test decides nothing"
    assert [is_search(each) for each in (found[0], maze(1e-3, 1.0, seed=0))] == [True, False]


def test_popgym_by_mean_score():
    scores = {1e-3: (0.5, 0.2), 3e-4: (0.9, -0.4), 3e-3: (0.3, 0.5)}
    found = [result("lru", rate, score=score) for rate, pair in scores.items() for score in pair]
    assert popgym_rates(found) == {"lru": 3e-3}

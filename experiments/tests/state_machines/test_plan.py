"""What is computed: names are unique, and the search comes before the runs it decides."""

from dataclasses import asdict, replace

import pytest

from multistable_experiments.files import write_json
from multistable_experiments.state_machines.plan import CONTESTS, STUDIES, chosen_rate, contests, trainings
from multistable_experiments.state_machines.rivals import CELLS, RATES, SEARCH_SEED


def test_names_are_unique(tmp_path):
    names = [each.name for study in STUDIES for each in trainings(study)] + [each.name for each in contests(tmp_path)]
    assert len(set(names)) == len(names)


def test_no_training_is_longer_than_the_goal_allows():
    for study in STUDIES:
        assert all(each.length <= (256 if each.machine == "A5" else 128) for each in trainings(study))


def result(failed, loss):
    return {"check": {"failing_length": failed}, "loss": loss}


@pytest.mark.parametrize(
    ("found", "rate"),
    [
        ([(10, 0.1), (30, 0.5), (20, 0.01)], RATES[1]),
        ([(10, 0.1), (None, 0.5), (20, 0.01)], RATES[1]),
        ([(10, 0.3), (10, 0.2), (10, 0.1)], RATES[2]),
    ],
)
def test_the_rate_that_fails_last_is_chosen(found, rate, tmp_path):
    search = [replace(CONTESTS["S3"], cell="gru", rate=rate, seed=SEARCH_SEED) for rate in RATES]
    for each, (failed, loss) in zip(search, found, strict=True):
        assert chosen_rate(search, tmp_path) is None, "while a run is missing"
        write_json(tmp_path / f"{each.name}.json", {"contest": asdict(each), **result(failed, loss)})
    assert chosen_rate(search, tmp_path) == rate
    finals = [each for each in contests(tmp_path, seeds=2) if each.seed != SEARCH_SEED]
    assert [(each.machine, each.cell, each.rate, each.seed) for each in finals] == [
        ("S3", "gru", rate, 0), ("S3", "gru", rate, 1)
    ]  # fmt: skip
    searched = len(CONTESTS) * len(CELLS) * len(RATES)
    assert len(list(contests(tmp_path, seeds=2))) == searched + 2


def test_a_search_of_other_settings_chooses_no_rate(tmp_path):
    search = [replace(CONTESTS["S3"], cell="gru", rate=rate, seed=SEARCH_SEED) for rate in RATES]
    for each in search:
        write_json(tmp_path / f"{each.name}.json", {"contest": asdict(replace(each, updates=1)), **result(10, 0.1)})
    with pytest.raises(ValueError, match=r"the result of other settings \(updates\)"):
        list(contests(tmp_path))

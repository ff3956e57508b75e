"""The rule by which the mutation run passes (``tools/mutate.py``)."""

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "mutate.py"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="the sdist has no tools")


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(mutate, killed, survived=0, timeout=0, equivalent=0, killed_equivalent=0):
    """The lines and the verdict of a run with that many mutations of each kind."""
    kinds = [("killed", False)] * killed + [("survived", False)] * survived + [("timeout", False)] * timeout
    kinds += [("survived", True)] * equivalent + [("killed", True)] * killed_equivalent
    mutations = [{"id": str(i), **({"equivalent": "why"} if said else {})} for i, (_, said) in enumerate(kinds)]
    outcomes = {str(i): {"outcome": outcome, "seconds": 1.0} for i, (outcome, _) in enumerate(kinds)}
    return mutate.verdict(mutations, outcomes)


@pytest.mark.parametrize(
    ("run", "good"),
    [
        ({"killed": 100}, True),
        ({"killed": 97, "equivalent": 3}, True),
        ({"killed": 96, "equivalent": 4}, False),
        ({"killed": 99, "survived": 1}, False),
        ({"killed": 99, "timeout": 1}, False),
        ({"killed": 99, "killed_equivalent": 1}, False),
    ],
    ids=str,
)
def test_at_least_97_percent_are_killed_and_every_survivor_is_explained(mutate, run, good):
    assert verdict(mutate, **run)[1] is good


def test_the_lines_name_survivors(mutate):
    assert verdict(mutate, killed=97, survived=1, timeout=1, equivalent=1)[0] == [
        "97 of 100 killed (97.0%), 100 s",
        "equivalent: 99",
        "survived: 97, 98",
        "killed, but said to be equivalent: none",
    ]


def test_an_outcome_holds_for_its_source_and_tests(mutate, tmp_path):
    """A change of either makes the mutation run again; a new explanation does not."""
    for name in ("source.py", "test.py"):
        (tmp_path / name).write_text("before")
    mutation = {"id": "a", "file": "source.py", "old": "b", "new": "c", "tests": ["test.py::test"]}
    first = mutate.digest(mutation, tmp_path)
    assert mutate.digest(mutation | {"equivalent": "why"}, tmp_path) == first
    assert mutate.digest(mutation | {"new": "d"}, tmp_path) != first
    for name in ("source.py", "test.py"):
        (tmp_path / name).write_text("after")
        assert mutate.digest(mutation, tmp_path) != first
        (tmp_path / name).write_text("before")


def test_every_mutation_of_the_list_applies(mutate):
    """Its text occurs once in its file, and its tests' files exist: a change of either has to change the list."""
    mutations = json.loads(TOOL.with_name("mutants.json").read_text())
    assert max(Counter(mutation["id"] for mutation in mutations).values()) == 1
    for mutation in mutations:
        assert mutate.mutated(mutate.ROOT / mutation["file"], mutation)  # exits otherwise
        missing = [test for test in mutation["tests"] if not (mutate.ROOT / test.partition("::")[0]).is_file()]
        assert not missing, mutation["id"]


def test_an_unknown_mutation_is_named(mutate, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mutate.py", "--only", "no-such-mutation"])
    with pytest.raises(SystemExit, match="no mutation is called no-such-mutation"):
        mutate.main()

"""Compare the claims on theory with ``results/theory.json``, or record that file::

pytest experiments/tests/paper/theory --record
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multistable_experiments.files import read_json, write_json
from multistable_experiments.machine import describe

FILE = Path(__file__).parents[3] / "results" / "theory.json"
CHAPTERS = {
    "test_clock": "Memory and equilibria",
    "test_equilibria": "Memory and equilibria",
    "test_exact": "Memory and equilibria",
    "test_brc": "Memory and equilibria",
    "test_unit": "The bistable unit",
    "test_scan": "Parallel scans and cost",
}
"""File -> chapter of the report, in the report's order."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write what the claims measure to results/theory.json")


@pytest.fixture(scope="session")
def theory(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str, dict[str, Any]], None]]:
    """Check an entry against the file, or record it."""
    if not request.config.getoption("--record", default=False):
        stored = read_json(FILE)

        def check(file: str, id: str, entry: dict[str, Any]) -> None:
            assert entry["held"], entry["measured"]
            assert stored[id] == {"chapter": CHAPTERS[file], **entry}

        yield check
        return
    entries: dict[str, dict[str, dict[str, Any]]] = {file: {} for file in CHAPTERS}

    def record(file: str, id: str, entry: dict[str, Any]) -> None:
        entries[file][id] = {"chapter": CHAPTERS[file], **entry}

    yield record
    claims = {id: entry for each in entries.values() for id, entry in each.items()}
    write_json(FILE, {"machine": describe(), **claims})


@pytest.fixture
def check_stored(
    request: pytest.FixtureRequest, theory: Callable[[str, str, dict[str, Any]], None]
) -> Callable[[str, dict[str, Any]], None]:
    return lambda id, entry: theory(request.path.stem, id, entry)

"""Read the results that a call of the fixture ``reproduce_smoke`` has stored."""

from multistable_experiments.paper import store


def records(reproduce_smoke, place="here"):
    return {record.name: record for record in store.load(reproduce_smoke.path / place / "results", "smoke")}


def without_times(record):
    """The content of a record except its times."""
    tests = [{key: value for key, value in test.items() if key != "seconds"} for test in record.tests]
    return record.metrics, record.history, tests, record.run

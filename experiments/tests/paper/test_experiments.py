"""The paper's experiments: names, parameters, order, and stored results that belong to them."""

import pytest

from multistable.models import build_model
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import EXPERIMENTS, plan
from multistable_experiments.paper.settings import NOISES, SCALES
from paper_records import RESULTS


def configurations(figure, scale="full"):
    return [experiment.configuration for experiment in EXPERIMENTS[figure](scale, 0, "tuned")]


def run_of(figure, configuration):
    [found] = [e for e in EXPERIMENTS[figure]("full", 0, "tuned") if e.configuration == configuration]
    return found.run


def test_configurations_of_the_paper():
    assert set(configurations("copy-first")) == {
        *("bmru-T100", "bmru-T300", "lru-T100", "lru-T300", "lru-T300-usual-decay", "lru-T300-unit-variance")
    }
    assert configurations("generalisation") == ["bmru-T100", "lru-T100"]
    bars = {f"{cell}-{n}-blocks{b}" for cell in ("bmru", "lru", "hybrid") for n in (2, 3) for b in ("", "-black")}
    assert set(configurations("permuted-mnist")) == bars | {
        "bmru-2-blocks-no-positions", "bmru-2-blocks-untuned", "lru-2-blocks-positions", "counter-2-blocks-no-positions"
    }  # fmt: skip
    panels = {f"{n}-{w}" for n in ("1-block", "2-blocks", "3-blocks") for w in (128, 256, 512, 1024)}
    grid = {f"{level}-{panel}" for level in ("hard", "easy") for panel in panels}
    assert set(configurations("pathfinder")) == grid | {f"{name}-10-epochs" for name in grid}


@pytest.mark.parametrize("scale", SCALES)
def test_names_and_runs_are_unique(scale):
    experiments = plan(scale=scale, seeds=range(3))
    names = {(e.recipe, e.run.task.name, e.name) for e in experiments}
    assert len({(e.recipe, e.run.id) for e in experiments}) == len(names) == len(experiments)
    assert {e.run.precision for e in experiments} == {"float32" if scale == "smoke" else "bfloat16"}


def test_names_describe_their_runs():
    run = run_of("copy-first", "lru-T300-usual-decay")
    assert (run.model.cells, run.task.length, run.decay.reading, run.epochs) == (("lru", "lru"), 300, "usual", 100)
    run = run_of("permuted-mnist", "hybrid-3-blocks-black")
    assert (run.model.cells, run.task.length, run.epochs) == (("hybrid",) * 3, 2000, 100)
    run = run_of("pathfinder", "easy-2-blocks-512-10-epochs")
    assert (len(run.model.cells), run.model.d_state, run.task.level, run.epochs) == (2, 512, "easy", 10)
    assert (run.schedule.warmup_epochs, run.model.bidirectional, run.task.images) == (5, True, 200_000)
    assert run_of("pathfinder", "hard-1-block-1024").epochs == 100


@pytest.mark.parametrize(
    ("configuration", "widths"),
    [
        ("bmru-2-blocks", [272, 272]),
        ("bmru-2-blocks-no-positions", [256, 256]),
        ("bmru-2-blocks-untuned", [272, 272]),
        ("lru-2-blocks", [256, 256]),
        ("lru-2-blocks-positions", [272, 272]),
    ],
)
def test_positions_are_read_where_the_name_says(configuration, widths):
    model = build_model(run_of("permuted-mnist", configuration).model)
    assert [block.cell.input_size for block in model.blocks] == widths


def test_a_run_in_two_figures_is_planned_once_with_the_tests_of_both():
    both = {e.configuration: e for e in plan(["copy-first", "generalisation"], recipes=["tuned"], seeds=(0,))}
    assert len(both) == 6
    found = {(test.length, test.noise) for test in both["bmru-T100"].tests}
    assert found == {(10**k, noise) for k in (2, 3, 4, 5) for noise in NOISES}
    assert {test.samples for test in both["bmru-T100"].tests} == {6_000}
    assert both["bmru-T300"].tests == ()
    assert both["lru-T100"].tests == both["bmru-T100"].tests
    swapped = {e.configuration: e for e in plan(["generalisation", "copy-first"], recipes=["tuned"], seeds=(0,))}
    assert {name: set(e.tests) for name, e in swapped.items()} == {name: set(e.tests) for name, e in both.items()}


def test_all_configurations_of_a_seed_come_before_the_next_and_costly_ones_last():
    experiments = plan(seeds=range(3), recipes=["tuned"])
    cheap = [e.run.seed for e in experiments if not e.costly]
    assert cheap == sorted(cheap)
    assert [e.costly for e in experiments] == sorted(e.costly for e in experiments)
    assert experiments[0].configuration == "bmru-T100"
    full = [
        e.configuration for e in experiments if e.data == "pathfinder hard" and e.run.epochs == 100 and not e.costly
    ]
    assert set(full) == {"hard-1-block-256"}


def test_scale_small_takes_an_hour_on_one_gpu():
    """At 40 million timesteps per second for 2 unidirectional blocks of 256 units (README)."""
    work = 0
    for e in plan(scale="small", recipes=["tuned"]):
        task, model = e.run.task, e.run.model
        images = getattr(task, "train_samples", None) or 0.9 * task.images
        units = len(model.cells) / 2 * model.d_state / 256 * (2 if model.bidirectional else 1)
        work += e.run.epochs * 0.9 * images * task.length * max(units, 0.5)
        work += sum(test.length * test.samples for test in e.tests)
    assert 600 < work / 40e6 < 3600


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"figures": ["mnist"]}, "figure must be one of tails, copy-first, .* got 'mnist'"),
        ({"recipes": ["secret"]}, "recipe must be one of paper, best, tuned, got 'secret'"),
        ({"scale": "huge"}, "scale must be one of smoke, small, full, got 'huge'"),
    ],
)
def test_unknown_names_raise(words, message):
    with pytest.raises(ValueError, match=message):
        plan(**words)


def test_results_in_the_repository_are_recognised():
    """By the run's hash, which a changed default must not change."""
    known = {(e.recipe, e.run.id): e for e in plan(seeds=range(5))}
    records = store.load(RESULTS)
    assert len(records) >= 80
    for record in records:
        earlier = record.configuration.endswith(("-threshold-0", "-threshold-4", "-first"))  # of settings given up
        assert earlier or known[record.recipe, record.id].name == record.name
        assert record.failure is not None or record.metrics["last"]["epoch"] == record.run.epochs

"""Figures of trained models from complete, partial and missing results show the right numbers."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
from matplotlib.text import Annotation

from drawings import assert_drawn, texts
from multistable_experiments.cli.paper import figure
from multistable_experiments.paper.experiments import EXPERIMENTS
from multistable_experiments.paper.figures import FIGURES
from multistable_experiments.paper.recipes import BEST, Choice
from paper_records import SCORES, make, records, save

PANELS = {"copy-first": 1, "generalisation": 3, "permuted-mnist": 2, "pathfinder": 3}
"""Figures of the recipe ``tuned``, of which the made-up records are."""
OURS = {"tails": 3, "without-positions": 2}
"""Figures of the recipe ``best`` alone."""


@pytest.mark.parametrize("name", PANELS)
def test_without_results_a_figure_says_so(name):
    picture = FIGURES[name].draw([], "full", "tuned")
    assert texts(picture).count("no result yet") == len(picture.axes) == PANELS[name]
    assert any(words.startswith("not computed yet: ") for words in texts(picture))


@pytest.mark.parametrize("name", PANELS)
@pytest.mark.parametrize("seeds", [1, 5])
def test_with_all_results_nothing_is_missing(name, seeds):
    words = texts(FIGURES[name].draw(records(range(seeds)), "full", "tuned"))
    assert ("one seed" if seeds == 1 else "mean and range over 5 seeds") in words
    assert "no result yet" not in words


@pytest.mark.parametrize("name", PANELS)
def test_partial_results_are_drawn_and_the_rest_is_named(name):
    found = [
        record for record in records([0]) if "lru" not in record.configuration and "easy" not in record.configuration
    ]
    words = texts(FIGURES[name].draw(found, "full", "tuned"))
    assert any("one seed; not computed yet: " in each for each in words)


@pytest.mark.parametrize("name", PANELS)
@pytest.mark.parametrize("scale", ["small", "smoke"])
def test_other_scales_have_figures_too(name, scale):
    found = [make(e, scores=dict.fromkeys([e.configuration], 0.5)) for e in EXPERIMENTS[name](scale, 0, "tuned")]
    words = texts(FIGURES[name].draw(found, scale, "tuned"))
    assert "one seed" in words


@pytest.fixture
def searched(monkeypatch):
    """As if the search of every layer had been done."""
    for layer in ("bmru", "lru", "hybrid", "mingru"):
        monkeypatch.setitem(BEST, ("mnist", layer), Choice(everywhere=layer == "hybrid"))


def best_records(name, scale="full"):
    """Accuracies from 90 % on, a tenth of a point less for every thousandth test."""
    found = EXPERIMENTS[name](scale, 0, "best")
    return [make(e, scores=dict.fromkeys([e.configuration], 90 + i)) for i, e in enumerate(found)]


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("scale", ["full", "smoke"])
def test_figures_of_the_recipe_best(name, scale):
    empty = FIGURES[name].draw([], scale, "best")
    assert texts(empty).count("no result yet") == len(empty.axes) == OURS[name]
    found = best_records(name, scale)
    words = texts(FIGURES[name].draw(found, scale, "best"))
    assert "one seed" in words
    assert "no result yet" not in words
    some = texts(FIGURES[name].draw(found[1:], scale, "best"))
    assert any("one seed; not computed yet: " in each for each in some)


@pytest.mark.usefixtures("searched")
def test_tails_show_the_accuracies_of_their_tests():
    found = best_records("tails")
    [bmru] = [r for r in found if r.configuration == "bmru-3-blocks-black"]
    picture = FIGURES["tails"].draw([bmru], "full", "best")
    for axis, tail in zip(picture.axes, ("black", "random", "images"), strict=True):
        [line] = [line for line in axis.lines if line.get_marker() == "o"]
        expected = {t["pixels"]: 100 * t["accuracy"] for t in bmru.tests if t["tail"] == tail and t["held"]}
        assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == pytest.approx(expected)


def test_mnist_bars_show_the_accuracies():
    picture = FIGURES["permuted-mnist"].draw(records(), "full", "tuned")
    two_blocks = [bar.get_height() for bar in picture.axes[0].patches]
    cells = [f"{cell}-2-blocks{black}" for cell in ("bmru", "lru", "hybrid") for black in ("", "-black")]
    assert two_blocks == pytest.approx([SCORES[name] for name in cells])


def test_error_bars_span_minimum_to_maximum():
    """Also where a standard deviation would reach below zero, which a logarithmic axis cannot show."""
    learned = records([3], ["copy-first"], scores=SCORES | {"lru-T300": 2e-4})
    picture = FIGURES["copy-first"].draw(records([2], ["copy-first"]) + learned, "full", "tuned")
    [(bottom, top)] = picture.axes[0].collections[6].get_segments()
    assert (bottom[1], top[1]) == pytest.approx((2.002e-4, 1.0))
    assert "mean and range over 2 seeds" in texts(picture)


def test_the_note_says_how_many_seeds_there_are():
    some = [r for r in records([0, 1, 2], ["copy-first"]) if r.configuration == "lru-T100" or r.run.seed == 0]
    assert "mean and range over 1 to 3 seeds" in texts(FIGURES["copy-first"].draw(some, "full", "tuned"))


def test_copy_first_shows_last_and_best_epoch():
    picture = FIGURES["copy-first"].draw(records(best={"lru-T300": 0.0066}), "full", "tuned")
    marks = [line.get_ydata()[0] for line in picture.axes[0].lines if line.get_marker() == "o"]
    lru_300 = 2 * list(SCORES)[:5].index("lru-T300")
    assert marks[lru_300 : lru_300 + 2] == pytest.approx([1.0, 0.0066])


def test_the_command_writes_files_for_partial_results(tmp_path):
    some = records([0], ["copy-first"])
    save(tmp_path / "results", some)
    for name in ("copy-first", "pathfinder"):
        figure(name, tmp_path, tmp_path / "results", "full", "tuned")
        assert "<svg" in (tmp_path / f"{name}-tuned.svg").read_text()[:1000]
        assert_drawn(tmp_path / f"{name}-tuned.png", FIGURES[name].draw(some, "full", "tuned"))


@pytest.mark.parametrize("name", ["generalisation", "permuted-mnist", "pathfinder"])
def test_no_two_labels_overlap(name):
    """All four curves of a Pathfinder panel have the same numbers here, so their labels start at one place."""
    picture = FIGURES[name].draw(records(), "full", "tuned")
    picture.draw_without_rendering()
    boxes = {words: words.get_window_extent() for words in picture.findobj(Annotation)}
    assert len(boxes) >= 6
    assert [(a.get_text(), b.get_text()) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])] == []


def failed(record):
    return replace(record, metrics={}, tests=[], failure="the loss is not finite in epoch 3")


def diverged(record, value):
    metrics = {which: dict.fromkeys(found, value) | {"epoch": 1} for which, found in record.metrics.items()}
    return replace(record, metrics=metrics, tests=[test | {"mse": value} for test in record.tests])


@pytest.mark.parametrize("spoil", [failed, lambda r: diverged(r, math.nan), lambda r: diverged(r, math.inf)])
@pytest.mark.parametrize("name", PANELS)
def test_failed_runs_are_named_and_not_called_missing(name, spoil):
    """One seed of all configurations, and all seeds of some."""
    some = [spoil(r) if r.run.seed == 1 or r.configuration.startswith(("lru", "easy")) else r for r in records([0, 1])]
    picture = FIGURES[name].draw(some, "full", "tuned")
    picture.draw_without_rendering()
    [note] = [words for words in texts(picture) if "failed: " in words]
    assert note.startswith("one seed; failed: ")
    assert "not computed yet" not in note
    alone = FIGURES[name].draw([spoil(r) for r in records([0])], "full", "tuned")
    alone.draw_without_rendering()
    assert any(words.startswith("failed: ") for words in texts(alone))


@pytest.mark.parametrize("name", ["copy-first", "generalisation"])
def test_the_error_of_always_answering_0_is_on_the_axis(name):
    """As the caption says, even where all models are better."""
    good = [r for r in records([0]) if r.configuration in ("bmru-T100", "bmru-T300")]
    for axis in FIGURES[name].draw(good, "full", "tuned").axes:
        assert axis.get_ylim()[0] < 1 <= axis.get_ylim()[1]

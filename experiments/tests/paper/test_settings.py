"""``--scale full`` matches each row of the paper's tables of training parameters, by name."""

import math

import pytest
import torch
from torch import nn

from multistable.models import build_model
from multistable_experiments.cli.train import adjust, cell_names
from multistable_experiments.paper.experiments import EXPERIMENTS
from multistable_experiments.paper.settings import make_run, preset
from multistable_experiments.tasks.base import split_sizes
from multistable_experiments.tasks.pathfinder.task import split_rows as paper_split


def paper_run(task, cells=("bmru", "bmru"), **settings):
    return make_run(adjust(preset(task, "full"), {}, settings, None), cells)


def learning_rates(run):
    """The learning rate at the start, after the warm-up, halfway through the rest, and at the end."""
    return [round(run.schedule.rate(epoch, run.epochs), 9) for epoch in (0, 10, 55, 100)]


def fully_connected(run):
    return len([module for module in build_model(run.model).head.modules() if isinstance(module, nn.Linear)])


def activations(run):
    """Whether each block ends in a linear map to twice the model dimension, as a gated linear unit needs."""
    H = run.model.d_model
    return [(block.glu.in_features, block.glu.out_features) == (H, 2 * H) for block in build_model(run.model).blocks]


def positions(run):
    """Dimensions of the encoding that each block's layer reads besides its input."""
    return [block.cell.input_size - run.model.d_model for block in build_model(run.model).blocks]


COMMON = {
    "Train / valid ratio": (lambda run: split_sizes(run.task.train_samples), (54_000, 6_000)),
    "Epochs": (lambda run: run.epochs, 100),
    "Learning rate": (learning_rates, [1e-4, 1e-3, 5.05e-4, 1e-5]),
    "Learning rate: 10 first epochs": (lambda run: run.schedule.warmup_epochs, 10),
    "Weight decay": (lambda run: (run.decay.bmru, run.decay.other), (0.0001, 0.05)),
    "Number of recurrent blocks": (lambda run: len(run.model.cells), 2),
    "Model dim": (lambda run: run.model.d_model, 256),
    "State dim": (lambda run: run.model.d_state, 256),
    "Activation between blocks": (activations, [True, True]),
    "Bidirectional": (lambda run: run.model.bidirectional, False),
    "Number of fully connected layers (after last block)": (fully_connected, 2),
    "Pooling for prediction": (lambda run: run.model.pooling, "last"),
    "(BMRU) alpha_surr": (lambda run: run.model.alpha_surr, 1),
    "(LRU) r_min, r_max and theta_max": (
        lambda run: (run.model.lru.r_min, run.model.lru.r_max, run.model.lru.theta_max),
        (0.0, 0.99, 2 * math.pi),
    ),
}
TABLES = {
    ("tab:cfi_params", "copy-first"): COMMON
    | {
        "Number of samples in dataset": (lambda run: run.task.train_samples, 60_000),
        "Sequence length": (lambda run: run.task.length, 100),
        "Positional encoding": (positions, [0, 0]),
        "Text: the test set also consists of 60000 samples": (lambda run: run.task.test_samples, 60_000),
        "Text: r_t from N(0, 1) at all timesteps": (lambda run: run.task.noise, 1.0),
    },
    ("tab:seqmnist_params", "mnist"): COMMON
    | {
        "Number of black pixels": (lambda run: run.task.black_pixels, 0),
        "Positional encoding": (positions, [16, 16]),
        "Text: the pixels are shuffled": (lambda run: run.task.permuted, True),
    },
}
ROWS = [(table, task, row) for (table, task), rows in TABLES.items() for row in rows]


@pytest.mark.parametrize(("table", "task", "row"), ROWS, ids=[f"{table}-{row}" for table, _, row in ROWS])
def test_row(table, task, row):
    read, expected = TABLES[table, task][row]
    assert read(paper_run(task)) == expected


def planned(figure):
    """The runs behind a figure, without the variants that are not in the paper."""
    variants = ("decay", "variance", "no-positions", "untuned", "lru-2-blocks-positions", "10-epochs")
    return [e.run for e in EXPERIMENTS[figure]("full", 0, "tuned") if not e.configuration.endswith(variants)]


PATHFINDER_ROWS = {
    "Train / valid ratio": (lambda run: [len(part) for part in paper_split(run.task.images)[:2]], [162_000, 18_000]),
    "Bidirectional": (lambda run: run.model.bidirectional, True),
    "Pooling for prediction": (lambda run: run.model.pooling, "mean"),
    "Activation between blocks": (lambda run: set(activations(run)), {True}),
    "Positional encoding": (lambda run: set(positions(run)), {16}),
    "Text: the images are 32x32": (lambda run: run.task.length, 1024),
}
VARIED = ("Number of recurrent blocks", "State dim", "Activation between blocks")


FIGURES = ("copy-first", "generalisation", "permuted-mnist", "pathfinder")


@pytest.mark.parametrize("figure", FIGURES)
def test_runs_of_a_figure_match_its_table(figure):
    """Not only the defaults of ``multistable train``: all rows that do not vary within a figure."""
    rows = COMMON | PATHFINDER_ROWS if figure == "pathfinder" else COMMON
    chosen = {row: test for row, test in rows.items() if row not in VARIED or test is PATHFINDER_ROWS.get(row)}
    for run in planned(figure):
        assert {row: read(run) for row, (read, _) in chosen.items()} == {
            row: value for row, (_, value) in chosen.items()
        }


def test_values_that_vary_within_a_figure():
    """Sequence lengths, black pixels, depths and widths of the tables, each combination once."""
    assert {(r.model.cells, r.task.length) for r in planned("copy-first")} == {
        ((cell, cell), T) for cell in ("bmru", "lru") for T in (100, 300)
    }
    assert {(r.model.cells, r.task.black_pixels, r.model.d_state) for r in planned("permuted-mnist")} == {
        ((cell,) * n, black, 256) for cell in ("bmru", "lru", "hybrid") for n in (2, 3) for black in (0, 1216)
    }
    assert {(r.task.level, r.model.cells, r.model.d_state) for r in planned("pathfinder")} == {
        (level, ("bmru",) * n, N) for level in ("hard", "easy") for n in (1, 2, 3) for N in (128, 256, 512, 1024)
    }
    assert [len(planned(figure)) for figure in FIGURES] == [4, 2, 12, 24]


def test_row_pixel_normalization():
    """tab:seqmnist_params: p / 255 - 0.5, with p in [0, 255]."""
    x = paper_run("mnist").task.inputs(torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    torch.testing.assert_close(x[0, :, 0], torch.tensor([-0.5, -0.3, 0.5]))


def test_row_positional_encoding_only_for_bmru():
    """tab:seqmnist_params: 16 dim, only for BMRU; in a hybrid only the BMRU part reads it."""
    run = paper_run("mnist", ("bmru", "lru", "hybrid"))
    assert positions(run) == [16, 0, 16]
    hybrid = build_model(run.model).blocks[2].cell
    assert hybrid.bmru[0].input_size == 256 + 16
    assert hybrid.lru[0].input_size == 256


def test_hybrid_has_half_of_each():
    """Text of section "Permuted sequential MNIST": the state dimension of each cell has been divided by 2."""
    hybrid = build_model(paper_run("mnist", ("hybrid", "hybrid")).model).blocks[0].cell
    assert hybrid.bmru[0].hidden_size == hybrid.lru[0].hidden_size // 2 == 128


def test_other_values_of_the_tables_can_be_reached():
    """Sequence length 100 - 300, black pixels 0 - 1216 (2000 timesteps), recurrent blocks 2 - 3."""
    assert paper_run("copy-first", length=300).task.length == 300
    black = paper_run("mnist", black_pixels=1216)
    assert black.task.length == 2000
    assert black.model.position.longest_wavelength == 4000
    assert cell_names("bmru", 2, 3) == ("bmru",) * 3


@pytest.mark.parametrize(("cells", "beta_bias"), [(("bmru",), 8.0), (("lru", "hybrid"), 8.0), (("lru", "gru"), 0.0)])
def test_models_with_thresholds_start_with_high_ones(cells, beta_bias):
    """On copy-first-input (docs/log.md). The hash of a run without thresholds does not depend on the preset."""
    assert paper_run("copy-first", cells).model.beta_bias == beta_bias


def test_simple_benchmark_has_one_unit():
    """Caption of fig:stationary_memory: one layer of one unit."""
    run = make_run(preset("hold-bit", "full"), ("bmru",))
    assert (len(run.model.cells), run.model.d_state) == (1, 1)

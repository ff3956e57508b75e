"""The demo learns, remembers, resumes, and writes one self-contained page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from html_page import assert_self_contained
from multistable_experiments import demo
from multistable_experiments.demo import copy_first, hold_bit
from multistable_experiments.paper.settings import SHORT, Preset
from multistable_experiments.tasks import CopyFirst, HoldBit
from multistable_experiments.training.results import load_trained

TINY = demo.Plan(
    bit_steps=20,
    bit_lengths=(10, 5000),
    copy=Preset(CopyFirst(5, 1.0, 200, 50), 1, 8, 8, 2, 32, SHORT),
    copy_lengths=(5, 50),
    copy_samples=8,
)


@pytest.fixture(scope="module")
def units() -> dict[str, hold_bit.OneUnit]:
    models = {}
    for name, build in hold_bit.UNITS.items():
        torch.manual_seed(0)
        models[name] = hold_bit.OneUnit(build())
        hold_bit.train(models[name], 500)
    return models


def error(model: hold_bit.OneUnit, T: int) -> float:
    return hold_bit.error_at(hold_bit.answers(model, T), T)


def test_seconds_of_training_do_not_count_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of a process compiles, which takes longer than training: a BMRU would look ten times as slow."""
    clock, train = [0.0], hold_bit.train

    def slow_at_first(model: hold_bit.OneUnit, steps: int) -> list[tuple[int, float]]:
        clock[0] += steps if clock[0] else 1000
        return train(model, steps)

    monkeypatch.setattr(hold_bit, "train", slow_at_first)
    monkeypatch.setattr(hold_bit.time, "perf_counter", lambda: clock[0])
    assert hold_bit.learn("BMRU", seed=0, steps=20, lengths=(10,)).seconds == 20


@pytest.mark.parametrize("T", [1, 2, 10, 10**5])
def test_bmru_holds_its_bit(units: dict[str, hold_bit.OneUnit], T: int) -> None:
    model = units["BMRU"]
    assert error(model, T) < 1e-4
    x = HoldBit(T).inputs(torch.tensor([1.0, -1.0]))
    h, _ = model.rnn(x)
    alpha = model.rnn.get_parameter("alpha_l0").abs().detach()
    assert torch.equal(h.abs(), alpha.expand(2, T, 1))
    assert torch.equal(h[0], -h[1])
    with torch.no_grad():
        assert torch.equal(hold_bit.answers(model, T), model(x)[0].squeeze(-1))  # chunks give the same bits


def test_lru_learns_ten_steps_and_fades(units: dict[str, hold_bit.OneUnit]) -> None:
    assert error(units["LRU"], 10) < 1e-2
    assert error(units["LRU"], 10**5) == pytest.approx(1, abs=1e-3)


def test_gru_holds_its_bit_too(units: dict[str, hold_bit.OneUnit]) -> None:
    assert error(units["GRU"], 10) < 1e-4
    assert error(units["GRU"], 5000) < 1e-4


def test_untrained_unit_does_not_pass() -> None:
    assert error(hold_bit.OneUnit(hold_bit.UNITS["BMRU"]()), 100) > 0.1


def test_learning_curve_starts_before_and_ends_after_the_training() -> None:
    outcome = hold_bit.learn("GRU", 0, 30, (10, 100))
    steps, errors = zip(*outcome.curve, strict=True)
    assert steps == (0, 10, 20, 30)
    assert outcome.errors[0.0][0] == (10, errors[-1])
    assert errors[-1] != errors[0]
    assert outcome.outputs.shape == (2, 100)
    assert outcome.fading is None


def test_fading_is_the_fraction_left_after_a_step(units: dict[str, hold_bit.OneUnit]) -> None:
    outcome = hold_bit.learn("LRU", 0, 500, (10,))
    h, _ = units["LRU"].rnn(HoldBit(3).inputs(torch.tensor([1.0, -1.0])))
    size = h.detach().norm(dim=-1)  # [2, 3]
    torch.testing.assert_close(size[:, 1:] / size[:, :-1], torch.full((2, 2), outcome.fading))


def test_copy_first_learns_and_its_lines_show_the_models_answers(tmp_path: Path) -> None:
    preset = replace(copy_first.PRESET, task=CopyFirst(5, 1.0, 2_000, 200), epochs=8)
    outcome = copy_first.learn("BMRU", 0, preset, tmp_path, (5, 12), 64)
    assert outcome.result["metrics"]["best"]["test_mse"] < 0.2
    assert dict(outcome.errors[1.0])[5] < 0.2
    assert outcome.outputs.shape == (5, 12)
    assert (outcome.outputs[:, 4] - torch.tensor(copy_first.FIRST)).abs().mean() < 0.4
    _, model = load_trained(next(tmp_path.iterdir()))
    r = CopyFirst(12, 1.0, 2, 1).samples("test", 0).stored.repeat(5, 1)
    r[:, 0] = torch.tensor(copy_first.FIRST)
    for t in (1, 7, 12):
        answer, _ = model(CopyFirst(t).inputs(r[:, :t]))
        torch.testing.assert_close(outcome.outputs[:, t - 1], answer[:, 0].detach())


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of a tiny demo, its printed output, and its page."""
    folder = tmp_path_factory.mktemp("new") / "demo"
    console = Console(record=True, width=140, force_terminal=False)
    path = demo.run(folder, seed=3, plan=TINY, console=console)
    return folder, console.export_text(), path.read_text()


def test_run_prints_tables_and_the_path_of_the_page(demo_output: tuple[Path, str, str]) -> None:
    folder, printed, _ = demo_output
    assert str(folder / "index.html") in printed
    for words in ("5,000", "BMRU", "LRU", "GRU", "Copy-first-input"):
        assert words in printed
    assert "epoch" not in printed  # no progress bar outside a terminal


def test_page_is_self_contained_and_well_formed(demo_output: tuple[Path, str, str]) -> None:
    assert_self_contained(demo_output[2])


def test_page_shows_four_pictures_with_text_and_the_facts(demo_output: tuple[Path, str, str]) -> None:
    folder, _, page = demo_output
    assert page.count("<svg") == 4
    assert re.search(r"<text[^>]*>one BMRU unit</text>", page)
    assert "#0072b2" not in page.split("</style>")[1]  # colours are variables of the page
    for words in ("--seed 3", "20 steps of Adam", "2 epochs", "180 sequences of 5 steps", torch.__version__, "commit"):
        assert words in page
    for run in (folder / "runs").iterdir():
        assert run.name.removeprefix("copy-first-") in page
    assert len(list((folder / "runs").iterdir())) == 3


def test_page_escapes_what_a_result_file_says(tmp_path: Path) -> None:
    """Runs in the folder of a demo may come from somebody else."""
    bits = {name: hold_bit.learn(name, 0, 2, (10, 20)) for name in hold_bit.UNITS}
    copies = {name: copy_first.learn(name, 0, TINY.copy, tmp_path, (5, 9), 2) for name in copy_first.CELLS}
    for outcome in copies.values():
        outcome.result["machine"]["commit"] = "<script>alert(1)</script>"
        outcome.result["metrics"]["best"]["epoch"] = "<b>1</b>"
    page = demo.page.make(bits, copies, 1.0, seed=0, bit_steps=2, copy_samples=2)
    assert "&lt;script&gt;alert(1)" in page
    assert_self_contained(page)
    assert "<b>1</b>" not in page


def test_a_second_call_does_not_train_copy_first_again(demo_output: tuple[Path, str, str]) -> None:
    folder, printed, page = demo_output
    results = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")}
    console = Console(record=True, width=140, force_terminal=False)
    again = demo.run(folder, seed=3, plan=TINY, console=console).read_text()
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")} == results
    assert console.export_text() == printed
    pictures = re.compile(r"<svg.*?</svg>", re.DOTALL)
    assert pictures.findall(again) == pictures.findall(page)

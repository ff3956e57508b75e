"""Commands that read results: an explicit folder must exist, the default one need not. Exit codes of ``claims``."""

from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from multistable_experiments.cli import app, paper
from multistable_experiments.paper import claims, store
from multistable_experiments.paper.experiments import EXPERIMENTS
from paper_records import changed_scores, records, save


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.mark.parametrize("words", ["claims", "figure copy-first --out pictures", "report --out page.html"])
def test_a_given_folder_must_exist(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("mistyped", "file"):
        done = call(*words.split(), "--results", name)
        assert done.exit_code == 2
        assert done.output.splitlines()[-1] == (
            f"error: --results must be a folder of results, but there is no folder {name}"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was written"


def test_a_report_of_nothing_says_so(tmp_path, monkeypatch):
    """Outside of a clone the page has no results: the command says where some are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("multistable_experiments.paper.report.write", lambda records, results, out, *_: out)
    done = call("report")
    assert done.exit_code == 0
    assert "no results of runs at scale full in results; a clone of the repository has some" in done.output
    save(tmp_path / "results", records(seeds=(0,)))
    assert "no results" not in call("report").output


def test_the_default_folder_may_be_missing(tmp_path, monkeypatch):
    """A new user has no results yet, and a folder of results need not cover every scale."""
    monkeypatch.setattr(claims, "CLAIMS", tuple(claim for claim in claims.CLAIMS if claim.trained))
    monkeypatch.chdir(tmp_path)
    done = call("claims")
    assert done.exit_code == 0, done.output
    assert "paper: 27 not measured" in done.output
    assert call("figure", "copy-first").exit_code == 0
    assert (tmp_path / "figures" / "copy-first-best.svg").exists()
    assert "paper: 27 not measured" in call("claims", "--results", tmp_path, "--scale", "small").output


def test_outdated_results_in_the_default_folder_are_named_and_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", tuple(claim for claim in claims.CLAIMS if claim.id == "copy-300-bmru"))
    monkeypatch.chdir(tmp_path)
    found = [record for record in records() if record.configuration == "bmru-T300"]
    old = replace(found[0], run=replace(found[0].run, batch_size=128))
    for record in (old, *found[1:]):
        store.write(tmp_path / "experiments" / "results", record)
    done = call("claims", "--recipe", "tuned")
    assert "left out, computed with other settings: copy-first/bmru-T300-seed0" in done.output
    assert "seeds 1, 2, 3, 4; 100 epochs" in done.output
    assert "1 provisional" in done.output
    monkeypatch.setattr("multistable_experiments.paper.report.write", lambda records, results, out, *_: out)
    for words in ("figure copy-first", "report"):
        assert "copy-first/bmru-T300-seed0" in call(*words.split()).output
    store.write(tmp_path / "experiments" / "results", found[0])
    assert "left out" not in (again := call("claims", "--recipe", "tuned").output)
    assert "1 held" in again


def test_help_names_every_figure_and_the_default_folder():
    text = " ".join(call("reproduce", "--help").output.replace("│", "").split())
    assert all(name in text for name in EXPERIMENTS)
    assert "experiments/results if that folder exists, else results" in text


def test_strict_exits_with_1_on_a_broken_claim(tmp_path, capsys):
    folder = save(tmp_path, records(figures=["copy-first"], **changed_scores(bmru_T300=0.2)))
    with pytest.raises(typer.Exit) as leave:
        paper.claims(folder, "full", recipe="tuned", strict=True)
    assert leave.value.exit_code == 1
    paper.claims(folder, "full", recipe="tuned", strict=False)
    assert "tuned: 3 held, 1 not held, 23 not measured" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [range(5), range(1)])
def test_strict_accepts_held_provisional_and_missing_claims(tmp_path, seeds, capsys):
    paper.claims(save(tmp_path, records(seeds, ["copy-first"])), "full", recipe="tuned", strict=True)
    assert ("4 held" if len(seeds) == 5 else "4 provisional") in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tuned/copy-first/bmru-T100-seed0.json", "theory.json"])
def test_a_damaged_result_is_reported_in_one_line(tmp_path, name, capsys):
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(typer.Exit) as leave:
        paper.claims(tmp_path, "full", recipe="tuned", strict=False)
    assert leave.value.exit_code == 1
    assert f"{name} is " in capsys.readouterr().err

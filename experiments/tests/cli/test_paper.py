"""The commands that read results: a folder given by the user must exist, the default one need not."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from multistable_experiments.cli import app
from multistable_experiments.paper import claims, store
from multistable_experiments.paper.experiments import EXPERIMENTS
from paper_records import records


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.mark.parametrize("words", ["claims", "figure copy-first --out pictures", "report --out page.html"])
def test_a_given_folder_must_exist(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("mistyped", "file"):
        done = call(*words.split(), "--results", name)
        assert done.exit_code == 1
        assert done.output.splitlines()[-1] == (
            f"error: --results must be a folder of results, but there is no folder {name}"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was written"


def test_the_default_folder_may_be_missing(tmp_path, monkeypatch):
    """A newcomer has no results yet, and a folder of results need not have those of every scale."""
    monkeypatch.setattr(claims, "CLAIMS", tuple(claim for claim in claims.CLAIMS if claim.trained))
    monkeypatch.chdir(tmp_path)
    done = call("claims")
    assert done.exit_code == 0, done.output
    assert "27 claims: 27 not measured" in done.output
    assert call("figure", "copy-first").exit_code == 0
    assert (tmp_path / "figures" / "copy-first.svg").exists()
    assert call("claims", "--results", tmp_path, "--scale", "small").output == done.output


def test_outdated_results_in_the_default_folder_are_named_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", tuple(claim for claim in claims.CLAIMS if claim.id == "copy-300-bmru"))
    monkeypatch.chdir(tmp_path)
    found = [record for record in records() if record.configuration == "bmru-T300"]
    old = replace(found[0], run=replace(found[0].run, batch_size=128))
    for record in (old, *found[1:]):
        store.write(tmp_path / "experiments" / "results", record)
    done = call("claims")
    assert "left out, computed with other settings: copy-first/bmru-T300-seed0" in done.output
    assert "seeds 1, 2, 3, 4; 100 epochs" in done.output
    assert "1 provisional" in done.output
    monkeypatch.setattr("multistable_experiments.paper.report.write", lambda records, results, out, *_: out)
    for words in ("figure copy-first", "report"):
        assert "copy-first/bmru-T300-seed0" in call(*words.split()).output
    store.write(tmp_path / "experiments" / "results", found[0])
    assert "left out" not in (again := call("claims").output)
    assert "1 held" in again


def test_help_names_every_figure_and_the_default_folder():
    text = " ".join(call("reproduce", "--help").output.replace("│", "").split())
    assert all(name in text for name in EXPERIMENTS)
    assert "experiments/results if that folder exists, else results" in text

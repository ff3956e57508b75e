"""The commands that read results: a folder that was named must be there, the usual one need not."""

from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from multistable_experiments.paper import claims, command, store
from paper_records import records

app = typer.Typer()
for function in (command.claims, command.figure, command.report):
    app.command()(function)


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.mark.parametrize("words", ["claims", "figure copy-first --out pictures", "report --out page.html"])
def test_a_folder_that_was_named_must_be_there(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("mistyped", "file"):
        done = call(*words.split(), "--results", name)
        assert done.exit_code == 1
        assert done.output.splitlines()[-1] == (
            f"error: --results must be a folder of results, but there is no folder {name}"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was written"


def test_the_usual_folder_may_be_missing(tmp_path, monkeypatch):
    """A newcomer has no results yet, and a folder of results need not have those of every scale."""
    monkeypatch.setattr(claims, "CLAIMS", tuple(claim for claim in claims.CLAIMS if claim.trained))
    monkeypatch.chdir(tmp_path)
    done = call("claims")
    assert done.exit_code == 0, done.output
    assert "27 claims: 27 not measured" in done.output
    assert call("figure", "copy-first").exit_code == 0
    assert (tmp_path / "figures" / "copy-first.svg").exists()
    assert call("claims", "--results", tmp_path, "--scale", "small").output == done.output


def test_results_of_other_settings_than_now_are_named_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", tuple(claim for claim in claims.CLAIMS if claim.id == "copy-300-bmru"))
    monkeypatch.chdir(tmp_path)
    found = [record for record in records() if record.configuration == "bmru-T300"]
    old = replace(found[0], run=replace(found[0].run, batch_size=128))
    for record in (old, *found[1:]):
        store.write(tmp_path / "results", record)
    done = call("claims")
    assert "left out, of other settings than now: copy-first/bmru-T300-seed0" in done.output
    assert "seeds 1, 2, 3, 4; 100 epochs" in done.output
    assert "1 provisional" in done.output
    for words in ("figure copy-first", "report"):
        assert "copy-first/bmru-T300-seed0" in call(*words.split()).output
    store.write(tmp_path / "results", found[0])
    assert "left out" not in (again := call("claims").output)
    assert "1 held" in again

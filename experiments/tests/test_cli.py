"""The command line, run as users run it: in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from sources import environment


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = environment()
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=cwd, env=env)


def test_help_names_every_command() -> None:
    result = run("-m", "multistable_experiments", "--help")
    assert result.returncode == 0, result.stderr
    for command in ("demo", "reproduce", "figure", "claims", "report", "info", "bench"):
        assert command in result.stdout


def test_info_names_the_backend_and_the_reason() -> None:
    result = run("-m", "multistable_experiments", "info")
    assert result.returncode == 0, result.stderr
    for words in ("torch", "numba", "compiled loops", "cuda"):
        assert words in result.stdout
    assert result.stdout.count("compiled loops") == 1  # one row per device: no backend looks at the dtype


def test_demo_help_says_what_it_does() -> None:
    result = run("-m", "multistable_experiments", "demo", "--help")
    assert result.returncode == 0, result.stderr
    for words in ("BMRU, LRU and GRU", "--folder", "--seed"):
        assert words in result.stdout


def test_demo_refuses_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = run("-m", "multistable_experiments", "demo", "--folder", "taken", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["error: taken is a file, where a folder is needed"]


def test_bench_refuses_an_unknown_device(tmp_path: Path) -> None:
    result = run("-m", "multistable_experiments", "bench", "--device", "tpu", cwd=tmp_path)
    assert result.returncode == 2
    assert "must be cpu or cuda, got 'tpu'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_bench_refuses_a_file_that_cannot_be_before_it_measures(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = run("-m", "multistable_experiments", "bench", "--out", "taken/cpu.json", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["error: taken is a file, where a folder is needed"]
    assert result.stdout == ""
    result = run("-m", "multistable_experiments", "bench", "--out", ".", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines() == ["error: --out must be a file, but . is a folder"]


def test_info_says_how_to_get_the_compiled_loops() -> None:
    absent = "from multistable.ops import dispatch; dispatch._installed = lambda name: False"
    result = run("-c", f"{absent}; from multistable_experiments.cli import main; main()", "info")
    assert result.returncode == 0
    assert "'multistable[cpu]'" in result.stdout


@pytest.mark.parametrize("words", [["pathfinder", "--count", "2", "--out", "a.npz"], ["show", "pathfinder"]])
def test_data_says_that_pillow_is_missing(tmp_path: Path, words: list[str]) -> None:
    block = "import sys; sys.modules['PIL'] = None; from multistable_experiments.cli import main; main()"
    result = run("-c", block, "data", *words, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["error: this needs pillow: pip install 'multistable[experiments]'"]


def test_bench_help_says_where_results_go() -> None:
    assert "benchmarks/results" in run("-m", "multistable_experiments", "bench", "--help").stdout


def test_figure_says_in_one_sentence_that_matplotlib_is_missing() -> None:
    block = "import sys; sys.modules['matplotlib'] = None; from multistable_experiments.cli import main; main()"
    result = run("-c", block, "figure", "surrogates")
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["error: this needs matplotlib: pip install 'multistable[experiments]'"]


@pytest.mark.parametrize("package", ["typer", "matplotlib"])
def test_a_missing_extra_is_one_sentence(package: str) -> None:
    block = f"import sys; sys.modules['{package}'] = None; from multistable_experiments.cli import main; main()"
    result = run("-c", block, "demo")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [f"This needs {package}: pip install 'multistable[experiments]'"]

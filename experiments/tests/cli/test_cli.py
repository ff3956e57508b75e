"""The command line: help, defaults, and error messages."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

import multistable
from multistable_experiments.cli import app
from multistable_experiments.cli.options import default_folder
from sources import environment


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "120"})


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a new process."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=environment(COLUMNS="120"))


def without(package: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command as if ``package`` were not installed."""
    code = f"import sys; sys.modules['{package}'] = None; from multistable_experiments.cli import main; main()"
    return run("-c", code, *args)


def commands(command: Any, *words: str) -> dict[tuple[str, ...], Any]:
    """Every command by name, such as ``("data", "pathfinder")``."""
    if not hasattr(command, "commands"):
        return {words: command}
    return {k: v for name, part in command.commands.items() for k, v in commands(part, *words, name).items()}


COMMANDS = commands(typer.main.get_command(app))


def test_help_names_every_command_and_imports_no_torch() -> None:
    assert ("train",) in COMMANDS
    result = without("torch", "--help")
    assert result.returncode == 0, result.stderr
    for name, *_ in COMMANDS:
        assert f" {name} " in result.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_on_every_option(words: tuple[str, ...]) -> None:
    assert COMMANDS[words].help
    for parameter in COMMANDS[words].params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"


def test_version() -> None:
    result = call("--version")
    assert (result.exit_code, result.output) == (0, f"multistable {multistable.__version__}\n")


def test_info_names_the_backend_and_the_reason() -> None:
    result = run("-m", "multistable_experiments", "info")
    assert result.returncode == 0, result.stderr
    for words in ("torch", "numba", "compiled loops", "cuda"):
        assert words in result.stdout
    assert result.stdout.count("compiled loops") == 1  # one row per device: no backend depends on the dtype


def test_info_of_an_installed_package_names_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "commit" in call("info").output
    monkeypatch.delenv("MULTISTABLE_COMMIT", raising=False)
    monkeypatch.setattr("multistable_experiments.machine._git", lambda *args: None)  # as without a source tree
    output = call("info").output
    assert "gpu " in output
    assert "commit" not in output
    assert "dirty" not in output


def test_info_says_how_to_install_the_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistable.ops.dispatch._installed", lambda name: False)
    assert "'multistable[cpu]'" in call("info").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reproduce rl --scale smoke --on ray", "--scale, --on have no effect for rl"),
        ("reproduce copy-first --gpus 1", "--gpus has no effect without --on"),
        ("reproduce copy-first --on ray --slurm partition=gpu", "--slurm has no effect without --on slurm"),
        ("sweep mnist bmru --address auto", "--address has no effect without --on ray"),
        ("machines A5 --study rivals", "give names or --study, not both: got A5"),
        ("machines --study every --updates 10", "--updates has no effect with --study"),
        ("machines parity --processes 4", "--processes has no effect without --study"),
        ("machines --study every --device cuda", "--device has no effect without --long"),
    ],
)
def test_options_without_effect_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words.split())
    assert (result.exit_code, result.output) == (2, f"error: {message}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        ("demo --folder taken", "taken must be a folder, but is a file", 1),
        ("bench --out taken/cpu.json", "taken must be a folder, but is a file", 1),
        ("bench --out .", "--out must be a file, but . is a folder", 2),
    ],
)
def test_an_impossible_path_is_rejected_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    result = call(*words.split())
    assert (result.exit_code, result.output) == (code, f"error: {message}\n")


def test_bench_rejects_an_unknown_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("bench", "--device", "tpu")
    assert result.exit_code == 2
    assert "'tpu' is not one of" in result.output
    assert not list(tmp_path.iterdir())


BAD_VALUES = {
    ("demo",): ["--seed", "one"],
    ("info",): ["--colour"],
    ("bench",): ["--device", "tpu"],
    ("data", "pathfinder"): ["--level", "harder"],
    ("train",): ["hold-bit", "--cell", "transformer"],
    ("machines",): ["Z3", "S5"],
    ("rl",): ["t-maze", "transformer"],
    ("reproduce",): ["figures"],
    ("sweep",): ["mnist", "transformer"],
    ("figure",): ["nothing"],
    ("claims",): ["--recipe", "secret"],
    ("report",): ["--scale", "huge"],
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_bad_value_exits_with_2(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether typer finds it or the command itself; nothing is written."""
    monkeypatch.chdir(tmp_path)
    result = call(*words, *BAD_VALUES[words])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("parity --long", "--long has no effect without --study"),
        ("--study rivals --long", "study must be one of every, "),
    ],
)
def test_long_tests_are_of_stored_models(words: str, message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("machines", *words.split())
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_bench_on_a_gpu_needs_few_packages() -> None:
    """Besides torch and Triton, a GPU machine needs only typer and rich."""
    blocked = dict.fromkeys(("matplotlib", "numba", "PIL", "safetensors", "accelerate"))
    modules = "bench.cuda", "bench.report", "cli", "training.optim", "training.processes", "training.step"
    imports = "".join(f"import multistable_experiments.{module}\n" for module in modules)
    result = run("-c", f"import sys\nsys.modules.update({blocked})\n{imports}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("words", ["demo", "figure surrogates"])
def test_a_missing_package_is_reported_in_one_line(words: str) -> None:
    result = without("matplotlib", *words.split())
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("error: matplotlib is not installed: run `pip install ./experiments`")


def test_default_folder_is_in_the_clone_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_folder("results") == Path("results")
    (tmp_path / "experiments" / "results").mkdir(parents=True)
    assert default_folder("results") == Path("experiments/results")
    assert default_folder("benchmarks/results") == Path("benchmarks/results")

"""Build both distributions, check what they contain, and run the command from the wheels alone.

python tools/package.py [FOLDER]    build into FOLDER (default: dist); needs `pip install build`

Every tracked file of the folders in CONTENTS must be in the source distribution. The wheels are then installed into a
virtual environment that borrows torch and the other dependencies from this one, and `multistable --version` and
`multistable info` run in an empty folder, so that nothing of the repository can help.
"""

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTENTS = {
    ".": ("src", "tests", "examples", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "constraints.txt"),
    "experiments": ("src", "results", "LICENSE"),  # its tests need those of the library, and run in a clone
}


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(project: str, folder: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel that is built from it."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT / project)
    name = "multistable" if project == "." else "multistable_experiments"
    [sdist], [wheel] = folder.glob(f"{name}-*.tar.gz"), folder.glob(f"{name}-*.whl")
    return sdist, wheel


def missing(project: str, sdist: Path) -> list[str]:
    """Tracked files that the source distribution should contain and does not."""
    tracked = run("git", "ls-files", *CONTENTS[project], cwd=ROOT / project).splitlines()
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    absent = [name for name in CONTENTS[project] if not any(file.startswith(name) for file in tracked)]
    return absent + sorted(set(tracked) - inside)


def try_wheels(wheels: list[Path], folder: Path) -> str:
    """What the installed command says of itself."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", *wheels)
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    (Path(own) / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for package in ("multistable", "multistable_experiments"):
        place = run(python, "-c", f"import {package}; print({package}.__file__)", cwd=folder).strip()
        if not place.startswith(own):
            raise SystemExit(f"{package} was imported from {place}, not from its wheel")
    command = folder / "venv" / "bin" / "multistable"
    return run(command, "--version", cwd=folder) + run(command, "info", cwd=folder)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if before := [path.name for path in folder.iterdir() if path.suffix in (".gz", ".whl")]:
        raise SystemExit(f"{folder} must hold no distributions, but has {', '.join(sorted(before))}")
    wheels = []
    for project in CONTENTS:
        sdist, wheel = build(project, folder)
        if absent := missing(project, sdist):
            raise SystemExit(f"{sdist.name} lacks {', '.join(absent)}")
        print(f"{sdist.name}: {sdist.stat().st_size:,} bytes, {wheel.name}: {wheel.stat().st_size:,} bytes")
        wheels.append(wheel)
    with tempfile.TemporaryDirectory() as empty:
        print(try_wheels(wheels, Path(empty)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve())

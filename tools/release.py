"""Everything that must hold before a release: build, check, install in clean environments, try.

python tools/release.py [FOLDER] [--pythons 3.11,3.12]    build into FOLDER (default: dist), which must hold none

1. Both distributions are built and complete (tools/package.py).
2. `twine check --strict` finds nothing.
3. For each supported Python on this machine, in a virtual environment of its own: the library's wheel is installed with
   what it requires and nothing else, tools/smoke.py runs in an empty folder, then the experiments' wheel is installed
   and `multistable --version` and `multistable info` run.

Needs `pip install '.[release]'`. A release is a tag, v0.2.0: the version comes from it.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from package import CONTENTS, ROOT, build, missing, run

SMOKE = Path(__file__).with_name("smoke.py")


def supported() -> list[str]:
    """The Pythons that pyproject.toml names."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(r"Programming Language :: Python :: (3\.\d+)", text)


def interpreters(wanted: list[str]) -> dict[str, str]:
    """Those of the wanted versions that run on this machine, on the path or installed by pyenv (whose names on the path
    may lead nowhere)."""
    found = {}
    for version in wanted:
        name = f"python{version}"
        paths = [shutil.which(name), *(Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/{name}")]
        for path in filter(None, paths):
            done = subprocess.run([path, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
            if done.returncode == 0:
                found[version] = done.stdout.strip()
    return found


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def try_wheels(python: str, wheels: list[Path], folder: Path) -> str:
    """Install the wheels into a new environment and run them there."""
    run(python, "-m", "venv", folder / "venv")
    inside, empty = folder / "venv" / "bin", folder / "empty"
    empty.mkdir()
    install = (inside / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ("--constraint", ROOT / "constraints.txt")
    run(*install, *constraints, wheels[0])
    said = run(inside / "python", SMOKE, version_of(wheels[0]), cwd=empty)
    run(*install, *constraints, "--find-links", wheels[0].parent, wheels[1])
    said += run(inside / "multistable", "--version", cwd=empty)
    run(inside / "multistable", "info", cwd=empty)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--pythons", default=",".join(supported()), help="versions to try, such as 3.11,3.12")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} must be empty")
    pairs = {project: build(project, folder) for project in CONTENTS}
    for project, (sdist, _) in pairs.items():
        if absent := missing(project, sdist):
            raise SystemExit(f"{sdist.name} lacks {', '.join(absent)}")
    print(run(sys.executable, "-m", "twine", "check", "--strict", *sorted(folder.iterdir())).strip())
    pythons = interpreters(given.pythons.split(","))
    for version, python in pythons.items():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            print(try_wheels(python, [wheel for _, wheel in pairs.values()], Path(place)), end="")
        print(f"Python {version}: {time.perf_counter() - start:.0f} s")
    if absent := sorted(set(given.pythons.split(",")) - set(pythons)):
        print(f"not on this machine: Python {', '.join(absent)}")


if __name__ == "__main__":
    main()

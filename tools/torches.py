"""Run the library's tests with other versions of torch, each in a virtual environment of its own.

python tools/torches.py 2.8.0 2.15.0    environments in build/torch-VERSION, some 7 GB each; five minutes a version

What is left out: tests of optional packages and those that need a GPU. The kernels run in Triton's interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ["expecttest", "gymnasium", "hypothesis", "numpy<2.4", "pytest", "pytest-xdist"]
CHOSEN = ["--quiet", "--numprocesses", "2", "--dist", "loadfile", "-p", "no:cacheprovider", "-m", "not extra"]


def install(version: str) -> Path:
    """The interpreter of an environment with this torch, the library and what its tests need."""
    folder = ROOT / "build" / f"torch-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    wanted = [f"torch=={version}", *PACKAGES, "--editable", ".[cpu,files,onnx]"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], cwd=ROOT, check=True)
    return python


def passes(python: Path, *tests: str, **variables: str) -> bool:
    """Run the tests, print which failed and how many passed, and return True if all did."""
    words = [python, "-m", "pytest", *CHOSEN, *tests]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    told = ("FAILED tests", "ERROR tests")
    lines = [line for line in done.stdout.splitlines() if line.startswith(told) or " passed" in line]
    print("\n".join(lines) or done.stdout + done.stderr, flush=True)
    return done.returncode == 0


def main(versions: list[str]) -> bool:
    kernels = [str(path) for path in sorted((ROOT / "tests/ops/triton").glob("test_*.py")) if "_gpu" not in path.name]
    results: list[bool] = []
    for version in versions:
        python = install(version)
        print(f"torch {version}", flush=True)
        results += [passes(python, "tests"), passes(python, *kernels, TRITON_INTERPRET="1")]
    return all(results)


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:] or sys.exit(__doc__)))

"""How far one has to walk to follow a call: the files and functions that it enters, and how deep its calls nest.

    python tools/walk.py [WALK ...] [--cli MODULE]

    layer     BMRU(4, 8)(torch.randn(2, 5, 4)) on a CPU, its first call and its second
    train     multistable train hold-bit --scale smoke
    figure    multistable figure copy-first

Only functions of this library's packages count, lambdas among them, in any thread; comprehensions do not, nor what runs
while a module is imported. Depth is the number of such functions that are open at a time. Each walk has a process of
its own.
"""

import argparse
import importlib
import inspect
import subprocess
import sys
import tempfile
import threading
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "experiments/src")]  # this tree
SPECS = [spec for name in ("multistable", "multistable_experiments") if (spec := find_spec(name)) is not None]
FOLDERS = tuple(f"{folder}/" for spec in SPECS for folder in spec.submodule_search_locations or ())
WALKS = {"layer": [], "train": ["hold-bit", "--scale", "smoke", "--device", "cpu"], "figure": ["copy-first"]}
NO_FUNCTIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def is_ours(code: CodeType) -> bool:
    """True for a function of one of the packages; bodies of modules and classes are not optimised."""
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name not in NO_FUNCTIONS
    return is_function and code.co_filename.startswith(FOLDERS)


def is_import(code: CodeType) -> bool:
    """True for the body of a module of one of the packages."""
    return code.co_name == "<module>" and code.co_filename.startswith(FOLDERS)


def follow(function: Any, *args: Any) -> str:
    """Call a function, and say how far that was."""
    depths: dict[CodeType, int] = {}

    def look(frame: FrameType | None, event: str, _: Any) -> None:
        if event == "call" and frame is not None and is_ours(code := frame.f_code):
            depth = 0
            while frame is not None:
                if is_import(frame.f_code):
                    return
                depth, frame = depth + is_ours(frame.f_code), frame.f_back
            depths[code] = max(depth, depths.get(code, 0))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        function(*args)
    except SystemExit as end:  # how a command ends
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return f"{len({c.co_filename for c in depths})} files, {len(depths)} functions, {max(depths.values())} deep"


def walk(name: str, cli: str) -> str:
    """Do one of the walks."""
    if name == "layer":
        torch, layer = importlib.import_module("torch"), importlib.import_module("multistable").BMRU(4, 8)
        x = torch.randn(2, 5, 4)
        return f"{follow(layer, x)}; again: {follow(layer, x)}"
    main = importlib.import_module(cli).main
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        sys.argv = ["multistable", name, *WALKS[name], "--out", folder]
        return follow(main)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("walks", nargs="*", metavar="WALK", default=list(WALKS), help="default: all of them")
    parser.add_argument(
        "--cli", default="multistable_experiments.cli", help="the module of the command line, which has a main()"
    )
    options = parser.parse_args()
    if len(options.walks) == 1:
        print(f"{options.walks[0]:7} {walk(options.walks[0], options.cli)}")
        print("        with", *sorted({".".join(m.split(".")[:2]) for m in sys.modules if m.startswith("multistable")}))
    for name in options.walks if len(options.walks) > 1 else []:
        subprocess.run([sys.executable, __file__, name, "--cli", options.cli], check=True)

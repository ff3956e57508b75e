"""Break the code on purpose, one small mutation at a time, and see whether the tests notice.

    python tools/mutate.py [--list FILE] [--only ID ...] [--full]

The list is a JSON file of mutations::

    {"id": "reference-step-tie", "file": "src/multistable/ops/reference.py",
     "old": "distance < width", "new": "distance <= width",
     "tests": ["tests/ops/test_scan_exactness.py"], "env": {}}

A mutation that changes nothing a test could see has a field ``"equivalent"``, which says why. ``old`` must occur in the
file exactly once. The tree is copied to a temporary folder; there each mutation is applied, ``pytest -x`` runs its
``tests`` with ``env`` added to the environment, and the file is put back. A mutation is killed if a test fails. Tests
that take longer than five minutes have not killed it: slow is not wrong, and a machine may be busy. If they cannot be
collected, the run stops. In the end the tests that killed run once without any mutation: one that fails anyway proves
nothing.

What came out is kept in a JSON file beside the list (or ``--out``) and not computed again, unless the mutation, its
source file or a file of its tests has changed since; then the test that killed it the last time goes first. With
``--full`` those that survived their own tests have to survive the whole suite, too.

The exit code is 1 if less than 97 % are killed, if one survives without an explanation, or if one that is said to
change nothing is killed.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src", "experiments/src")
LEFT_OUT = shutil.ignore_patterns(".venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", "runs")
PYTEST = ["-x", "-q", "-p", "no:cacheprovider"]
LOADED = ("torch", "numba")
"""Imported once, before the tests' processes are forked: importing takes more time than most tests."""
WHOLE_SUITE = ["--numprocesses", "2", "--dist", "loadfile"]
OWN_SECONDS, WHOLE_SECONDS = 300, 3600
KILLED_AT_LEAST = 0.97
KILLED, MISSING = "killed", "missing"
WORDS = {0: "survived", 1: KILLED, None: "timeout", 4: MISSING}  # by pytest's exit code; any other stops the run

Mutation = dict[str, Any]
Outcome = dict[str, Any]


class Scratch:
    """A copy of the tree in which to break things."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.source, self.folder, self.tree = source, folder, folder / "tree"
        shutil.copytree(source, self.tree, ignore=LEFT_OUT, symlinks=True)
        os.environ["NUMBA_CACHE_DIR"] = str(folder / "numba")
        for name in LOADED:
            importlib.import_module(name)

    def test(self, tests: list[str], env: dict[str, str], limit: float) -> tuple[int | None, str]:
        """pytest's exit code, None if it was stopped, and what it printed.

        Neither bytecode nor compiled loops may be those of another mutation: Python writes none, and numba looks at the
        time and size of the source. ``CI`` makes hypothesis draw the same examples every time.
        """
        # The tree itself, too, as `python -m pytest` has it: spawned processes import tests from there.
        paths = [str(self.tree / folder) for folder in (*SOURCES, ".")]
        log, end = self.folder / "log", time.monotonic() + limit
        own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
        if (pid := os.fork()) == 0:
            code = 3  # pytest's own for an internal error
            try:
                os.setsid()  # so that it can be stopped with all that it started
                with log.open("wb") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                os.chdir(self.tree)
                os.environ |= own | env
                sys.path[:0], sys.dont_write_bytecode = paths, True
                code = int(pytest.main([*PYTEST, *tests]))
                sys.stdout.flush()
            finally:
                os._exit(code)
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.05)
        if ended[0] == 0:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None, ""
        return os.waitstatus_to_exitcode(ended[1]), log.read_text(errors="replace")

    def judge(self, mutation: Mutation, killer: str) -> Outcome:
        """Run the tests of one mutation. ``killer``, if any, is the test that killed it last time: it runs first,
        alone, which saves most of the time. It may no longer exist."""
        if killer:
            outcome = self.test_mutated(mutation, [killer], OWN_SECONDS)
            if outcome["outcome"] == KILLED:
                return outcome
        outcome = self.test_mutated(mutation, mutation["tests"], OWN_SECONDS)
        if outcome["outcome"] == MISSING:
            sys.exit(f"{mutation['id']}: one of its tests does not exist: {', '.join(mutation['tests'])}")
        return outcome

    def test_mutated(self, mutation: Mutation, tests: list[str], limit: float) -> Outcome:
        """What these tests say of one mutation."""
        path, started = self.tree / mutation["file"], time.perf_counter()
        path.write_text(mutated(path, mutation))
        try:
            code, output = self.test(tests, mutation.get("env", {}), limit)
        finally:
            shutil.copy2(self.source / mutation["file"], path)  # with the time of the original
        if code not in WORDS:
            sys.exit(f"{mutation['id']}: pytest ended with {code}:\n{output[-3000:]}")
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        by = found[1] if found and code else ""
        return {"outcome": WORDS[code], "seconds": round(time.perf_counter() - started, 1), "by": by}


def mutated(path: Path, mutation: Mutation) -> str:
    """The text of the file with the mutation."""
    text = path.read_text()
    if (count := text.count(mutation["old"])) != 1:
        sys.exit(f"{mutation['id']}: its old text must occur once in {mutation['file']}, but it does {count} times")
    return text.replace(mutation["old"], mutation["new"])


def digest(mutation: Mutation, root: Path) -> str:
    """Twelve digits that change with the mutation, its source file and the files of its tests, but not with its
    explanation."""
    mutation = {key: value for key, value in mutation.items() if key != "equivalent"}
    files = [mutation["file"], *(test.partition("::")[0] for test in mutation["tests"])]
    texts = [(root / file).read_text() for file in files]
    return hashlib.sha256(json.dumps([mutation, texts], sort_keys=True).encode()).hexdigest()[:12]


def final(outcome: Outcome) -> Outcome:
    """That of the whole suite where it ran."""
    return outcome | outcome.get("full", {})


def check_killers(scratch: Scratch, mutations: list[Mutation], outcomes: dict[str, Outcome]) -> None:
    """The tests that killed must pass where nothing is broken. Those of one environment run together."""
    groups: dict[str, set[str]] = {}
    for mutation in mutations:
        if by := final(outcomes[mutation["id"]])["by"]:
            groups.setdefault(json.dumps(mutation.get("env", {})), set()).add(by)
    for env, tests in groups.items():
        code, output = scratch.test(["--maxfail=0", *sorted(tests)], json.loads(env), WHOLE_SECONDS)
        if code != 0:
            sys.exit(f"tests that killed fail without any mutation, too:\n{output[-3000:]}")


def verdict(mutations: list[Mutation], outcomes: dict[str, Outcome]) -> tuple[list[str], bool]:
    """Lines that sum up the run, and whether the tests are good enough."""
    found = {mutation["id"]: final(outcomes[mutation["id"]]) for mutation in mutations}
    survivors = {name for name, outcome in found.items() if outcome["outcome"] != KILLED}
    explained = {mutation["id"] for mutation in mutations if "equivalent" in mutation}
    killed, seconds = len(found) - len(survivors), sum(outcomes[name]["seconds"] for name in found)
    lines = [f"{killed} of {len(found)} killed ({killed / len(found):.1%}), {seconds:.0f} s"]
    groups = {
        "equivalent": survivors & explained,
        "survived": survivors - explained,
        "killed, but said to be equivalent": explained - survivors,
    }
    lines += [f"{title}: {', '.join(sorted(names)) or 'none'}" for title, names in groups.items()]
    return lines, killed >= KILLED_AT_LEAST * len(found) and survivors == explained


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", type=Path, default=Path(__file__).with_name("mutants.json"), help="the mutations")
    parser.add_argument("--out", type=Path, help="what came out (default: LIST with the ending .outcomes.json)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to copy (default: that of this file)")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these mutations alone")
    parser.add_argument("--full", action="store_true", help="run the whole suite on those that survive")
    options = parser.parse_args()
    out = options.out or options.list.with_suffix(".outcomes.json")
    every: list[Mutation] = json.loads(options.list.read_text())
    if unknown := set(options.only or ()) - {mutation["id"] for mutation in every}:
        sys.exit(f"no mutation is called {', '.join(sorted(unknown))}")
    mutations = [mutation for mutation in every if not options.only or mutation["id"] in options.only]
    for mutation in mutations:
        mutated(options.root / mutation["file"], mutation)  # to find a mistake now rather than in an hour
    outcomes: dict[str, Outcome] = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        scratch = Scratch(Path(folder), options.root)
        for mutation in mutations:
            outcome = outcomes.get(mutation["id"], {})
            if outcome.get("of") != (of := digest(mutation, options.root)):
                outcome = scratch.judge(mutation, outcome.get("by", "")) | {"of": of}
            if options.full and outcome["outcome"] == "survived" and "full" not in outcome:
                outcome["full"] = scratch.test_mutated(mutation, WHOLE_SUITE, WHOLE_SECONDS)
            outcomes[mutation["id"]] = outcome
            out.write_text(json.dumps(outcomes, indent=1) + "\n")
            shown = final(outcome)
            print(f"{mutation['id']:28} {shown['outcome']:9} {shown['seconds']:6.1f} s  {shown['by']}", flush=True)
        check_killers(scratch, mutations, outcomes)
    lines, good = verdict(mutations, outcomes)
    print("\n".join(lines))
    raise SystemExit(not good)


if __name__ == "__main__":
    main()

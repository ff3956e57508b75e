"""Type checking: pyright's ``strict`` mode, with few exceptions."""

import re
from pathlib import Path

import multistable

SOURCE = Path(multistable.__file__).parent
KERNELS = SOURCE / "ops" / "triton"  # Triton's language is not typed
SUPPRESSION = re.compile(r"#\s*(pyright|type):\s*(ignore|basic|\w+\s*=)")


def suppressions(text: str) -> list[str]:
    return [line for line in text.splitlines() if SUPPRESSION.search(line)]


def test_at_most_20_type_errors_are_suppressed():
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if KERNELS not in path.parents]
    assert len(paths) > 30
    lines = [f"{path.relative_to(SOURCE)}: {line}" for path in paths for line in suppressions(path.read_text("utf-8"))]
    assert len(lines) <= 20, "\n".join(lines)


def test_the_check_can_fail():
    lines = [
        "x = f()  # pyright: ignore[reportPrivateUsage]",
        "x = f()  # type: ignore",
        "# pyright: basic",
        "# pyright: reportUnknownMemberType=false",
    ]
    assert suppressions("\n".join(lines)) == lines
    assert suppressions("x = 1  # ignore pyright") == []

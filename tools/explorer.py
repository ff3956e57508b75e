"""Put the explorer together: the modules, the style and the page of explorer/ become one HTML file.

python tools/explorer.py [FILE]    write FILE (default: build/explorer.html)

The modules import each other by name. In the file they stand one after the other in one script, each after those it
imports, without the words `import` and `export`: so no two may use the same name at the top level.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "explorer"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)


def in_order(name: str, seen: list[str]) -> list[str]:
    """The modules that ``name`` needs, then ``name``, each once; ``seen`` grows."""
    if name not in seen:
        for needed in IMPORT.findall((SOURCES / name).read_text(encoding="utf-8")):
            in_order(needed, seen)
        seen.append(name)
    return seen


def script() -> str:
    texts = [(SOURCES / name).read_text(encoding="utf-8") for name in in_order("main.mjs", [])]
    return "\n".join(re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE) for text in texts)


def make() -> str:
    """The page."""
    page = (SOURCES / "page.html").read_text(encoding="utf-8")
    parts = {"/* style */\n": (SOURCES / "style.css").read_text(encoding="utf-8"), "/* script */\n": script()}
    for mark, text in parts.items():
        before, after = page.split(mark)
        page = before + text + after
    return page


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(make(), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "explorer.html"))

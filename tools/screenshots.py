"""Photograph pages at three widths, light and dark, onto one page: to look at after a change of style.

python tools/screenshots.py [PAGE ...]    build/screenshots/index.html; PAGE is an HTML file (default: the site's)

Needs chromium and `pip install '.[browser]'`; `make docs` for the default pages.
"""

import html
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import PHONE, start_browser

ROOT = Path(__file__).parents[1]
NAMES = (
    "index",
    "explore",
    "tutorials/when_memory_fades",
    "reference/multistable",
    "figures",
    "results",
    "first_ten_minutes",
)
WAYS = (("phone", PHONE, False), ("laptop", 1280, False), ("laptop, dark", 1280, True), ("phone, dark", PHONE, True))
TALLEST = 2400  # pixels of a page that are shown
STYLE = """
body { font: 14px system-ui; margin: 2rem; }
div { display: flex; gap: 1rem; }
img { height: 34rem; border: 1px solid #ccc; }
"""


def photograph(pages: list[Path], folder: Path) -> Path:
    """Write the pictures and the page that shows them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with start_browser() as browser:
        for number, path in enumerate(pages):
            pictures = []
            for name, width, dark in WAYS:
                scheme = "dark" if dark else "light"
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.goto(path.resolve().as_uri())
                page.wait_for_timeout(300)
                height = min(int(page.evaluate("document.documentElement.scrollHeight")), TALLEST)
                picture = folder / f"{number}-{name.replace(', ', '-')}.png"
                clip = {"x": 0, "y": 0, "width": width, "height": height}
                page.screenshot(path=picture, full_page=True, clip=clip)
                page.close()
                pictures.append(f'<img src="{picture.name}" alt="{name}">')
            rows.append(f"<h2>{html.escape(path.name)}</h2><div>{''.join(pictures)}</div>")
    index = folder / "index.html"
    index.write_text(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(rows)}", encoding="utf-8")
    return index


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]] or [ROOT / "build" / "site" / f"{name}.html" for name in NAMES]
    print(photograph(given, ROOT / "build" / "screenshots"))

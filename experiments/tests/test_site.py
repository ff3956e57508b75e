"""tools/site.py: links lead to pages, the reference has every public name; and the built site in a browser."""

import importlib
import pkgutil
import runpy
from pathlib import Path

import pytest

import multistable
from browser import PHONE, needs_browser, open_page, start_browser, too_wide

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "site.py"))
INDEX = ROOT / "build" / "site" / "index.html"


def test_reference_has_every_public_name():
    pages = TOOL["reference"]()
    for name in TOOL["MODULES"]:
        page = pages[f"reference/{name}.md"]
        for public in importlib.import_module(name).__all__:
            assert public in page, f"{name}.{public}"
    listed = (ROOT / "docs" / "site" / "reference.md").read_text()
    assert [line for line in listed.splitlines() if line.startswith("reference/")] == [
        f"reference/{name}" for name in TOOL["MODULES"]
    ]


def test_reference_has_every_package():
    """Packages and modules right below multistable are public, but for rl, whose modules are two pages."""
    found = {f"multistable.{each.name}" for each in pkgutil.iter_modules(multistable.__path__)}
    assert found - {"multistable.rl"} <= set(TOOL["MODULES"])


def test_links_lead_to_pages(tmp_path):
    linked: set[str] = set()
    document = ROOT / "docs" / "export.md"
    text = TOOL["with_links"](document, linked)
    assert "](files/examples/flip_flops.py.md)" in text
    assert "examples/flip_flops.py" in linked
    assert "def to_c" in TOOL["file_page"]("examples/flip_flops.py")
    assert "`lightning_module.py`" in TOOL["file_page"]("examples/clients")
    changes = TOOL["with_links"](ROOT / "CHANGELOG.md", linked)
    assert "](scale.md)" in changes


def test_every_document_has_a_place_on_the_site():
    """Otherwise Sphinx warns, minutes later."""
    places = "\n".join(path.read_text() for path in (ROOT / "docs" / "site").glob("*.md")).splitlines()
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= set(places)


def test_command_page_lists_options():
    page = TOOL["command_page"]()
    assert "## multistable data pathfinder" in page
    assert "`--budget`" in page


@needs_browser
@pytest.mark.skipif(not INDEX.exists(), reason="no site here: make docs")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_site_on_a_phone_and_a_laptop(dark):
    """No script fails, nothing is wider than the window. Pages load their own style and scripts, so no network."""
    pages = ["index", "tutorials/from_gru", "reference/multistable", "results", "command", "explore"]
    with start_browser() as browser:
        for name in pages:
            with open_page(browser, INDEX.parent / f"{name}.html", PHONE, dark, alone=False) as page:
                for width in (PHONE, 1280):
                    page.set_viewport_size({"width": width, "height": 800})
                    page.wait_for_timeout(100)
                    assert too_wide(page) == [], name
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, name

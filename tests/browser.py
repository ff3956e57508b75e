"""Open pages in a real browser, Debian's chromium, through Playwright."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["PHONE", "WIDTHS", "missing_browser", "needs_browser", "open_page", "start_browser", "too_wide"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE = 390
WIDTHS = (320, PHONE, 820, 1280, 1920)

if CHROMIUM is None:
    missing_browser = "no browser here: apt-get install chromium"
else:
    missing_browser = "" if find_spec("playwright") else "playwright is not installed: pip install '.[browser]'"
needs_browser = pytest.mark.skipif(bool(missing_browser), reason=missing_browser)


@contextmanager
def start_browser() -> Generator["Browser"]:
    """For a fixture of a module: to start it takes a second, and while it runs no other event loop can."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # CI runs as root, where chromium has no sandbox.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_page(
    browser: "Browser", path: Path, width: int = 1280, dark: bool = False, alone: bool = True
) -> Generator["Page"]:
    """The page of a file. Afterwards: it wrote nothing to the console, raised nothing, and asked for no other file, or,
    if not ``alone``, for nothing from a network."""
    said: list[str] = []
    asked: list[str] = []
    page = browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", has_touch=True
    )
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    page.close()
    assert said == []
    assert asked == [path.as_uri()] if alone else all(url.startswith(("file:", "data:")) for url in asked)


def too_wide(page: "Page") -> list[str]:
    """What reaches beyond the right edge of the window, other than in a part that scrolls sideways by itself."""
    return page.evaluate(
        """() => {
          const scrolls = (e) => e && (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(e).overflowX)
                                       || scrolls(e.parentElement));
          return [...document.querySelectorAll("main *")]
            .filter((e) => !e.closest("svg svg, svg *") && e.getBoundingClientRect().right > innerWidth + 0.5)
            .filter((e) => !scrolls(e.parentElement))
            .map((e) => `${e.tagName}.${e.getAttribute("class")}: ${e.textContent.slice(0, 40)}`);
        }"""
    )

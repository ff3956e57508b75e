"""The explorer in a real browser: drag, draw, type, press keys, resize; nothing on the console, nothing loaded."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from browser import PHONE, WIDTHS, needs_browser, open_page, start_browser, too_wide

TOOL = Path(__file__).parents[2] / "tools" / "explorer.py"
pytestmark = [needs_browser, pytest.mark.skipif(not TOOL.exists(), reason="the sdist has no tools")]


@pytest.fixture(scope="module")
def explorer(tmp_path_factory) -> Path:
    return runpy.run_path(str(TOOL))["write"](tmp_path_factory.mktemp("new") / "explorer.html")


@pytest.fixture(scope="module")
def browser():
    with start_browser() as started:
        yield started


def number(page: Any, name: str) -> float:
    """The number that the page shows."""
    page.wait_for_timeout(60)  # a frame
    return float(page.inner_text(f"#{name}-now").replace("\u2212", "-"))


def drag(page: Any, selector: str, *places: tuple[float, float]) -> None:
    """Press the button at the first place, release it at the last; places are shares of the element's size."""
    page.locator(selector).scroll_into_view_if_needed()
    box = page.locator(selector).bounding_box()
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=8)
        page.wait_for_timeout(80)
    page.mouse.up()


def test_the_page_is_one_file(explorer):
    text = explorer.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"<link|<img|@import|\bsrc=", text)
    assert len(text) < 60_000


def test_dragging_the_input_past_a_fold_switches_and_lets_go_without_loss(browser, explorer):
    with open_page(browser, explorer) as page:
        drag(page, "#fold", (0.5, 0.5), (0.95, 0.5), (0.54, 0.5))
        assert abs(number(page, "input")) < 0.3
        assert number(page, "exact") > 0.9
        assert number(page, "bmru") == 1
        assert "the past decides" in page.inner_text("#verdict")
        drag(page, "#fold", (0.54, 0.5), (0.1, 0.5), (0.54, 0.5))
        assert number(page, "exact") < -0.9
        assert number(page, "bmru") == -1
        drag(page, "#fold", (0.54, 0.5), (0.95, 0.5))
        assert "beyond the fold" in page.inner_text("#verdict")


def test_dragging_a_fold_changes_beta(browser, explorer):
    with open_page(browser, explorer) as page:
        before = float(page.input_value("#beta-number"))
        handle = page.locator(".handle.fold path").nth(1).bounding_box()
        page.mouse.move(handle["x"] + 7, handle["y"] + 7)
        page.mouse.down()
        page.mouse.move(handle["x"] + 87, handle["y"], steps=5)
        page.mouse.up()
        assert float(page.input_value("#beta-number")) > before + 0.3
        assert page.input_value("#beta") == page.input_value("#beta-number")


def test_typing_a_number(browser, explorer):
    with open_page(browser, explorer) as page:
        page.fill("#beta-number", "0")
        page.press("#beta-number", "Enter")
        assert page.input_value("#beta") == "0"
        page.wait_for_timeout(60)
        assert "nothing is remembered" in page.inner_text("#verdict")
        page.fill("#beta-number", "99")
        page.press("#beta-number", "Tab")
        assert page.input_value("#beta-number") == "3"
        page.fill("#alpha-number", "0.8")
        page.press("#alpha-number", "Enter")
        page.fill("#beta-number", "1")
        page.press("#beta-number", "Enter")
        assert number(page, "bmru") == -0.8


def test_drawing_a_signal_with_mouse_and_keys(browser, explorer):
    with open_page(browser, explorer) as page:
        page.click("text=Flat")
        assert number(page, "bmru") == 0
        drag(page, "#signal", (0.3, 0.5), (0.32, 0.05), (0.4, 0.05), (0.45, 0.42))
        page.focus("#states")
        page.keyboard.press("End")
        assert number(page, "bmru") == 1
        page.focus("#signal")
        for _ in range(12):
            page.keyboard.press("ArrowDown")
        assert number(page, "input") == pytest.approx(-2.4)
        assert number(page, "bmru") == -1
        page.keyboard.press("ArrowLeft")
        assert number(page, "bmru") == 1


def test_noise_overwrites_the_bit(browser, explorer):
    with open_page(browser, explorer) as page:
        states = page.locator("#states .line.bmru")
        before = states.get_attribute("d")
        page.locator("#noise").fill("1.5")
        page.wait_for_timeout(60)
        noisy = states.get_attribute("d")
        assert noisy != before
        page.click("#reseed")
        page.wait_for_timeout(60)
        assert states.get_attribute("d") not in (noisy, before)


def test_playing_moves_through_time_and_can_be_stopped(browser, explorer):
    with open_page(browser, explorer) as page:
        page.click("#play")
        page.wait_for_timeout(300)
        assert page.inner_text("#play") == "Pause"
        page.click("#play")
        t = int(page.get_attribute("#states", "aria-valuetext").split()[1].strip(":"))
        assert 0 < t < 100


def test_keys_reach_every_control(browser, explorer):
    """By Tab alone: both folds, the input, the plots, all buttons, sliders and numbers, the steps of the scan."""
    with open_page(browser, explorer) as page:
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("(() => { const e = document.activeElement;"
                                      "return e.id || e.getAttribute('aria-label') || e.textContent })()"))  # fmt: skip
        names = {"Input x", "Fold: sets beta", "signal", "states", "play", "beta", "beta-number", "reseed", "One step"}
        assert names | {"step 1: write plus", "step 16: write plus"} <= reached
        page.focus(".handle.input")
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        assert number(page, "input") == pytest.approx(2.0)
        assert page.get_attribute(".handle.input", "aria-valuenow") == "2.00"


def test_every_control_has_a_name(browser, explorer):
    with open_page(browser, explorer) as page:
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, [role=slider]")].filter((e) =>
                 !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length)))
                 .map((e) => e.outerHTML)"""
        )
        assert unnamed == []


def test_the_scan_ends_with_the_states_of_the_loop(browser, explorer):
    with open_page(browser, explorer) as page:
        page.click(".row.steps .cell:nth-child(2)")  # keep -> write plus
        page.click(".row.steps .cell:nth-child(1)")  # write plus -> write minus
        for _ in range(9):
            page.click("[data-scan=step]")
        states = page.locator(".row.states .cell").all_inner_texts()
        assert "".join(states) == "\u2212++" + 6 * "\u2212" + "+" + 5 * "\u2212" + "+"
        assert "Every state is known" in page.inner_text("[data-scan=words]")
        page.select_option("[data-scan=chunks]", "8")
        assert "of 11" in page.inner_text("[data-scan=count]")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_cut_off_at_any_width(browser, explorer, dark):
    with open_page(browser, explorer, dark=dark) as page:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(80)
            assert too_wide(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            box, view = page.locator("#fold").bounding_box(), page.get_attribute("#fold", "viewBox")
            assert [float(side) for side in view.split()[2:]] == pytest.approx([box["width"], box["height"]])


def test_text_is_readable_in_light_and_dark(browser, explorer):
    """At least 4.5 to 1, the ratio of WCAG, for text on the page and on its panels."""
    for dark in (False, True):
        with open_page(browser, explorer, dark=dark) as page:
            colours = page.evaluate(
                """() => Object.fromEntries(["page", "panel", "ink", "soft", "faint", "exact", "bmru", "lru"].map(
                     (name) => [name, getComputedStyle(document.body).getPropertyValue("--" + name).trim()]))"""
            )
        for name in ("ink", "soft", "faint", "exact", "bmru", "lru"):
            for ground in ("page", "panel"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground, dark)


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def test_touch_on_a_phone(browser, explorer):
    with open_page(browser, explorer, width=PHONE) as page:
        page.locator("#signal").scroll_into_view_if_needed()
        box = page.locator("#signal").bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 15)
        page.focus("#states")
        assert "Weak taps" in page.inner_text("#signals")
        assert number(page, "input") > 1.5

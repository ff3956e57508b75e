"""The pages of demo and report in a real browser: nothing cut off, nothing on the console, light and dark."""

from pathlib import Path

import pytest
from rich.console import Console

from browser import WIDTHS, needs_browser, open_page, start_browser, too_wide
from multistable_experiments import demo
from multistable_experiments.paper import report, store
from multistable_experiments.paper.claims import measure_all
from multistable_experiments.paper.figures import FIGURES
from paper_records import RESULTS, records, save
from test_demo import TINY

pytestmark = needs_browser
SHOWN = {name: FIGURES[name] for name in ("surrogates", "copy-first", "permuted-mnist")}


@pytest.fixture(scope="module")
def browser():
    with start_browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("new")
    found = store.load(save(folder / "results", records([0], ["copy-first"])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "FIGURES", SHOWN)
        (folder / "report.html").write_text(report.make(found, measure_all(found, RESULTS, ("tuned",)), "full"))
    plan = demo.run(folder / "demo", seed=3, plan=TINY, console=Console(quiet=True))
    return {"demo": plan, "report": folder / "report.html"}


@pytest.mark.parametrize("name", ["demo", "report"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_cut_off_at_any_width(browser, pages, name, dark):
    with open_page(browser, pages[name], dark=dark) as page:
        page.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true))")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(50)
            assert too_wide(page) == [], width
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["demo", "report"])
def test_dark_pages_are_dark(browser, pages, name):
    lightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
    with open_page(browser, pages[name], dark=True) as page:
        assert page.evaluate(lightness) < 100
    with open_page(browser, pages[name]) as page:
        assert page.evaluate(lightness) == 3 * 255


def test_links_of_the_report_lead_to_their_chapters(browser, pages):
    with open_page(browser, pages["report"]) as page:
        page.click("nav a:last-child")
        page.wait_for_timeout(50)
        assert page.evaluate("document.getElementById('made').getBoundingClientRect().top") < 800

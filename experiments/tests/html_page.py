"""Check that a page is self-contained and well formed."""

import re
from html.parser import HTMLParser

VOID = ("meta",)
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class Links(HTMLParser):
    """Collect a page's identifiers and everything it could load; check that its tags are paired."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_self_contained(page: str) -> None:
    links = Links()
    links.feed(page)
    assert links.open == []
    assert not links.names & {"script", "link", "img", "iframe", "object"}
    assert all(link.startswith("#") for link in links.links)
    assert len(links.ids) == len(set(links.ids))
    assert {link[1:] for link in links.links} | set(re.findall(r"url\(#([^)]*)\)", page)) <= set(links.ids)
    assert set(re.findall(r"https?://[^\"' ]*", page)) <= NAMESPACES
    assert "@import" not in page
    # Every colour is defined.
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= set(re.findall(r"(--[\w-]+):", page))
    assert "{{" not in page

"""Parses the pages that Google Drive sends before a download.

`gdrive.py` imports this module only when it receives a page, because importing `html.parser` takes long.
"""

from __future__ import annotations

import contextlib
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        title = re.search(r"<title>Google Drive - ([^<]{1,200})</title>", text)
        self.title = title[1] if title is not None else None
        self.action: str | None = None
        self.inputs: dict[str, str] = {}
        self._inside = False
        with contextlib.suppress(AssertionError):  # a page with invalid declarations has no download form
            self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "form" and attributes.get("id") == "download-form":
            self._inside, self.action = True, attributes.get("action")
        elif tag == "input" and self._inside and (name := attributes.get("name")):
            self.inputs[name] = attributes.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False

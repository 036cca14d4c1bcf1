"""Pages read back: their elements, and the data that stands in them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any


class Tags(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    @property
    def names(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def unpacked(page: str) -> str:
    """A report with its data and its long sections as they are in the browser."""

    def text(packed: re.Match[str]) -> str:
        found = gzip.decompress(base64.b64decode(packed[2])).decode()
        return found if packed[1] == "below" else f'<script type="application/json" id="data">{found}</script>'

    return re.sub(r'<script type="text/plain" id="(data|below)">([^<]*)</script>', text, page)


def json_in(page: str, name: str) -> Any:
    """What the JSON element of that name holds."""
    text = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    return json.loads(text[1])

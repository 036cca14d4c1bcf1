"""Pages read back: their elements, and the data that stands in them."""

from __future__ import annotations

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


def json_in(page: str, name: str) -> Any:
    """What the JSON element of that name holds."""
    text = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    return json.loads(text[1])

"""The search of the docs: words that readers type, and the page that answers among the first three results."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from .browser import Browser

SITE = Path(__file__).parents[2] / "build" / "site"
WANTED = {
    "continuous batching": "learn/continuous-batching", "quantization": "techniques/quantisation",
    "why is decode slow": "learn/batch", "KV cache size": "kv-cache", "cost per token": "questions/price-of-tokens",
    "which GPU": "questions/which-gpu", "MLA": "learn/attention", "goodput": "under-load",
    "chunked prefill": "learn/chunked-prefill", "TTFT": "learn/request",
    "head-of-line blocking": "learn/continuous-batching", "GEMV": "learn/batch", "GEMM": "learn/batch",
    "roofline": "why-decode", "flash attention": "techniques/flash-attention", "MFU": "nomenclature",
    "MBU": "nomenclature", "tail latency": "under-load", "RoPE": "shapes", "logits": "shapes",
}  # fmt: skip
FOUND = "[...document.querySelectorAll('ul.search > li > a')].map((each) => each.getAttribute('href'))"


@pytest.mark.parametrize(("words", "page"), WANTED.items())
def test_the_page_is_among_the_first_three(browser: Browser, words: str, page: str) -> None:
    if not (SITE / "search.html").exists():
        pytest.skip("make site has not been run")
    browser.visit(f"{(SITE / 'search.html').as_uri()}?q={quote(words)}")
    browser.wait("document.querySelectorAll('ul.search > li').length > 0")
    browser.settle()
    found = [str(each).partition("#")[0] for each in browser.value(FOUND)]
    assert f"docs/{page}.html" in list(dict.fromkeys(found))[:3], found[:6]
    assert not [each for each in found if each.startswith(("reports/", "CHANGELOG"))]

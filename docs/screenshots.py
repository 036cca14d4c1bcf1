"""The pictures of pages in the docs: `make screenshots` takes docs/images/*.png of reports/ and of the playground."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from report.browser import CHROMIUM, Browser, served  # noqa: E402 - the tests' own

from docs.generate.playground import FIRST, write_playground  # noqa: E402 - needs the path above
from rooflinekit.specs import names  # noqa: E402

SHOTS = (
    ("report-light", "llama-3-8b", "light", (1280, 1500)),
    ("report-dark", "deepseek-v3", "dark", (1280, 1500)),
    ("report-phone", "mixtral-8x7b", "light", (390, 1800)),
)
PLAYED = (
    ("playground-light", "light", (1440, 900)),
    ("playground-dark", "dark", (1440, 900)),
    ("playground-phone", "light", (390, 844)),
)


def main() -> None:
    """Take them all."""
    if CHROMIUM is None:
        sys.exit("chromium is not installed")

    def shot(name: str, address: str, theme: str, size: tuple[int, int], ready: str) -> None:
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        browser.size(*size)
        browser.visit(address, ready)
        browser.screenshot(ROOT / "docs" / "images" / f"{name}.png")

    with TemporaryDirectory() as scratch, Browser(Path(scratch) / "profile") as browser:
        for name, page, theme, size in SHOTS:
            shot(name, (ROOT / "reports" / f"{page}.html").as_uri(), theme, size, "document.readyState === 'complete'")
        folder = Path(scratch) / "playground"
        write_playground(folder, [FIRST], names("accelerator"))
        with served(folder) as address:
            for name, theme, size in PLAYED:
                shot(name, f"{address}/index.html", theme, size, "!!document.querySelector('.tile')")


if __name__ == "__main__":
    main()

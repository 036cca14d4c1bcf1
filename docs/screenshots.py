"""The pictures of report pages in the docs: `make screenshots` takes docs/images/report-*.png of reports/."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from report.browser import CHROMIUM, Browser  # noqa: E402 - the tests' own

SHOTS = (
    ("report-light", "llama-3-8b", "light", (1280, 1500)),
    ("report-dark", "deepseek-v3", "dark", (1280, 1500)),
    ("report-phone", "mixtral-8x7b", "light", (390, 1800)),
)


def main() -> None:
    """Take them all."""
    if CHROMIUM is None:
        sys.exit("chromium is not installed")
    with TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        for name, page, theme, size in SHOTS:
            browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            browser.size(*size)
            browser.open(ROOT / "reports" / f"{page}.html")
            browser.screenshot(ROOT / "docs" / "images" / f"{name}.png")


if __name__ == "__main__":
    main()

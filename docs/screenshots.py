"""The pictures in docs/images: `make screenshots` takes those of reports/, the playground, the docs and a terminal."""

from __future__ import annotations

import html
import os
import pty
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from report.browser import CHROMIUM, Browser, served  # noqa: E402 - the tests' own

from docs.generate.playground import FIRST, write_playground  # noqa: E402 - needs the path above
from rooflinekit.specs import names  # noqa: E402

SHOTS = (
    ("report-light", "llama-3-8b.html", "light", (1440, 900)),
    ("report-energy", "llama-3-8b.html#t=energy", "light", (1440, 1300)),
    ("report-dark", "deepseek-v3.html", "dark", (1440, 900)),
    ("report-phone", "mixtral-8x7b.html", "light", (390, 844)),
    ("report-print", "llama-3-8b.html", "print", (680, 960)),
)
PLAYED = (
    ("playground-light", "light", (1440, 900)),
    ("playground-dark", "dark", (1440, 900)),
    ("playground-phone", "light", (390, 844)),
)
FRONT = (
    ("docs-light", "light", (1440, 900)),
    ("docs-dark", "dark", (1440, 900)),
    ("docs-phone", "light", (390, 844)),
)

ASKED = ("rooflinekit", "estimate", "llama3-8b", "--batch", "32")
INKS = {"34": "#62c5fe", "33": "#c167bb", "90": "#9fb0a6"}  # of the terminal's colours: memory, arithmetic, the rest


def terminal() -> str:
    """A page with what a command prints to a terminal of 80 columns."""
    printed: list[bytes] = []

    def read(place: int) -> bytes:
        printed.append(os.read(place, 65_536))
        return b"\0"  # shows nothing here

    os.environ.update(COLUMNS="80", TERM="xterm-256color")
    pty.spawn([sys.executable, "-m", "rooflinekit", *ASKED[1:]], read)
    text = html.escape(f"$ {' '.join(ASKED)}\n{b''.join(printed).decode()}".replace("\r", ""))
    text = re.sub(r"\x1b\[(\d\d)m", lambda hit: f'<span style="color:{INKS.get(hit[1], "inherit")}">', text)
    text = text.replace("\x1b[0m", "</span>")
    style = "margin:0;padding:16px;background:#14171a;color:#e8eaed;font:15px/1.35 'DejaVu Sans Mono',monospace"
    body = '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#14171a">'
    return f'{body}<pre style="{style}">{text}</pre>'


def main() -> None:
    """Take them all."""
    if CHROMIUM is None:
        sys.exit("chromium is not installed")
    front = ROOT / "build" / "site" / "docs" / "index.html"
    if not front.exists():
        sys.exit("the documentation is not built: use make screenshots")

    def shot(name: str, address: str, theme: str, size: tuple[int, int], ready: str) -> None:
        told = [{"name": "prefers-color-scheme", "value": "dark" if theme == "dark" else "light"}]
        browser.send("Emulation.setEmulatedMedia", media="print" if theme == "print" else "", features=told)
        browser.size(*size)
        browser.visit(address, ready)
        if theme == "print":
            browser.value("dispatchEvent(new Event('beforeprint'))")
        browser.screenshot(ROOT / "docs" / "images" / f"{name}.png")

    with TemporaryDirectory() as scratch, Browser(Path(scratch) / "profile") as browser:
        for name, page, theme, size in SHOTS:
            shot(name, f"{(ROOT / 'reports').as_uri()}/{page}", theme, size, "document.readyState === 'complete'")
        (Path(scratch) / "terminal.html").write_text(terminal(), encoding="utf-8")
        shot(
            "terminal",
            (Path(scratch) / "terminal.html").as_uri(),
            "dark",
            (760, 418),
            "document.readyState === 'complete'",
        )
        for name, theme, size in FRONT:
            shot(name, front.as_uri(), theme, size, "document.readyState === 'complete'")
        folder = Path(scratch) / "playground"
        write_playground(folder, [FIRST], names("accelerator"))
        with served(folder) as address:
            for name, theme, size in PLAYED:
                shot(name, f"{address}/index.html", theme, size, "!!document.querySelector('.tile')")


if __name__ == "__main__":
    main()

"""The pictures in docs/images: `make screenshots` takes those of reports/, the playground, the docs and a terminal.

    python docs/screenshots.py [--check]

Each keeps the words that it shows; `--check` names those whose words at the top are others now, where Chromium is.
"""

from __future__ import annotations

import html
import math
import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
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
    text = text.replace("\x1b[1m", '<span style="font-weight:bold">').replace("\x1b[0m", "</span>")
    style = "margin:0;padding:16px;background:#14171a;color:#e8eaed;font:15px/1.35 'DejaVu Sans Mono',monospace"
    body = '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#14171a">'
    return f'{body}<pre style="{style}">{text}</pre>'


BOARD = "!!document.querySelector('.tile') && byId('found').children.length > 0 && BOARD.left.length === 0"
LOADED = "document.readyState === 'complete'"
IN_SIGHT = """(() => {
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const words = [], range = document.createRange();
  while (nodes.nextNode()) {
    range.selectNode(nodes.currentNode);
    const { top, bottom, width, height } = range.getBoundingClientRect(), inside = bottom > 0 && top < innerHeight;
    if (inside && width && height && nodes.currentNode.parentElement.checkVisibility({ visibilityProperty: true })) {
      words.push(nodes.currentNode.data.trim());
    }
  }
  return words.filter(Boolean).join(" ");
})()"""
TOP = 400  # characters that are compared: headline and tiles; further down a font decides what is in sight


def shot(  # noqa: PLR0913, PLR0917 - what is seen, and how
    browser: Browser, out: Path, address: str, theme: str, size: tuple[int, int], ready: str = LOADED
) -> None:
    """One picture, with its words."""
    told = [{"name": "prefers-color-scheme", "value": "dark" if theme == "dark" else "light"}]
    browser.send("Emulation.setEmulatedMedia", media="print" if theme == "print" else "", features=told)
    browser.size(*size)
    browser.visit(address, ready)
    if theme == "print":
        browser.value("dispatchEvent(new Event('beforeprint'))")
    browser.screenshot(out)
    words = PngInfo()
    words.add_itxt("Description", browser.value(IN_SIGHT))
    with Image.open(out) as picture:
        picture.save(out, pnginfo=words, optimize=True)
    browser.send("Emulation.setEmulatedMedia", media="", features=[])


def of_reports(browser: Browser, folder: Path) -> None:
    """The pictures of the example pages, and of a terminal."""
    for name, page, theme, size in SHOTS:
        shot(browser, folder / f"{name}.png", f"{(ROOT / 'reports').as_uri()}/{page}", theme, size)
    printed = folder / "terminal.html"
    printed.write_text(terminal(), encoding="utf-8")
    lines = printed.read_text(encoding="utf-8").count("\n")
    shot(browser, folder / "terminal.png", printed.as_uri(), "dark", (760, 32 + math.ceil(20.25 * lines)))
    printed.unlink()


def of_site(browser: Browser, folder: Path) -> None:
    """The pictures of the docs, which are built, and of the playground, which is made for them."""
    front = ROOT / "build" / "site" / "docs" / "index.html"
    if not front.exists():
        sys.exit("the documentation is not built: use make screenshots")
    for name, theme, size in FRONT:
        shot(browser, folder / f"{name}.png", front.as_uri(), theme, size)
    with TemporaryDirectory() as scratch:
        write_playground(Path(scratch), [FIRST], names("accelerator"))
        with served(Path(scratch)) as address:
            for name, theme, size in PLAYED:
                shot(browser, folder / f"{name}.png", f"{address}/index.html", theme, size, BOARD)


def _words(path: Path) -> str:
    with Image.open(path) as picture:
        return str(picture.info.get("Description", ""))[:TOP]


def stale(folder: Path) -> Iterator[str]:
    """The pictures whose words at the top are others than those of the pictures in a folder, which were taken now."""
    for new in sorted(folder.glob("*.png")):
        if not (IMAGES / new.name).exists() or _words(new) != _words(IMAGES / new.name):
            yield new.name


def main() -> None:
    """Take them all, or compare them."""
    check = sys.argv[1:] == ["--check"]
    if CHROMIUM is None and check:
        print("chromium is not installed: the pictures are not compared")  # noqa: T201
        return
    if CHROMIUM is None:
        sys.exit("chromium is not installed")
    aside = TemporaryDirectory(ignore_cleanup_errors=True)  # Chromium may still write to its profile
    with aside as scratch, Browser(Path(scratch) / "profile") as browser:
        folder = Path(scratch) if check else IMAGES
        of_reports(browser, folder)
        of_site(browser, folder)
        if check and (found := ", ".join(stale(folder))):
            sys.exit(f"take them again with `make screenshots`: {found}")


if __name__ == "__main__":
    main()

"""Links to source files and folders lead to pages of the site that show them."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.util.osutil import relative_uri

ROOT = Path(__file__).parents[2]
SHOWN = {"", ".py", ".yaml", ".json", ".csv"}
LONGEST = 300_000  #: bytes of a file that are shown


def target_of(app: Any, page: str, address: str) -> Path | None:
    """The file or folder of the repository that a link in a page means."""
    path = Path(os.path.normpath((ROOT / page).parent / address))
    inside = path.is_relative_to(ROOT) and path != ROOT
    return path if inside and path.exists() and path.suffix in SHOWN else None


def collect(app: Any, doctree: nodes.document) -> None:
    """Replace downloads of source files, and links to folders, by links to their pages."""
    page = app.env.docname
    found = [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]
    for node in found:
        path = target_of(app, page, node["reftarget"].partition("#")[0])
        if path is None or (isinstance(node, addnodes.pending_xref) and not path.is_dir()):
            continue
        name = path.relative_to(ROOT).as_posix()
        app.env.metadata[page].setdefault("sources", []).append(name)
        uri = relative_uri(app.builder.get_target_uri(page), app.builder.get_target_uri(f"source/{name}"))
        link = nodes.reference("", "", *node.children, internal=True, refuri=uri)
        node.replace_self(link)


def pages(app: Any) -> Iterator[tuple[str, dict[str, str], str]]:
    """One page for each file or folder that some page links to."""
    names = {name for data in app.env.metadata.values() for name in data.get("sources", [])}
    for name in sorted(names):
        path = ROOT / name
        body = listing(path) if path.is_dir() else code(path)
        yield f"source/{name}", {"title": name, "body": f"<h1>{html.escape(name)}</h1>\n{body}"}, "page.html"


def listing(folder: Path) -> str:
    """What a folder holds."""
    files = sorted(f"{item.name}/" if item.is_dir() else item.name for item in folder.iterdir() if item.name[0] != "_")
    return "<ul>" + "".join(f"<li><code>{html.escape(name)}</code></li>" for name in files) + "</ul>"


def code(path: Path) -> str:
    """A file with its syntax coloured."""
    text = path.read_text(encoding="utf-8")[:LONGEST]
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return f'<div class="highlight-source notranslate">{highlight(text, lexer, HtmlFormatter())}</div>'


def setup(app: Any) -> dict[str, bool]:
    """Two hooks of Sphinx."""
    app.connect("doctree-read", collect, priority=100)  # before Sphinx collects downloads
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

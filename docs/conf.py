"""The site: `make site` builds it into build/site from the same pages that the repository shows.

The source folder is the repository's root, so that links between docs/, reports/ and the files beside README.md are the
same on the site and in the repository. Nothing is loaded from the network, neither when built nor when read.
"""

from __future__ import annotations

import os
import sys
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_site")]

import rooflinekit  # noqa: E402 - needs the path above
from rooflinekit.specs.files import read_yaml  # noqa: E402 - likewise

project = "rooflinekit"
author = "The rooflinekit developers"
project_copyright = "The rooflinekit developers, Apache License 2.0"
release = version = rooflinekit.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "source_pages"]
root_doc = "docs/index"
include_patterns = ["docs/**", "reports/*.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = ["docs/_site"]
html_extra_path = ["_site/index.html", "_site/.nojekyll"]  # hosts of pages keep folders that begin with _

nb_execution_mode = "off"  # notebooks are kept with their outputs
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a report may begin below its title

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types in signatures that have no page of their own

pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
highlight_language = "none"
default_role = "code"
html_theme = "furo"
html_title = f"rooflinekit {version}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # summaries are fetched, which a browser refuses to a page of a file


def keep_colons(*event: Any) -> None:
    """Give back what napoleon takes for the type of an attribute: "None above the knee: the queue has no end"."""
    _, what, _, _, _, lines = event
    kind = [line for line in lines if line.startswith(":type: ")]
    if what == "attribute" and kind:
        rest = " ".join(line for line in lines if line and line not in kind)
        lines[:] = [f"{kind[0].removeprefix(':type: ')}: {rest}", ""]


SEARCHED = read_yaml(HERE / "_site" / "search.yaml")
"""Words that readers search for, by the page that answers them."""


def add_words(app: Any, page: str, source: list[str]) -> None:
    """Index entries below the title of a page: the search puts them first."""
    if page in SEARCHED:
        title, _, rest = source[0].partition("\n")
        words = ", ".join(f"! {word}" for word in SEARCHED[page])
        source[0] = f"{title}\n\n```{{index}} {words}\n```\n{rest}"


def leave_out(app: Any, env: Any) -> None:
    """Reports and the changelog do not stand among the results of a search."""
    for page in env.found_docs:
        if page.startswith("reports/") or page == "CHANGELOG":
            env.metadata[page]["nosearch"] = ""


html_baseurl = os.environ.get("SITE_URL", "")
"""Where the site will stand: links to it have a picture then, whose address has to be a whole one."""


def add_preview(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Title, first words and first picture of a page, for whoever shows a link to it."""
    if doctree is None or not html_baseurl:
        return
    words = next((each.astext() for each in doctree.findall(nodes.paragraph)), project)
    image = next((each["uri"] for each in doctree.findall(nodes.image) if each["uri"].endswith(".png")), PREVIEW)
    told = {"og:title": context["title"], "og:description": " ".join(words.split())[:200],
            "og:image": f"{html_baseurl.rstrip('/')}/_images/{Path(image).name}"}  # fmt: skip
    tags = (f'<meta property="{name}" content="{escape(str(value))}">' for name, value in told.items())
    context["metatags"] += "\n".join(tags)


PREVIEW = "playground-light.png"


def setup(app: Any) -> None:
    """After napoleon, which has priority 500."""
    app.connect("autodoc-process-docstring", keep_colons, priority=600)
    app.connect("source-read", add_words)
    app.connect("html-page-context", add_preview)
    app.connect("env-updated", leave_out)

"""The long description of the package: the README, whose links hold on the page of an index too.

With ROOFLINEKIT_ADDRESS=https://host/owner/rooflinekit in the environment of a build they go to the tag of this version
there, and pictures come from it. Without an address pictures are left out, and links are plain words.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
_PICTURE = re.compile(r"<picture>.*?</picture>\n*|^!\[[^]]*\]\([^)]*\)\n*", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?![a-z]+:|#)([^)]+)\)")
_SOURCE = re.compile(r'(!\[[^]]*\]\(|src(?:set)?=")(?![a-z]+:)([^)"]+)')


def long_description(readme: str, address: str, version: str) -> str:
    """The README with whole addresses, or without what needs one.

    >>> long_description("see [it](docs/it.md)", "https://host/us/it", "1.0")
    'see [it](https://host/us/it/blob/v1.0/docs/it.md)'
    >>> long_description("see [it](docs/it.md)", "", "1.0")
    'see it'
    """
    if not address:
        return _LINK.sub(r"\1", _PICTURE.sub("", readme))
    readme = _SOURCE.sub(rf"\g<1>{address}/raw/v{version}/\g<2>", readme)
    return _LINK.sub(rf"[\g<1>]({address}/blob/v{version}/\g<2>)", readme)


if __name__ == "__main__":
    from setuptools import setup

    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = os.environ.get("ROOFLINEKIT_ADDRESS", "").rstrip("/")
    setup(
        long_description=long_description(
            (HERE / "README.md").read_text(encoding="utf-8"), address, project["version"]
        ),
        long_description_content_type="text/markdown",
        project_urls={"Source": address} if address else {},
    )

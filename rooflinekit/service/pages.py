"""What a browser finds at `/`: the built site with its playground, or else a page on one model."""

from __future__ import annotations

import sys
from mimetypes import guess_type
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory

import anyio

from rooflinekit.model.types.errors import InputError

MODEL = "llama-3-8b"
"""What the page shows first where no site is built."""
SITE = Path(__file__).parents[2] / "build" / "site"
"""Where `make site` and `make playground` of this checkout write."""
_FIRST = "playground/index.html"
_LONGEST = 300.0  # seconds that the page may take to be made
_COMMAND = (sys.executable, "-c", "from rooflinekit.service.pages import write_page; write_page()")


class Pages:
    """Files by the path that a browser asks for. Only those that a folder held at the start are ever opened."""

    def __init__(self, folder: Path | None) -> None:
        """Raises InputError for a folder without a playground."""
        root = folder or SITE
        self.files = {path.relative_to(root).as_posix(): path for path in sorted(root.glob("**/*"))
                      if path.is_file() and not path.is_symlink()}  # fmt: skip
        if _FIRST not in self.files:
            self.files = {}
            if folder is not None:
                raise InputError(f"{folder} holds no {_FIRST}; make it with `make playground`, or leave --site out")
        self._made = b""
        self._making = anyio.Lock()

    async def page(self, path: str) -> tuple[bytes, str] | None:
        """Content and type of a path; None for one that is not there."""
        name = f"{path}index.html" if path.endswith("/") else path
        if name in self.files:
            return await anyio.Path(self.files[name]).read_bytes(), guess_type(name)[0] or "application/octet-stream"
        return (await self._one_model(), "text/html") if not path and not self.files else None

    async def _one_model(self) -> bytes:
        """The page on one model, made by a process of its own when it is first asked for."""
        async with self._making:
            if not self._made:
                try:
                    with anyio.fail_after(_LONGEST):
                        self._made = (await anyio.run_process(_COMMAND, stderr=None)).stdout
                except (TimeoutError, CalledProcessError):
                    raise InputError("the page could not be made; the server's log says why") from None
        return self._made


def write_page() -> None:
    """Write the page on one model to the standard output."""
    from rooflinekit.report.page.front import write_report  # noqa: PLC0415 - in a process of its own

    with TemporaryDirectory() as folder:
        sys.stdout.buffer.write(write_report(Path(folder, "page.html"), MODEL, batch=32).path.read_bytes())

"""Pages for a browser at `/`: the built site with its playground, or else a page on one model."""

from __future__ import annotations

from mimetypes import guess_type
from pathlib import Path
from tempfile import TemporaryDirectory

from rooflinekit.model.types.errors import InputError

MODEL = "llama-3-8b"
"""Model of the first page where no site is built."""
SITE = Path(__file__).parents[2] / "build" / "site"
"""Folder into which `make site` and `make playground` of this checkout write."""
_FIRST = "playground/index.html"


class Pages:
    """Files by the path that a browser asks for. Only those that a folder held at the start are ever opened."""

    def __init__(self, folder: Path | None) -> None:
        """Raises InputError for a folder without a playground."""
        root = folder or SITE
        self.files = {
            path.relative_to(root).as_posix(): path
            for path in sorted(root.glob("**/*"))
            if path.is_file() and not path.is_symlink()
        }
        if _FIRST not in self.files:
            self.files = {}
            if folder is not None:
                raise InputError(f"{folder} holds no {_FIRST}; make it with `make playground`, or leave --site out")

    def file(self, path: str) -> tuple[Path, str] | None:
        """The file of a path and its type; None for one that is not there."""
        name = f"{path}index.html" if path.endswith("/") else path
        if name not in self.files:
            return None
        return self.files[name], guess_type(name)[0] or "application/octet-stream"


def made_page() -> bytes:
    """The page on one model."""
    from rooflinekit.report.page.front import write_report  # noqa: PLC0415 - takes a while

    with TemporaryDirectory() as folder:
        return write_report(Path(folder, "page.html"), MODEL, batch=32).path.read_bytes()

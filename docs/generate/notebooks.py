"""Run the notebooks in docs/notebooks and keep their outputs: `python -m docs.generate.notebooks`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "notebooks"


def main() -> None:
    """Run each in a kernel of its own, and write it back; the packages are those that build the site."""
    import nbclient  # noqa: PLC0415
    import nbformat  # noqa: PLC0415

    for path in sorted(FOLDER.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(book, record_timing=False).execute()
        book.metadata["language_info"] = {"name": "python"}
        nbformat.write(book, path)


if __name__ == "__main__":
    main()

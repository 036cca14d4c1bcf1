"""Standard input in place of a file that is called "-", so that a paste works."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.delimited import standard_input
from rooflinekit.specs.places import admit

_NAME = "standard-input"


@contextmanager
def pasted(files: Sequence[str]) -> Iterator[list[str]]:
    """The files, one of which may be "-"; what is read for it is kept in a file until the command is done."""
    if "-" not in files:
        yield [*files]
        return
    if files.count("-") > 1:
        raise InputError("'-' stands for standard input, which can be read but once")
    admit(standard_input())
    data = sys.stdin.buffer.read()
    if not data.strip():
        raise InputError("standard input is empty; paste a result, or pipe a file in")
    from tempfile import TemporaryDirectory  # most commands read none

    with TemporaryDirectory() as folder:
        path = Path(folder, f"{_NAME}{_suffix(data)}")
        path.write_bytes(data)
        yield [str(path) if name == "-" else name for name in files]


def _suffix(data: bytes) -> str:
    """The suffix of a file with this content: readers of tables and of measurements go by it.

    >>> _suffix(b'{"a": 1}'), _suffix(b"op,gpu,m"), _suffix(b"Mean TTFT (ms): 3")
    ('.json', '.csv', '.txt')
    """
    first, _, rest = data.strip().partition(b"\n")
    if first[:1] == b"{" and first.rstrip().endswith(b"}") and rest:
        return ".jsonl"
    if first[:1] == b"{" or first.lstrip()[:2] in (b"[{", b"["):
        return ".json"
    return ".csv" if first.count(b",") > 1 and b": " not in first else ".txt"

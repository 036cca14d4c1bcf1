"""Parts of every page: templates, JSON that cannot end its element, scripts that are named by their hashes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def filled(template: Path, parts: Mapping[str, str]) -> str:
    """A template with its places filled; what is put in is not read again."""
    text = template.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda hit: parts[hit[1]], text)


def script_hashes(page: str) -> str:
    """The inline scripts of a page as a content security policy names them: no other may run.

    >>> script_hashes("<script>1</script>")
    "'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def packed(text: str) -> bytes:
    """Text as pages unpack it; equal text gives equal bytes."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def script_json(data: object) -> str:
    """JSON that cannot end the script element it stands in; what is no number is null."""
    text = strict_json(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def strict_json(data: object, **how: Any) -> str:
    """JSON in which what is no finite number is null; `how` is for `json.dumps`."""
    try:
        return json.dumps(data, allow_nan=False, **how)
    except ValueError:
        return json.dumps(finite(data), allow_nan=False, **how)


def finite(data: Any) -> Any:
    """Replace numbers that are not finite by None, which JSON and CSV do not know.

    >>> finite({"knee": [1.0, float("inf")]})
    {'knee': [1.0, None]}
    """
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data

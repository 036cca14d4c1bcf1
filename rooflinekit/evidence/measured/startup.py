"""What vLLM says of its memory when it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.units import GB, GIB

__all__ = ["StartUp", "is_startup", "read_startup"]

_SIZES = {"GiB": GIB, "GB": GB}
_KV_BYTES = re.compile(r"Available KV cache memory: (-?[\d.]+) (GiB|GB)")
_KV_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r"# GPU blocks: (\d+)")
_WEIGHTS = re.compile(r"(?:Loading model weights took|Model loading took) ([\d.]+) (GiB|GB)")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


@dataclass(frozen=True)
class StartUp:
    """Memory of one accelerator as the engine found it; None where the log does not say.

    kv_bytes: room for the cache [B]; kv_tokens: tokens that fit in it; weight_bytes [B]; max_len: longest request
    [tokens] and how many of that length fit.
    """

    source: str
    kv_bytes: float | None = None
    kv_tokens: int | None = None
    weight_bytes: float | None = None
    max_len: int | None = None
    concurrency: float | None = None


def is_startup(text: str) -> bool:
    """Whether a text is a log with any of the lines."""
    return any(pattern.search(text) for pattern in (_KV_BYTES, _KV_TOKENS, _BLOCKS, _CONCURRENCY))


def read_startup(source: str, text: str) -> StartUp:
    """Read the last of each line: an engine that restarts says them again.

    Versions before 0.7.3 give blocks and the longest request instead of tokens: tokens = concurrency · longest.

    >>> log = "GPU KV cache size: 178,880 tokens, Maximum concurrency for 40,960 tokens per request: 4.37x"
    >>> read_startup("log", log).kv_tokens
    178880

    Raises SpecError if the cache has no room.
    """
    kv, weights = (_last(pattern, text) for pattern in (_KV_BYTES, _WEIGHTS))
    tokens, most = _last(_KV_TOKENS, text), _last(_CONCURRENCY, text)
    longest = int(most[0].replace(",", "")) if most else None
    times = float(most[1]) if most else None
    room = int(tokens[0].replace(",", "")) if tokens else round(times * longest) if times and longest else None
    size = _bytes(kv)
    if (size is not None and size <= 0) or room == 0:
        raise SpecError(f"{source}: the engine found no room for its cache")
    return StartUp(source, size, room, _bytes(weights), longest, times)


def _last(pattern: re.Pattern[str], text: str) -> tuple[str, ...] | None:
    hits = list(pattern.finditer(text))
    return hits[-1].groups() if hits else None


def _bytes(found: tuple[str, ...] | None) -> float | None:
    return float(found[0]) * _SIZES[found[1]] if found else None

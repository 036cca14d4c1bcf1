"""Cached tokens that a full-attention layer reads and keeps, where an engine is told not to use them all."""

from __future__ import annotations

import re
from typing import Literal

from rooflinekit.model.graph.symbol import quantity
from rooflinekit.model.types.batch import Sequences
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, minimum

_PAGE = 16
"""Tokens of a page whose smallest and largest keys stand for it (Quest, arXiv:2406.10774, section 4.1)."""

_PATTERN = re.compile(
    r"(?P<kind>full|(?:window|evict):(?P<n>[1-9]\d*)|topk:(?P<k>[1-9]\d*)(?:/(?P<page>[1-9]\d*))?"
    r"|sink:(?P<first>[1-9]\d*)\+(?P<recent>[1-9]\d*))"
)
_CAVEATS = {
    "window": "a model that was trained on all keys fails once the first tokens are gone (arXiv:2309.17453)",
    "sink": "what lies between the first and the recent tokens is forgotten (StreamingLLM, arXiv:2309.17453)",
    "topk": "keys outside the chosen pages are not read, though all are stored (Quest, arXiv:2406.10774)",
    "evict": "dropped keys cannot come back (H2O, arXiv:2306.14048; SnapKV, arXiv:2404.14469); the whole prompt "
    "is in the cache during prefill",
}


@dataclass(frozen=True, slots=True)
class KVPolicy:
    """A budget of keys for layers with full attention; a layer's own window stays where it is smaller.

    window: a token sees the last `budget` tokens. sink: the first `sinks` and the recent others, `budget` in all.
    topk: a decoding query reads its best `budget` keys, chosen by a summary of each page; all are stored. evict:
    `budget` tokens are kept once the prompt has been prefilled. Chunked layers keep their chunk.
    """

    kind: Literal["full", "window", "sink", "topk", "evict"] = "full"
    budget: int = quantity("w", "keys that the cache policy lets a token see or keeps", default=0)
    sinks: int = 0
    page: int = 0

    def __str__(self) -> str:
        """Text that `parse_kv_policy` reads."""
        if self.kind == "full":
            return "full"
        if self.kind == "sink":
            return f"sink:{self.sinks}+{self.budget - self.sinks}"
        return f"{self.kind}:{self.budget}" + (f"/{self.page}" if self.kind == "topk" and self.page != _PAGE else "")

    @property
    def caveat(self) -> str | None:
        """Caveat of the answer: the effect on quality."""
        if self.kind == "full":
            return None
        return f"kv_policy {self}: {_CAVEATS[self.kind]}; its effect on quality is not modelled"

    def in_prefill(self, own: int | None) -> int | None:
        """Most keys that a prompt token sees; `own` is the layer's window.

        >>> parse_kv_policy("sink:4+2044").in_prefill(None), parse_kv_policy("evict:2048").in_prefill(None)
        (2048, None)
        """
        return self._least(own) if self.kind in ("window", "sink") else own

    def in_decode(self, own: int | None) -> int | None:
        """Most keys that a decoding query sees."""
        return own if self.kind == "full" else self._least(own)

    def stored(self, own: int | None) -> int | None:
        """Most tokens that a layer keeps; None if it keeps all.

        >>> parse_kv_policy("topk:2048").stored(None), parse_kv_policy("evict:2048").stored(1024)
        (None, 1024)
        """
        return own if self.kind in ("full", "topk") else self._least(own)

    def summaries(self, own: int | None, vectors: int = 2) -> float:
        """Smallest and largest key of each page, as a share of what is cached: 2/(vectors·page) where they are needed.

        vectors: what a token caches, in widths of a key: 2 for keys and values, 1 for MLA's latent.

        >>> parse_kv_policy("topk:2048").summaries(None)
        0.0625
        """
        needed = self.kind == "topk" and (own is None or own > self.budget)
        return 2.0 / (vectors * self.page) if needed else 0.0

    def seen(self, phase: Sequences, own: int | None, vectors: int = 2) -> tuple[Numeric, Numeric]:
        """Query-key pairs, and keys read, of decoding queries in a layer with the window `own`, summaries included.

        >>> parse_kv_policy("topk:2048").seen(Sequences(1.0, 1.0, 32767.0), None)  # 2,048 keys, 2,048 summaries
        (4096.0, 4096.0)
        """
        window, share = self.in_decode(own), self.summaries(own, vectors)
        pairs = phase.pairs(window)
        if self.kind != "topk":  # all queries of a sequence share what was kept
            return pairs, phase.keys_read(window)
        keys = minimum(phase.keys_read(own), pairs)  # no more than all queries choose together
        return pairs + share * phase.pairs(own), keys + share * phase.keys_read(own)

    def _least(self, own: int | None) -> int:
        return self.budget if own is None else min(own, self.budget)


FULL = KVPolicy()
"""Every key is kept and read."""


def parse_kv_policy(text: str | KVPolicy) -> KVPolicy:
    """Read `full`, `window:4096`, `sink:4+2044`, `topk:2048`, `topk:2048/32` (tokens of a page) or `evict:2048`.

    >>> parse_kv_policy("sink:4+2044")
    KVPolicy(kind='sink', budget=2048, sinks=4, page=0)
    """
    if isinstance(text, KVPolicy):
        return text
    found = _PATTERN.fullmatch(str(text).strip().lower())
    if found is None:
        raise InputError(
            f"unknown kv_policy {text!r}; use full, window:4096, sink:4+2044 (first + recent tokens), topk:2048 or "
            "evict:2048"
        )
    if found["first"]:
        return KVPolicy("sink", int(found["first"]) + int(found["recent"]), int(found["first"]))
    if found["k"]:
        return KVPolicy("topk", int(found["k"]), 0, int(found["page"] or _PAGE))
    if found["n"]:
        return KVPolicy("window" if found["kind"].startswith("window") else "evict", int(found["n"]))
    return FULL

"""Split-KV decode attention: how many parts a context is cut into so that a small batch fills the cores.

One query of one KV head is one tile, so a decode step has B·K of them; fewer than there are cores leave the rest, and
their bandwidth, idle. Flash-Decoding (Dao et al. 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html) cuts
the context into parts, computes them side by side, and merges the partial results.
"""

from __future__ import annotations

from dataclasses import dataclass

_BLOCK = {64: 256, 128: 128}  # keys of a block by head width up to; 64 for wider heads
_MOST = 128  # parts at most
_ENOUGH, _NEARLY = 0.8, 0.85


@dataclass(frozen=True, slots=True)
class SplitKV:
    """A decode attention cut in parts.

    tiles: (sequence, KV head) pairs; splits: parts of each context; occupancy: share of the cores' time that has a
    part to work on, by whole waves; whole: the same without splitting; merge_bytes: partial results written and read.
    """

    tiles: int
    splits: int
    occupancy: float
    whole: float
    merge_bytes: float


def split_kv(batch: int, heads: tuple[int, int, int], context: int, cores: int) -> SplitKV:
    """Parts of the context that FlashAttention-2 chooses: the fewest within 85 % of the best occupancy.

    Args:
        batch: sequences.
        heads: query heads, KV heads, head width, on this accelerator.
        context: keys of each sequence.
        cores: of the accelerator (SMs); FlashAttention-2 runs two tiles on each.

    A context has ⌈context/block⌉ blocks, and s parts of them fill w = tiles·s/slots waves, of which w/⌈w⌉ is busy.
    From 0.8 tiles a slot on, nothing is split (`num_splits_heuristic` in FlashAttention's flash_api.cpp). A part leaves
    its output in fp32 and one logarithm of a sum for each query head: 2·s·B·H·(d + 1)·4 bytes, written and read.

    >>> split_kv(1, (32, 8, 128), 32_768, 132)  # Llama-3-8B on H100: 8 tiles for 264 slots
    SplitKV(tiles=8, splits=29, occupancy=0.879, whole=0.0303, merge_bytes=957696.0)
    """
    queries, kv_heads, width = heads
    tiles, slots = batch * kv_heads, 2 * cores
    blocks = -(-context // next((size for limit, size in _BLOCK.items() if width <= limit), 64))
    whole = _busy(tiles, slots)
    if tiles >= _ENOUGH * slots:
        return SplitKV(tiles, 1, whole, whole, 0.0)
    distinct = {-(-blocks // parts): parts for parts in range(min(_MOST, slots, blocks), 0, -1)}.values()
    busy = {parts: _busy(tiles * parts, slots) for parts in distinct}
    splits = min(parts for parts, share in busy.items() if share >= _NEARLY * max(busy.values()))
    merged = 0.0 if splits == 1 else 8.0 * splits * batch * queries * (width + 1)
    return SplitKV(tiles, splits, busy[splits], whole, merged)


def _busy(tiles: int, slots: int) -> float:
    """Share of the slots that have work, over whole waves."""
    return tiles / slots / -(-tiles // slots)

"""Memory behind the accelerators' own for cache blocks: host, NVMe, remote; nearest first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rooflinekit.estimation.options import quantity
from rooflinekit.load.scene import CacheTier
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.units import GB, GIB

_WORDS = ("sync", "shared")
_LIKE = "write it like host=200GB,50GB/s,10us or remote=20TB,5GB/s,1ms,shared"


def read_tiers(given: str | Sequence[str] | None) -> tuple[CacheTier, ...]:
    """Read what a user types for cache tiers, nearest first.

    >>> read_tiers("host=200GB,50GB/s,10us")[0].bandwidth, read_tiers(["nvme=2TB,6GB/s,100us,sync"])[0].waits
    (50000000000.0, True)
    """
    tiers = tuple(map(_tier, (given,) if isinstance(given, str) else given or ()))
    for place, tier in enumerate(tiers):
        if tier.name in [other.name for other in tiers[:place]]:
            raise WorkloadError(f"cache_tier {tier.name!r} is given twice; nearest first, each once")
    return tiers


def _tier(text: str) -> CacheTier:
    name, sign, rest = text.partition("=")
    if not sign or not name.strip():
        raise WorkloadError(f"cache_tier {text!r} is no name=size; {_LIKE}")
    sizes: dict[str, float] = {}
    parts = [part.strip() for part in rest.split(",")]
    for part in parts:
        if part not in _WORDS:
            key, value = _size(text, part)
            if key in sizes:
                raise WorkloadError(f"cache_tier {text!r} has two values of {key}; {_LIKE}")
            sizes[key] = value
    if "capacity" not in sizes:
        raise WorkloadError(f"cache_tier {text!r} lacks its size; {_LIKE}")
    waits, shared = (word in parts for word in _WORDS)
    rest_of = (sizes.get("bandwidth"), sizes.get("latency", 0.0), sizes.get("usd_gb_hour"))
    return CacheTier(name.strip(), sizes["capacity"], *rest_of, waits, shared)


def _size(text: str, part: str) -> tuple[str, float]:
    """Kind and value of a part of a tier, by its unit."""
    try:
        if part.endswith("$/GBh"):
            kind, value = "usd_gb_hour", quantity(part.removesuffix("$/GBh"))
        elif part.endswith("/s"):
            kind, value = "bandwidth", quantity(part, "GB/s") * GB
        elif part.endswith("s"):
            kind, value = "latency", quantity(part[:-2], "") * 1e-6 if part.endswith("us") else quantity(part, "s")
        else:
            kind, value = "capacity", quantity(part, "GiB") * GIB
    except ValueError:
        raise WorkloadError(f"cache_tier {text!r}: {part!r} is no size, rate, time or price; {_LIKE}") from None
    free = kind in ("usd_gb_hour", "latency")
    if not (0.0 < value < 1e30 or (free and value == 0.0)) or part[-1:].isdigit():
        least = "at least" if free else "above"
        said = "is too large" if value >= 1e30 else f"must be {least} 0, with its unit"
        raise WorkloadError(f"cache_tier {text!r}: {part!r} {said}; {_LIKE}")
    return kind, value


class Filled(NamedTuple):
    """A memory with all before it.

    tokens: that they hold for a replica; share: of the prompt tokens that they find, and what of it is here; bandwidth
    [B/s]; load_s: in which what a mean prompt has here is loaded; usd_hour: of a replica.
    """

    tier: CacheTier
    tokens: float
    share: float
    from_here: float
    bandwidth: float
    load_s: float
    usd_hour: float


def fill(  # noqa: PLR0913 - what is filled, with what, for whom
    tiers: Sequence[CacheTier],
    pool: float,
    share: Callable[[float], float],
    *,
    replicas: float,
    prompt_bytes: float,
    token_bytes: float,
    own_link: Callable[[str], float],
) -> Iterator[Filled]:
    """Fill tiers behind a pool of so many tokens; `share` says what a cache of so many finds."""
    tokens, before = pool, share(pool)
    for tier in tiers:
        size = tier.capacity / (replicas if tier.shared else 1.0)
        tokens += size / token_bytes
        found = share(tokens)
        link = tier.bandwidth or own_link(f"cache tier {tier.name} without a rate")
        load = (found - before) * prompt_bytes / link + (tier.latency if found > before else 0.0)
        yield Filled(tier, tokens, found, found - before, link, load, size / GB * (tier.usd_gb_hour or 0.0))
        before = found


class Store:
    """A tier of one run: hashes of blocks, the least recently used first."""

    def __init__(self, tier: CacheTier, hash_bytes: float, bandwidth: float) -> None:
        self.name, self.waits, self.shared, self.latency = tier.name, tier.waits, tier.shared, tier.latency
        self.room = int(tier.capacity / hash_bytes)
        self.hash_s = hash_bytes / bandwidth  #: to load the blocks of one hash [s]
        self.held: OrderedDict[int, None] = OrderedDict()
        self.free_at = 0.0  #: when the link has loaded all that was asked of it [s]
        self.loaded = self.stored = 0  #: hashes

    def load(self, now: float, count: int) -> float:
        """Time at which so many hashes that are asked for now are there [s]: one load after the other."""
        self.free_at = max(now, self.free_at) + self.latency + count * self.hash_s
        self.loaded += count
        return self.free_at

    def keep(self, key: int) -> int | None:
        """Take a hash in; returns the one that leaves for it."""
        self.stored += key not in self.held
        self.held[key] = None
        self.held.move_to_end(key)
        return self.held.popitem(last=False)[0] if len(self.held) > self.room else None


def demote(key: int, stores: Sequence[Store]) -> None:
    """Give what has left the accelerator to the first tier, what leaves that to the next, and so on."""
    left: int | None = key
    for store in stores:
        if left is None:
            return
        left = store.keep(left)


def overrun(stores: Sequence[Store], seconds: float) -> Iterator[str]:
    """Tiers to which more is written than their links carry."""
    for store in stores:
        need = store.stored * store.hash_s
        if need > seconds > 0.0:
            times = f"{need / seconds:.1f} times as many blocks leave for it as its link carries"
            yield f"{store.name}: {times}; it would hold fewer than here"

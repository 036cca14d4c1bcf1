"""A trace in sum, hits of a prefix cache of any size, and how long a block is worth keeping.

The five-minute rule (Gray and Putzolu 1987, doi:10.1145/38713.38755; Gray and Graefe 1997, arXiv:cs/9809005) for keys
and values: a token is kept as long as its place costs less than computing it again.

    keep = s·P/(κ·p)       s: seconds of a replica that a computed token takes above a cached one; P: price of a second
                           of the replica; κ: bytes of a token; p: price of a byte and second of the tier
    on the accelerator     p = P/(κ·pool): keep = s·pool, whatever the price
    load                   latency + n·κ/W against n·s: a tier is faster than computing where W > κ/s, from
                           n = latency/(s − κ/W) tokens on
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import fmean, pstdev
from typing import Unpack

from rooflinekit.decision.economics.price import quotes_of, usd_per_million
from rooflinekit.decision.economics.token_prices import token_times
from rooflinekit.estimation.estimator import Resolved, deploy
from rooflinekit.estimation.options import OwnKeywords, keywords, part_of, read
from rooflinekit.estimation.results import about
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, Retention
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.scene import CacheTier, kv_capacity_tokens
from rooflinekit.model.graph.symbol import formula
from rooflinekit.model.serving.flight import InFlight
from rooflinekit.model.types.answer import Answer, Json
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.units import GB
from rooflinekit.simulation.reuse import Reuse, reuse_of
from rooflinekit.simulation.simulate import pcie_bandwidth
from rooflinekit.simulation.tiers import fill, read_tiers
from rooflinekit.simulation.traces import Trace, load_trace
from rooflinekit.version import __version__

_HOUR = 3600.0
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_SIZES = 48  # of a cache, for which the curve stands


@formula("keep", "seconds between two uses up to which keeping is cheaper", "s", "Gray and Putzolu 1987")
def keep_seconds(saved: Numeric, usd_second: Numeric, size: Numeric, usd_byte_second: Numeric) -> Numeric:
    """s·P/(κ·p): 20 µs saved a token, at 0.001 USD a second, against 131 kB at 0.002 USD a GB and hour.

    >>> round(keep_seconds(20e-6, 0.001, 131_072, 0.002 / 1e9 / 3600))
    275
    """
    return saved * usd_second / (size * usd_byte_second)


@dataclass(frozen=True)
class Retained:
    """Hits and savings of a cache that ends with this memory: the accelerators', and all before it.

    tokens: of the whole cache of one replica; hit_rate: share of the prompt tokens; from_here: of them, in this memory;
    ttft_ms: mean at the trace's rate, loads included (None: it piles up); usd_per_million: tokens in and out at the
    knee, the tiers' rent included; keep_s: seconds between uses up to which keeping a block here is cheaper than
    computing it again; load_gb_s: rate from which loading is faster than that; prefix: tokens from which it is.
    """

    memory: str
    tokens: float
    hit_rate: float
    from_here: float
    ttft_ms: float | None = None
    knee_rate: float | None = None
    usd_per_million: float | None = None
    keep_s: float | None = None
    load_gb_s: float | None = None
    prefix: float | None = None


@dataclass(frozen=True)
class TraceAnswer(Answer):
    """A trace, and what prefix caches save of it.

    isl, osl: mean, percentiles and the longest. cleaned: rows dropped or sorted, by reason. hit_rate: of an unlimited
    cache (None without block ids). reuse_s: seconds between two uses of a block. curve: hit rate by the cache of one
    replica in tokens. memories: how much each memory of the deployment finds. deployment: its description.
    """

    version: str
    trace: str
    format: str
    requests: int
    duration_s: float
    rate: float | None
    gap_cv: float | None
    isl: dict[str, float]
    osl: dict[str, float]
    cleaned: dict[str, int]
    block_tokens: int | None
    replicas: int
    router: str
    hit_rate: float | None
    reuse_s: dict[str, float]
    curve: tuple[tuple[float, float], ...]
    deployment: OwnKeywords | None
    memories: tuple[Retained, ...]
    warnings: tuple[str, ...]

    def to_rows(self) -> list[Json]:
        """The hit rate by size, and where a deployment is given by memory."""
        if self.memories:
            return [asdict(each) for each in self.memories]
        return [{"tokens": tokens, "hit_rate": share} for tokens, share in self.curve]


@keywords(Retention)
def trace(
    file: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[Retention]
) -> TraceAnswer:
    """Sum a trace up, and say what prefix caches save of it.

    Args:
        file: a trace, as `simulate` takes it.
        gpu: an accelerator's name or path, for the memory of a model's replica.
        **scenario: the options of `Retention` in docs/cli.md; with `model` a deployment and its tiers are looked at.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if the model does not fit.
    """
    given = read(Retention, scenario)
    seen = load_trace(Path(file), given.get("clean", False))
    if not (seen.timed and seen.sized):
        lacks = "lengths and no times" if seen.sized else "rates and no lengths"
        raise InputError(f"{seen.name} has {lacks}, and nothing to sum up; `simulate --trace` takes it")
    replicas, router = given.get("replicas", 1), given.get("router", "prefix-affinity")
    tiers, notes = read_tiers(given.get("cache_tier")), list(seen.notes)
    reuse = reuse_of(seen, replicas, router) if seen.ends else None
    model = given.get("model")
    if reuse is None:
        notes.append(f"{seen.name} has no block ids (hash_ids): nobody can say which prompts share a prefix")
    gaps = [after - before for before, after in zip(seen.time, seen.time[1:], strict=False)]
    mean = fmean(gaps) if gaps else 0.0
    curve: tuple[tuple[float, float], ...] = ()
    if reuse is not None:  # at sizes of which every other doubles, up to the one that finds everything
        sizes = [reuse.size(1.0) * 2.0 ** (-step / 2) for step in reversed(range(_SIZES))]
        curve = tuple((size, reuse.share(size)) for size in sizes if size >= reuse.block_tokens)
    memories: list[Retained] = []
    deployment = None
    if model is not None and reuse is not None:
        resolved = deploy(model, gpu, given)
        deployment = about(resolved.plan) | {"gpus": resolved.plan.deployment.gpus, "tp": resolved.plan.deployment.tp}
        notes += resolved.warnings
        memories = _memories(resolved, seen, reuse, tiers, given)
    elif unused := [key for key in part_of(given, (*DEPLOYMENT_KEYS, "cache_tier", "price")) if model is None]:
        notes.append(f"{', '.join(unused)}: of a deployment; add --model")
    return TraceAnswer(
        version=__version__,
        trace=seen.name,
        format=seen.format,
        requests=len(seen),
        duration_s=seen.time[-1],
        rate=1.0 / mean if mean else None,
        gap_cv=pstdev(gaps) / mean if mean else None,
        isl=_spread(seen.isl),
        osl=_spread(seen.osl),
        cleaned=dict(seen.cleaned),
        block_tokens=seen.block_tokens,
        replicas=replicas,
        router=router,
        hit_rate=None if reuse is None else reuse.most,
        reuse_s={} if reuse is None else reuse.ages_at(_SHARES),
        curve=curve,
        deployment=deployment,
        memories=tuple(memories),
        warnings=tuple(notes),
    )


def _spread(lengths: Sequence[int]) -> dict[str, float]:
    """Mean, percentiles and the longest."""
    ordered = sorted(lengths)
    ranks = {name: ordered[max(math.ceil(share * len(ordered)), 1) - 1] for name, share in _SHARES.items()}
    return {"mean": fmean(ordered), **ranks, "max": ordered[-1]}


def _memories(
    resolved: Resolved, trace: Trace, reuse: Reuse, tiers: tuple[CacheTier, ...], given: OwnKeywords
) -> list[Retained]:
    """The accelerators of a deployment alone, then with each tier behind them; what nobody has is left out."""
    predictor, plan, replicas = resolved.predictor, resolved.plan, given.get("replicas", 1)
    each, gpus = float(predictor.memory.kv_bytes_per_token), plan.deployment.gpus
    isl, osl = trace.lengths()
    rate = (len(trace) - 1) / trace.time[-1] / replicas if trace.time[-1] else 0.0
    pool = kv_capacity_tokens(predictor, isl.mean + osl.mean, 1)
    hour = quotes_of([plan.system.accelerator], given.get("price")).hourly[plan.system.accelerator.name]
    second = None if hour is None else float(hour.usd_per_gpu_hour) * gpus / _HOUR
    asked = Load(isl, osl, rate=rate) if rate else Load(isl, osl, users=1)
    times = token_times(predictor, InFlight(1.0, isl.mean, osl.mean))
    saved = max(float(times.input) - float(times.cached), 1e-30)
    share = reuse.share(pool)
    seen = [Retained("accelerators", pool, share, share, keep_s=saved * pool)]
    late, rent = [0.0], [0.0]
    for tier, tokens, found, here, link, load, usd in fill(
        tiers,
        pool,
        reuse.share,
        replicas=replicas,
        prompt_bytes=isl.mean * each,
        token_bytes=each,
        own_link=partial(pcie_bandwidth, predictor),
    ):
        faster, keep = saved - each / link, None
        if tier.usd_gb_hour is not None and second is not None:
            keep = float(keep_seconds(saved, second, each, tier.usd_gb_hour / GB / _HOUR))
        prefix = tier.latency / faster if faster > 0.0 else None
        seen.append(Retained(tier.name, tokens, found, here, keep_s=keep, load_gb_s=each / saved / GB, prefix=prefix))
        late.append(late[-1] + load)
        rent.append(rent[-1] + usd)
    for place, row in enumerate(seen):
        played = play_load(predictor, replace(asked, cached=row.hit_rate * isl.mean))
        first = (played.samples["ttft"].mean + late[place]) * 1e3 if played.stable else None
        knee = played.knee
        hourly = None if second is None else second * _HOUR + rent[place]
        cost = None if hourly is None else float(usd_per_million(hourly, knee * (isl.mean + osl.mean)))
        seen[place] = replace(row, ttft_ms=first, knee_rate=knee, usd_per_million=cost)
    return seen

"""Weights or keys and values: what a decode step reads, where one overtakes the other, and that in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rooflinekit.decision.sensitivity.elasticity import RESOURCES, Elasticity
from rooflinekit.estimation.results import shares_by_cause
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.workload import Workload

_MOST = 1e9  # sequences or tokens beyond which no crossing is looked for
_ROUNDS = 100

_NAMED = {"bandwidth": "memory bandwidth", "flops": "FLOP/s", "network": "network bandwidth",
          "power": "the power limit",
          "launch": "the latencies of kernels", "host": "the engine's host time"}  # fmt: skip
_LEVERS = {
    "weights": "Smaller weights help most",
    "kv": "A smaller KV cache helps most",
    "compute": "Faster arithmetic helps most",
    "network": "Faster links help most",
    "overhead": "Fewer launches and less host work help most",
}


@dataclass(frozen=True)
class Balance:
    """Bytes of one decode step on one accelerator [B], their shares, and the crossing of weights and cache.

    crossing_batch: sequences at which the cache's bytes are those of the weights, at this context; crossing_context:
    tokens, at this batch (None: nowhere below 10^9). causes: shares of the step's time.
    """

    batch: float
    context: float
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    crossing_batch: float | None
    crossing_context: float | None
    causes: dict[str, float]

    derived = ("lever", "weight_share", "kv_share")

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def weight_share(self) -> float:
        """Of the step's bytes."""
        return self.weight_bytes / self.total_bytes

    @property
    def kv_share(self) -> float:
        """Of the step's bytes."""
        return self.kv_bytes / self.total_bytes

    @property
    def lever(self) -> str:
        """What the step is about: "weights" or "kv" where the memory takes most of its time, else the cause."""
        cause = max(self.causes, key=self.causes.__getitem__)
        if cause != "memory":
            return cause
        return "weights" if self.weight_bytes >= self.kv_bytes else "kv"


def balance(predictor: Predictor, work: Workload) -> Balance:
    """Divide the bytes of a decode step, and find where cache and weights are equal.

    A dense model reads W whatever the batch, and κ(T) for each sequence: they are equal at B = W/κ(T). Experts that
    further sequences touch make W grow, so the crossing is found on the kernels of the step.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> b = balance(bound, Workload(32.0, 2048.0, 256.0, context=2048.0))
    >>> b.lever, round(b.weight_bytes / 1e9, 2), round(b.kv_bytes / 1e9, 2)
    ('weights', 15.01, 8.59)
    >>> round(b.crossing_batch), round(b.crossing_context)  # 15.01 GB over 131 kB a token
    (56, 3578)
    """
    context = float(work.decode_context)
    weights, kv, other = _bytes(predictor, work, float(work.batch), context)
    return Balance(
        float(work.batch),
        context,
        weights,
        kv,
        other,
        _crossing(lambda batch: _bytes(predictor, work, batch, context)),
        _crossing(lambda tokens: _bytes(predictor, work, float(work.batch), tokens)),
        shares_by_cause(predictor.decode_step(work)),
    )


def _bytes(predictor: Predictor, work: Workload, batch: float, context: float) -> tuple[float, float, float]:
    """Bytes of weights, of keys and values (read and written), and of activations."""
    kernels = predictor.plan.kernels(predictor.decode_batch(replace(work, batch=batch), context))
    weights = sum(k.count * float(k.weight_bytes) for k in kernels)
    kv = sum(k.count * float(k.cache_bytes) for k in kernels)
    return weights, kv, sum(k.count * float(k.activation_bytes) for k in kernels)


def _crossing(reads: Callable[[float], tuple[float, float, float]]) -> float | None:
    """Where the cache first has as many bytes as the weights; None if nowhere."""

    def heavier(value: float) -> bool:
        weights, kv, _ = reads(value)
        return kv >= weights

    low, high = 1.0, 2.0
    if heavier(low):
        return low
    while not heavier(high):
        low, high = high, 2.0 * high
        if high > _MOST:
            return None
    for _ in range(_ROUNDS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if heavier(middle) else (middle, high)
    return high


def in_words(found: Balance, slopes: Sequence[Elasticity], shared: bool = False, longest: int | None = None) -> str:
    """Say which lever it is, by the bytes of a decode step, and what TPOT follows most.

    shared: steps hold prompts too, as under load; longest: context that the model admits.

    >>> b = Balance(8.0, 100.0, 90.0, 9.0, 1.0, 80.0, 1000.0, {"memory": 0.9, "compute": 0.1})
    >>> in_words(b, [Elasticity("bandwidth", -0.1, -0.8, 0.7, -0.7)])[:61]
    'Smaller weights help most: 90 % of the bytes of a decode step'
    """
    first = (
        f"{_LEVERS[found.lever]}: {found.weight_share * 100:.0f} % of the bytes of a decode step are weights, "
        f"{found.kv_share * 100:.0f} % keys and values (batch {found.batch:.0f}, context {found.context:.0f})."
    )
    where = [] if found.crossing_batch is None else [f"batch {found.crossing_batch:,.0f} (at this context)"]
    if (context := found.crossing_context) is not None:
        beyond = f"; the model ends at {longest:,}" if longest is not None and context > longest else ""
        where.append(f"context {context:,.0f} (at this batch{beyond})")
    crossings = "The cache never has as many bytes as the weights."
    if where:
        crossings = f"Cache and weights are equal at {', or at '.join(where)}. Beyond that the cache weighs more."
    most = max((entry for entry in slopes if entry.parameter in RESOURCES), key=lambda entry: abs(entry.tpot))
    whose = "TPOT, with the prompts in its steps," if shared else "TPOT"
    last = f"{whose} follows {_NAMED[most.parameter]} most: 1 % more makes it {abs(most.tpot):.2f} % "
    return " ".join([first, crossings, last + ("less." if most.tpot < 0 else "more.")])

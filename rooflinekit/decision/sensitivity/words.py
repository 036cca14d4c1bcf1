"""The answer in a sentence: weights, cache, or something else, and where that changes."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.decision.sensitivity.balance import Balance
from rooflinekit.decision.sensitivity.elasticity import Elasticity
from rooflinekit.decision.sensitivity.scaled import RESOURCES

__all__ = ["in_words"]

_NAMED = {"bandwidth": "memory bandwidth", "flops": "FLOP/s", "network": "network bandwidth"}
_NAMED |= {"launch": "the latencies of kernels", "host": "the engine's host time"}
_LEVERS = {
    "weights": "The lever is the weights",
    "kv": "The lever is the KV cache",
    "compute": "The lever is arithmetic, not bytes",
    "network": "The lever is the links",
    "overhead": "The lever is overhead (launches, gaps, host), not bytes",
}


def in_words(found: Balance, slopes: Sequence[Elasticity], shared: bool = False, longest: int | None = None) -> str:
    """Say which lever it is, by the bytes of a decode step, and what TPOT follows most.

    shared: steps hold prompts too, as under load; longest: context that the model admits.

    >>> b = Balance(8.0, 100.0, 90.0, 9.0, 1.0, 80.0, 1000.0, {"memory": 0.9, "compute": 0.1})
    >>> in_words(b, [Elasticity("bandwidth", -0.1, -0.8, 0.7, -0.7)])[:60]
    'The lever is the weights: 90 % of the bytes of a decode step'
    """
    first = (
        f"{_LEVERS[found.lever]}: {found.weight_share:.0%} of the bytes of a decode step are weights and "
        f"{found.kv_share:.0%} keys and values, at batch {found.batch:.0f} and context {found.context:.0f}."
    ).replace("%", " %")
    resources = [entry for entry in slopes if entry.parameter in RESOURCES]
    most = max(resources, key=lambda entry: abs(entry.tpot))
    better = "less" if most.tpot < 0 else "more"
    whose = "TPOT, with the prompts in its steps," if shared else "TPOT"
    last = f"{whose} follows {_NAMED[most.parameter]} most: 1 % more makes it {abs(most.tpot):.2f} % {better}."
    return " ".join([first, _crossings(found, longest), last])


def _crossings(found: Balance, longest: int | None) -> str:
    batch, context = found.crossing_batch, found.crossing_context
    where = []
    if batch is not None:
        where.append(f"batch {batch:,.0f} at this context")
    if context is not None:
        beyond = f" (the model ends at {longest:,})" if longest is not None and context > longest else ""
        where.append(f"context {context:,.0f} at this batch{beyond}")
    if not where:
        return "The cache never has as many bytes as the weights."
    return f"They are equal at {' and at '.join(where)}; above that it is the cache."

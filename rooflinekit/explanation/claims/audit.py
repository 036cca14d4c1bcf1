"""All claims, by topic."""

from __future__ import annotations

from rooflinekit.explanation.claims.cache import CACHE
from rooflinekit.explanation.claims.claim import Claim
from rooflinekit.explanation.claims.hardware import HARDWARE
from rooflinekit.explanation.claims.latency import LATENCY
from rooflinekit.explanation.claims.serving import SERVING
from rooflinekit.explanation.claims.work import WORK

__all__ = ["TOPICS"]

TOPICS: dict[str, tuple[Claim, ...]] = {
    "Work and intensity": WORK,
    "The KV cache": CACHE,
    "Hardware and the roofline": HARDWARE,
    "Latency and throughput": LATENCY,
    "Experts, speculation, memory": SERVING,
}
"""Claims by topic, in the order of the page."""

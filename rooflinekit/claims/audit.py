"""All claims, by topic."""

from __future__ import annotations

from rooflinekit.claims.cache import CACHE
from rooflinekit.claims.claim import Claim
from rooflinekit.claims.hardware import HARDWARE
from rooflinekit.claims.latency import LATENCY
from rooflinekit.claims.serving import SERVING
from rooflinekit.claims.work import WORK

__all__ = ["TOPICS"]

TOPICS: dict[str, tuple[Claim, ...]] = {
    "Work and intensity": WORK,
    "The KV cache": CACHE,
    "Hardware and the roofline": HARDWARE,
    "Latency and throughput": LATENCY,
    "Experts, speculation, memory": SERVING,
}
"""Claims by topic, in the order of the page."""

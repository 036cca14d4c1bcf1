"""One look: the name, the colour and the limit of each part of a time, for terminal, pictures and notebooks.

Colours are names of `palette.yaml`; a limit is what a part waits for, and the colour of its bar in a terminal.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A part of a time: its name for people, its colour in pictures, and what it waits for."""

    name: str
    tint: str
    limit: str


STEP = {
    "weights": Part("weights", "weights", "memory"),
    "kv_cache": Part("KV cache", "KV", "memory"),
    "activations": Part("activations", "activations", "memory"),
    "compute": Part("arithmetic", "compute", "compute"),
    "network": Part("network", "network", "network"),
    "above_bound": Part("above bound", "overhead", "overhead"),
    "host": Part("engine", "engine", "overhead"),
}
"""What the time of a step adds up from."""

FIRST = {
    "front_end": Part("front end", "engine", "overhead"),
    "under_way": Part("step under way", "overhead", "overhead"),
    "behind": Part("behind prompts", "network", "network"),
    "place": Part("wait for a place", "other", "network"),
    "prompt": Part("own prompt", "compute", "compute"),
}
"""What a first token waits for."""

TOKEN = {
    **{"engine" if name == "host" else name: part for name, part in STEP.items()},
    "prompts": Part("prompts of others", "compute", "compute"),
}
"""What the time of a token is made of under load."""

LIMITS = {"memory": "\x1b[34m", "compute": "\x1b[33m", "network": "\x1b[32m", "overhead": "\x1b[90m"}
"""What a time waits for, and its colour in a terminal."""

ALARM, PLAIN = "\x1b[1;31m", "\x1b[0m"
BOLD = "\x1b[1m"

TERMINAL = {part.name: LIMITS[part.limit] for table in (STEP, FIRST, TOKEN) for part in table.values()} | LIMITS
"""The colour of everything that has one in a terminal, by its name."""

RESOURCES = {
    "bandwidth": "memory bandwidth", "flops": "FLOP/s", "network": "network bandwidth", "power": "power limit",
    "launch": "kernel latencies", "host": "host time", "batch": "batch", "users": "users", "rate": "rate",
    "context": "context",
}  # fmt: skip
"""Names of what an answer is sensitive to."""

"""What is known about a published benchmark: how its client sent requests, and what its servers were told."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Client", "Conditions", "Server"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which runs a server rule holds for; an empty one holds for all. `gpu` holds beginnings of accelerator names."""

    engine: str = ""
    model: str = ""
    gpu: tuple[str, ...] = ()
    weights: str = ""
    isl: int = 0
    osl: int = 0
    tp_below: int = 0
    users_from: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """What a server was told besides its deployment.

    kv: format of the cache, "" for the engine's default; receive_interval: decode steps between two looks at new
    requests; batch_wait: decode steps for which prompts are held back, so that several are computed together.
    """

    when: Conditions = Conditions()
    kv: str = ""
    receive_interval: float = 1.0
    batch_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Client:
    """How a load generator works; as it stands, what is assumed of a source that does not say.

    source_key: how the source's name begins; mean_length: over the nominal one; cv: variation of the lengths; requests:
    that each user sends, all users at once at first. The usual benchmark sends 10 of equal length; a variation of 5 %
    is how far apart their ends are taken to drift.
    """

    source_key: str = ""
    mean_length: float = 1.0
    cv: float = 0.05
    requests: float = 10.0
    servers: tuple[Server, ...] = ()

    @classmethod
    def even(
        cls, source_key: str, lengths: tuple[float, float], requests: float, servers: tuple[Server, ...]
    ) -> Client:
        """A client that draws lengths evenly between two shares of the nominal one.

        >>> client = Client.even("infx", (0.8, 1.0), 10, ())
        >>> client.mean_length, round(client.cv, 3)
        (0.9, 0.064)
        """
        mean = sum(lengths) / 2.0
        return cls(source_key, mean, (lengths[1] - lengths[0]) / math.sqrt(12.0) / mean, requests, servers)

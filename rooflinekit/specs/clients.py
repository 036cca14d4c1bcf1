"""The published benchmarks whose clients and servers are known (validate/clients.yaml)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflinekit.specs.section import Cites, Count, Layout, Section

__all__ = ["Client", "Conditions", "Server", "client_of", "read_clients"]


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


class _Server(Layout):
    when: Conditions
    source: Cites
    kv: str = ""
    receive_interval: Count = 1
    batch_wait: Count = 0


class _Client(Layout):
    source_key: str
    lengths: Any
    requests: Count
    source: Cites
    servers: tuple[_Server, ...] = ()


class _File(Layout):
    sources: Mapping[str, Any]
    clients: tuple[_Client, ...]


def client_of(source_key: str) -> Client:
    """The client of a source; the usual one where nothing is known of it.

    >>> client_of("infx870").requests, client_of("a-blog").servers
    (10.0, ())
    """
    return next((client for client in _shipped() if source_key.startswith(client.source_key)), Client())


@lru_cache(maxsize=1)
def _shipped() -> tuple[Client, ...]:
    package = Path(__file__).resolve().parents[1]
    inside = package / "validate" / "clients.yaml"
    return read_clients(inside if inside.is_file() else package.parent / "validate" / "clients.yaml")


def read_clients(path: Path) -> tuple[Client, ...]:
    """Read a file of clients.

    Raises SpecError for anything that is unknown, missing or not cited.
    """
    root = Section.open(path)
    file = root.read(_File)
    return tuple(map(_client, file.clients, root.entries("clients")))


def _client(client: _Client, section: Section) -> Client:
    given = client.lengths
    numbers = isinstance(given, list) and len(given) == 2 and all(isinstance(share, (int, float)) for share in given)
    if not numbers or not 0 < given[0] <= given[1]:
        section.refuse("lengths", f"value {given!r} is not a pair of shares such as [0.8, 1.0]")
    servers = tuple(Server(s.when, s.kv, float(s.receive_interval), float(s.batch_wait)) for s in client.servers)
    return Client.even(client.source_key, (float(given[0]), float(given[1])), float(client.requests), servers)

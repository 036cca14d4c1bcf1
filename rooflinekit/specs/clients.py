"""The published benchmarks whose clients and servers are known (validate/clients.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflinekit.model.types.client import Client, Conditions, Server
from rooflinekit.specs.section import Cites, Count, Layout, Section

__all__ = ["client_of", "read_clients"]


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

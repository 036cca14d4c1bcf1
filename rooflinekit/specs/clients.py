"""The published benchmarks whose clients and servers are known (validate/clients.yaml)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflinekit.model.types.client import Client, Conditions, Server
from rooflinekit.specs.cited import read_sources
from rooflinekit.specs.reading import read_yaml
from rooflinekit.specs.section import Section

__all__ = ["client_of", "read_clients"]

_COUNTS = ("isl", "osl", "tp_below", "users_from")
_TEXTS = ("engine", "model", "weights")


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
    top = Section(path, "", read_yaml(path))
    top.expect(("sources", "clients"))
    sources = read_sources(top.section("sources"))
    return tuple(_client(section, set(sources)) for section in _entries(top, "clients"))


def _entries(section: Section, key: str) -> list[Section]:
    listed = section.data.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        section.refuse(key, "is not a list of sections; begin each with '-'")
    return [Section(section.file, f"{section.path(key)}[{number}]", entry) for number, entry in enumerate(listed)]


def _client(section: Section, sources: set[str]) -> Client:
    section.expect(("source_key", "lengths", "requests", "source"), ("servers",))
    _check_source(section, sources)
    servers = tuple(_server(entry, sources) for entry in _entries(section, "servers"))
    return Client.even(section.text("source_key"), _lengths(section), float(section.count("requests")), servers)


def _lengths(section: Section) -> tuple[float, float]:
    given = section.data["lengths"]
    numbers = isinstance(given, list) and len(given) == 2 and all(isinstance(share, (int, float)) for share in given)
    if not numbers or not 0 < given[0] <= given[1]:
        section.refuse("lengths", f"value {given!r} is not a pair of shares such as [0.8, 1.0]")
    return float(given[0]), float(given[1])


def _server(section: Section, sources: set[str]) -> Server:
    section.expect(("when", "source"), ("kv", "receive_interval", "batch_wait"))
    _check_source(section, sources)
    when = section.section("when")
    when.expect((), (*_TEXTS, *_COUNTS, "gpu"))
    given: dict[str, Any] = {key: when.text(key) for key in _TEXTS} | {
        key: when.count(key) for key in _COUNTS if when.has(key)
    }
    told = {key: float(section.count(key)) for key in ("receive_interval", "batch_wait") if section.has(key)}
    return Server(Conditions(**given, gpus=when.texts("gpu")), section.text("kv"), **told)


def _check_source(section: Section, sources: set[str]) -> None:
    for name in section.texts("source") or ("",):
        if name not in sources:
            section.refuse("source", f"{name!r} is not under `sources`: {', '.join(sources)}")

"""The published benchmarks whose clients and servers are known (validate/clients.yaml)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.types.numeric import Array
from rooflinekit.specs.files import Parsed, kept
from rooflinekit.specs.places import shipped_path
from rooflinekit.specs.section import Cites, Count, FileLayout, FileSection


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a server rule; an empty one holds for all. `gpu` holds beginnings of accelerator names.

    unversioned: rows that name no version of the engine.
    """

    engine: str = ""
    model: str = ""
    experts: bool | None = None
    gpu: tuple[str, ...] = ()
    weights: str = ""
    version: str = ""
    unversioned: bool = False
    isl: int = 0
    osl: int = 0
    ep: int = 0
    dp: int = 0
    tp_below: int = 0
    users_from: int = 0
    users_below: int = 0

    def __post_init__(self) -> None:
        if self.version and self.unversioned:
            raise ValueError(f"version {self.version} and unversioned exclude each other; leave one of them out")

    def names(self, facts: Parsed) -> bool:
        """True if the rule holds for a deployment: engine, model, gpu, weights, version, tp, ep and dp."""
        same = all(getattr(self, key) in ("", facts[key]) for key in ("engine", "model", "weights", "version"))
        same &= all(getattr(self, key) in (0, facts[key]) for key in ("ep", "dp"))
        same &= not 0 < self.tp_below <= facts["tp"] and not (self.unversioned and facts["version"])
        return same and (not self.gpu or facts["gpu"].startswith(self.gpu)) and self.experts in (None, facts["experts"])

    def loads(self, isl: Array, osl: Array, users: Array) -> NDArray[np.bool_]:
        """For which loads of such a deployment the rule holds; lengths in tokens, NaN where they are not known."""
        held = np.ones(len(users), bool)
        for told, values in ((self.isl, isl), (self.osl, osl)):
            held &= not told or values == told
        held &= not self.users_from or users >= self.users_from
        return held & (not self.users_below or users < self.users_below)


@dataclass(frozen=True)
class ServerFlags:
    """Settings of a server besides its deployment.

    kv, activations: formats of the cache and of the inputs of narrow weights, "" for the engine's default;
    scheduler_recv_interval, stream_interval, api_servers, graph_tokens, batch_wait, max_num_seqs, token_budget, policy,
    async_scheduling, prefix_caching: as the options of these names, empty for the engine's own; whole_prompt: the
    budget is at least users + prompt + 64, rounded up to 64; beside: or prompt + so many tokens; tuned: both limits
    follow from memory and lengths, as trtllm-bench works them out; draft_tokens: that the model's own layers for
    several tokens (MTP) draft in a row; graph_sizes: to which decode steps are padded; attention_dp: whether each rank
    of `tp` has its own sequences in attention; tp: of the accelerators that the source counts as `tp`, those that share
    layers (0: all); the others are stages of a pipeline; expert_parallel: whether all ranks of `tp` share out whole
    experts, where the source does not count `ep`; version: of the engine, where the source names none.
    """

    when: Conditions
    source: Cites
    kv: str = ""
    activations: str = ""
    scheduler_recv_interval: Count = 1
    stream_interval: Count = 1
    api_servers: Count = 0
    graph_tokens: Count = 0
    batch_wait: Count = 0
    max_num_seqs: Count = 0
    policy: str = ""
    async_scheduling: str = ""
    prefix_caching: str = ""
    draft_tokens: Count = 0
    graph_sizes: tuple[float, ...] = ()
    tuned: bool = False
    token_budget: Count = 0
    whole_prompt: bool = False
    beside: Count = 0
    attention_dp: bool = False
    tp: Count = 0
    expert_parallel: bool = False
    version: str = ""

    @property
    def by_load(self) -> bool:
        """True if its limits follow from lengths and users."""
        return self.tuned or self.whole_prompt or self.beside > 0

    @property
    def settings(self) -> dict[str, Any]:
        """Options of the deployment that are not the engine's own; `token_budget` may follow from the load."""
        names = (
            "scheduler_recv_interval",
            "stream_interval",
            "api_servers",
            "graph_tokens",
            "batch_wait",
            "max_num_seqs",
            "policy",
            "async_scheduling",
            "prefix_caching",
        )
        return {name: value for name in names if (value := getattr(self, name)) not in (0, "")}


@dataclass(frozen=True, slots=True)
class Fault:
    """Rows of a server with a fault, which the fit of errors under load leaves out; `reason` says how one sees it."""

    when: Conditions
    reason: str


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Requests of a run whose prompts an earlier run of the same server has sent: so many of the first ones.

    nominal: lengths of the run, as the notes of its row name them; requests: of the run.
    """

    nominal: str
    requests: Count
    cached: Count


@dataclass(frozen=True)
class Client:
    """Behaviour of a load generator.

    source_key: how the source's name begins; lengths: the shares of the nominal one between which lengths are drawn
    evenly; requests: that each user sends, all users at once at first; warmup: that each sends before those that are
    measured; seed_reuse: different prompts, sent again and again (0: no two are equal); skew: of the routing of prompts
    of random tokens to experts; when: the deployments that it drove, where a source has several clients; repeats:
    prompts that its runs have in common; faults: rows that no fit of errors takes.
    """

    source_key: str
    lengths: tuple[float, ...]
    requests: float | Count
    source: Cites
    servers: tuple[ServerFlags, ...] = ()
    warmup: Count = 0
    seed_reuse: Count = 0
    skew: float = 0.0
    when: Conditions = Conditions()
    repeats: tuple[SharedPrompts, ...] = ()
    faults: tuple[Fault, ...] = ()

    def of(self, facts: Parsed) -> Client:
        """The client with the rules and faults of one deployment alone."""
        servers = tuple(server for server in self.servers if server.when.names(facts))
        return replace(self, servers=servers, faults=tuple(each for each in self.faults if each.when.names(facts)))

    def faulty(self, isl: Array, osl: Array, users: Array) -> NDArray[np.bool_]:
        """Which loads met a fault."""
        found = np.zeros(len(users), bool)
        for fault in self.faults:
            found |= fault.when.loads(isl, osl, users)
        return found

    def cached(self, nominal: str, requests: float) -> int | None:
        """How many of the first prompts of a run an earlier one left in the cache; None where nobody says."""
        found = (run.cached for run in self.repeats if (run.nominal, float(run.requests)) == (nominal, requests))
        return next(found, None)

    @property
    def mean_length(self) -> float:
        """The mean length over the nominal one.

        >>> Client("infx", (0.8, 1.0), 10, ()).mean_length
        0.9
        """
        return sum(self.lengths) / 2.0

    @property
    def cv(self) -> float:
        """The variation of the lengths: that of an even draw.

        >>> round(Client("infx", (0.8, 1.0), 10, ()).cv, 3)
        0.064
        """
        return (self.lengths[1] - self.lengths[0]) / math.sqrt(12.0) / self.mean_length

    def rule(self, isl: Array, osl: Array, users: Array) -> NDArray[np.intp]:
        """The server's rule of each load, the first that holds; -1 where none does."""
        held = np.full(len(users), -1)
        for place, server in reversed([*enumerate(self.servers)]):
            held[server.when.loads(isl, osl, users)] = place
        return held


NO_RULE = ServerFlags(Conditions(), ())
"""A server of which nothing is known."""

USUAL = Client("", (1.0 - 0.05 * math.sqrt(3.0), 1.0 + 0.05 * math.sqrt(3.0)), 10, ())
"""Assumptions about a source that does not say: lengths that vary by 5 %, as far as their ends are taken to drift."""


class _ClientFile(FileLayout):
    sources: Parsed
    clients: tuple[Client, ...]


def client_of(source_key: str, facts: Mapping[str, object] | None = None) -> Client:
    """The client of a source, that of this deployment (see `Conditions`); the usual one where nothing is known of it.

    >>> client_of("infx870").requests, client_of("a-blog").servers
    (10, ())
    """
    shipped = kept(read_clients, shipped_path("validate/clients.yaml"))
    found = (each for each in shipped if source_key.startswith(each.source_key))
    return next((each for each in found if facts is None or each.when.names(facts)), USUAL)


def read_clients(path: Path) -> tuple[Client, ...]:
    """Read a file of clients."""
    root = FileSection.open(path)
    clients = root.read(_ClientFile).clients
    for client, section in zip(clients, root.entries("clients"), strict=True):
        if len(client.lengths) != 2 or not 0 <= client.lengths[0] <= client.lengths[1] > 0:
            section.refuse("lengths", f"value {[*client.lengths]} is not a pair of shares such as [0.8, 1.0]")
    return clients

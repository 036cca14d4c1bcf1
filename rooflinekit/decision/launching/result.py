"""What comes of a launch: servers with their commands and files, the prediction they belong to, notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rooflinekit.decision.launching.settings import Setting
from rooflinekit.model.types.answer import Answer

__all__ = ["Launch", "Prediction", "Server"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The numbers that a server was exported with, from the estimate of its very settings."""

    model: str
    gpu: str
    gpus: int
    engine: str
    version: str
    level: str
    batch: int
    isl: int
    osl: int
    load: str | None  #: what arrives, in words; None for a static batch
    ttft_ms: float | None
    tpot_ms: float
    output_tok_s: float
    kv_pool_bytes: float
    kv_pool_tokens: int


@dataclass(frozen=True, slots=True)
class Server:
    """One kind of server, and how many of it."""

    role: str  #: serve, prefill or decode; part-1-… in a mixed fleet
    program: tuple[str, ...]
    positional: tuple[str, ...]
    settings: tuple[Setting, ...]
    front_end: str  #: file that the front end of a split reads, written with its prefill servers; "" if there is none
    config_flag: str  #: option that names the configuration file; "" if the engine has none
    ports: tuple[tuple[str, int], ...]  #: options that take a port, with that of the first replica on a host
    replicas: int
    host_gpus: int
    prediction: Prediction
    side_channel: int = 0  #: port at which vLLM's servers of a split deployment agree on transfers; 0 for others
    attention_replicas: int = 1

    @property
    def port(self) -> int:
        """Where the first replica on a host answers."""
        return self.ports[0][1]

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.prediction.gpus

    @property
    def per_host(self) -> int:
        """Replicas that one host has GPUs for, as many as there are."""
        return max(min(self.host_gpus // self.gpus, self.replicas), 1)

    @property
    def hosts(self) -> int:
        """Hosts for all replicas."""
        return -(-self.replicas // self.per_host) * -(-self.gpus // self.host_gpus)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration file as nested keys; empty if everything is on the command line."""
        nested: dict[str, Any] = {}
        for setting in self.settings:
            if not setting.on_command_line:
                *path, last = setting.flag.split(".")
                place = nested
                for key in path:
                    place = place.setdefault(key, {})
                place[last] = setting.value
        return nested

    @property
    def config_name(self) -> str:
        """Name of the configuration file; "" if there is none."""
        return f"{self.role}.yaml" if self.config_flag and self.config else ""

    def options(self, number: int = 0) -> tuple[tuple[str, ...], ...]:
        """Options of one replica on its host, each with its value."""
        named = [setting.args for setting in self.settings if setting.on_command_line]
        file = [(self.config_flag, self.config_name)] if self.config_name else []
        return (*named, *file, *((flag, str(first + number)) for flag, first in self.ports))

    def args(self, number: int = 0) -> tuple[str, ...]:
        """The command of one replica on its host, as arguments that need no shell."""
        words = [word for option in self.options(number) for word in option]
        return (*self.program, *self.positional, *words)

    def env(self, number: int = 0) -> dict[str, str]:
        """Environment of one replica: its GPUs where several share a host."""
        found: dict[str, str] = {}
        if self.per_host > 1:
            first = number * self.gpus
            found["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in range(first, first + self.gpus))
        if self.side_channel:  # each attention replica takes one port
            found["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(self.side_channel + number * self.attention_replicas)
        return found


@dataclass(frozen=True)
class Launch(Answer):
    """Every server of a deployment or plan; `files` and `commands` hold what to write and what to run."""

    servers: tuple[Server, ...]
    extra_files: Mapping[str, str]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """One command a replica of a host, server by server, as argument lists."""
        return tuple(server.args(number) for server in self.servers for number in range(server.per_host))

    @property
    def files(self) -> dict[str, str]:
        """Names and texts of the configuration files."""
        own = {server.config_name: _yaml(server.config) for server in self.servers if server.config_name}
        return own | dict(self.extra_files)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        servers = [_server_dict(server) for server in self.servers]
        return {"servers": servers, "files": self.files, "notes": list(self.notes), "warnings": list(self.warnings)}


def _server_dict(server: Server) -> dict[str, Any]:
    fields = Prediction.__dataclass_fields__
    commands = [{"env": server.env(n), "args": list(server.args(n))} for n in range(server.per_host)]
    settings = [{"flag": s.flag, "value": s.value, "because": s.because, "source": s.source} for s in server.settings]
    return {
        "role": server.role, "replicas": server.replicas, "replicas_per_host": server.per_host, "hosts": server.hosts,
        "gpus_per_replica": server.gpus, "port": server.port, "commands": commands, "settings": settings,
        "prediction": {name: getattr(server.prediction, name) for name in fields},
    }  # fmt: skip


def _yaml(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, width=10**6)

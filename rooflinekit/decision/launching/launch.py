"""The front door: a deployment or a plan in, servers with commands, files and a shell script out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from os import PathLike
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, TypeGuard

import yaml

from rooflinekit.decision.launching.target import LaunchSetting, Target, aim, grant
from rooflinekit.decision.launching.wishes import engine_notes, wishes
from rooflinekit.model.types.answer import Answer, plain
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import DeploymentError, InputError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.units import GB
from rooflinekit.specs.files import read_json
from rooflinekit.version import __version__

_WIDTH = 80
_PORTS = {"": 8000, "prefill": 8100, "decode": 8200}
_PART = 1000  # ports between the parts of a mixed fleet
_BOOTSTRAP = 8998  # where SGLang's prefill servers are found by default
_LENGTHS = {"isl": "isl_mean", "osl": "osl_mean"}  # keywords of estimate, and what a plan's traffic calls them
_SPREADS = ("isl_cv", "osl_cv")
_LOADS = ("batch", "rate", "concurrency")
_CHANNEL = 5600 - 8000  # vLLM's default side channel (docs/features/nixl_connector_usage.md), beside the port


@dataclass(frozen=True, slots=True)
class ServerPart:
    """Servers of one kind: their scenario, how many, and their place in a split or a fleet."""

    role: str  #: "", prefill or decode
    scenario: Mapping[str, Any]
    replicas: int
    number: int = 0  #: part of a mixed fleet, from 1; 0 if there is only one

    @property
    def name(self) -> str:
        """Name of its script and files."""
        return f"part-{self.number}-{self.role or 'serve'}" if self.number else self.role or "serve"


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
    settings: tuple[LaunchSetting, ...]
    front_end: str  #: file that the front end of a split reads, written with its prefill servers; "" if there is none
    config_flag: str  #: option that names the configuration file; "" if the engine has none
    ports: tuple[tuple[str, int], ...]  #: options that take a port, with that of the first replica on a host
    replicas: int
    host_gpus: int
    prediction: Prediction
    side_channel: int = 0  #: port at which vLLM's servers of a split deployment agree on transfers; 0 for others
    attention_replicas: int = 1
    rate: float | None = None  #: requests a second that one replica is planned for; None where nothing says so

    @property
    def port(self) -> int:
        """Port of the first replica on a host."""
        return self.ports[0][1]

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        settings = ("flag", "value", "because", "source")
        return {
            "role": self.role,
            "replicas": self.replicas,
            "replicas_per_host": self.per_host,
            "hosts": self.hosts,
            "gpus_per_replica": self.gpus,
            "port": self.port,
            "commands": [{"env": self.env(n), "args": list(self.args(n))} for n in range(self.per_host)],
            "settings": [{name: getattr(setting, name) for name in settings} for setting in self.settings],
            "prediction": asdict(self.prediction),
        }


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
        own = {
            server.config_name: yaml.safe_dump(server.config, sort_keys=False, width=10**6)
            for server in self.servers
            if server.config_name
        }
        return own | dict(self.extra_files)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {key: plain(getattr(self, key)) for key in ("servers", "files", "notes", "warnings")}


def launch_script(launch: Launch, with_files: bool = True) -> str:
    """The script that starts one host's servers; several kinds are chosen by its first argument.

    `with_files`: it writes the configuration files too, into the folder where it runs; otherwise they lie beside it.
    """
    head = ["#!/usr/bin/env bash", *_comment(f"written by rooflinekit {__version__}")]
    for note in (*launch.warnings, *launch.notes):
        head += _comment(f"- {note}", "  ")
    if not with_files and launch.files:
        head.append('cd "$(dirname "$0")" || exit')
    if len(launch.servers) == 1:
        body = "\n".join(_server_script(launch, launch.servers[0], with_files))
    else:
        parts = ['case "${1:-}" in']
        for server in launch.servers:  # the lines of a file end at a mark in the first column, so that they stay
            script = "\n".join(_server_script(launch, server, with_files))
            parts += [f"{server.role})", indent(script, "  ", lambda line: not line.startswith("\t")), "  ;;"]
        names = "|".join(server.role for server in launch.servers)
        body = "\n".join((*parts, f'*) echo "usage: $0 {names}" >&2; false ;;', "esac"))
    return "\n".join((*head, "", body)) + "\n"


def _server_script(launch: Launch, server: Server, with_files: bool) -> Iterator[str]:
    made = server.prediction
    role = "" if server.role == "serve" else f"{server.role}: "
    yield from _comment(
        f"{role}{made.model} on {made.gpus} x {made.gpu}, flags checked for {made.engine} {made.version}"
    )
    yield from _comment(predicted(server))
    if server.replicas > 1:
        hosts = f"{server.hosts} host" + "s" * (server.hosts > 1)
        yield from _comment(f"{server.replicas} replicas on {hosts}, {server.per_host} on this one")
    for setting in server.settings:
        if " GB / " in setting.because:
            yield from _comment(f"{setting.flag} {setting.value} = {setting.because}", "  ")
    if with_files:
        # Its own configuration, and with the prefill servers of a split that of the front end; `<<-` takes tabs away.
        for name in filter(None, (server.config_name, server.front_end)):
            text = [f"\t{line}" for line in launch.files[name].rstrip("\n").splitlines()]
            yield "\n".join((f"cat > {shlex.quote(name)} <<-'END_OF_FILE' &&", *text, "\tEND_OF_FILE"))
    for number in range(server.per_host):
        yield _command(server, number) + (" &" if server.per_host > 1 else "")
    if server.per_host > 1:
        yield "wait"


def predicted(server: Server) -> str:
    """Prediction for a server, in a line."""
    made = server.prediction
    first = f"TTFT {'grows without end (overload)' if made.ttft_ms is None else f'{made.ttft_ms:.1f} ms'}"
    later, rate = f"TPOT {made.tpot_ms:.2f} ms", f"{made.output_tok_s:.0f} tok/s"
    times = {"prefill": (first,), "decode": (later,)}.get(server.role.rpartition("-")[2], (first, later, rate))
    load = f" ({made.load})" if made.load else ""
    return (
        f"predicted ({made.level}) at batch {made.batch}{load}, {made.isl} + {made.osl} tokens: {', '.join(times)}; "
        f"KV pool {made.kv_pool_bytes / GB:.1f} GB a GPU, {made.kv_pool_tokens} tokens"
    )


def _command(server: Server, number: int) -> str:
    """One command, an option a line."""
    words = [*server.program, *server.positional]
    first = " ".join(shlex.quote(word) for word in words)
    env = "".join(f"{name}={shlex.quote(value)} " for name, value in server.env(number).items())
    lines = [" ".join(shlex.quote(word) for word in option) for option in server.options(number)]
    return " \\\n  ".join((env + first, *lines))


def _comment(text: str, hanging: str = "") -> Iterable[str]:
    """Comment lines; whatever the text holds, no line of it is outside of the comment."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    lines = wrap(plain, _WIDTH - 2, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return (f"# {line}" for line in lines)


def launch(  # noqa: PLR0913 - the front door: keywords that each say one thing
    model: str | PathLike[str] | None = None,
    gpu: str | PathLike[str] = "h100-sxm",
    *,
    plan: str | PathLike[str] | Mapping[str, Any] | None = None,
    candidate: int | None = None,
    replicas: int = 1,
    host_gpus: int = 8,
    **scenario: Any,
) -> Launch:
    """Commands and configuration files that start what a prediction is about.

    Args:
        model: as in `estimate`; or leave it out and give a plan.
        gpu: an accelerator's name or a path to its file.
        plan: what `rooflinekit plan --format json` wrote: a path, or the mapping itself.
        candidate: which of the plan's candidates, counted from 1; default: its best.
        replicas: copies of the deployment (a plan has its own).
        host_gpus: accelerators of one machine, for ports and device numbers.
        **scenario: as in `estimate`; the engine's version is the newest whose settings were read if none is given.

    Returns:
        A `Launch`: servers with `args` and `env`, `commands` as argument lists, `files` by name, notes.

    Raises:
        DoesNotFitError: the deployment does not fit; nothing is exported.
        InputError: (and its kinds) for a setting that this version of the engine does not have, or that no engine has.

    >>> launch("llama-3-8b", tp=2, engine="vllm@0.8.5").commands[0][:5]
    ('vllm', 'serve', 'meta-llama/Meta-Llama-3-8B', '--tensor-parallel-size', '2')
    """
    hosts = whole_number(host_gpus, "host_gpus")
    said: str | None = None
    found: tuple[ServerPart, ...]
    if plan is None:
        if candidate is not None:
            raise InputError("candidate chooses among those of a plan; give the plan too")
        if model is None:
            raise InputError("nothing to launch: give a model, or a plan")
        found = (ServerPart("", {"model": model, "gpu": gpu, **scenario}, whole_number(replicas, "replicas")),)
    else:
        if model is not None or any(value is not None for value in scenario.values()):
            raise InputError("a plan has its own model and options; give a plan, or a model with options")
        if replicas != 1:
            raise InputError("a plan has its own number of replicas; leave replicas out")
        chosen, traffic = _candidate(plan, candidate)
        found, said = tuple(_parts(chosen, traffic)), _planned(chosen)
    targets = [aim(part.scenario, part.role, hosts) for part in found]
    _check_pairs(targets)
    servers = tuple(_server(target, part) for target, part in zip(targets, found, strict=True))
    warnings = dict.fromkeys(warning for target in targets for warning in target.estimate.warnings)
    each = [tuple(_notes(target)) for target in targets]
    notes = [said] if said else []
    for server, own in zip(servers, each, strict=True):  # with the name of the server where they are not those of all
        notes += [note if all(note in others for others in each) else f"{server.role}: {note}" for note in own]
    notes += _several(servers, targets)
    return Launch(servers, _front_ends(servers), tuple(dict.fromkeys(notes)), tuple(warnings))


def parts_of_plan(plan: str | PathLike[str] | Mapping[str, Any], candidate: int | None = None) -> list[ServerPart]:
    """The kinds of server of a plan's best candidate, or of one by its number from 1.

    Raises InputError (SpecError for the file) for what no plan is.
    """
    return list(_parts(*_candidate(plan, candidate)))


def _candidate(plan: str | PathLike[str] | Mapping[str, Any], number: int | None) -> tuple[Mapping[str, Any], object]:
    """A candidate of what `rooflinekit plan --format json` wrote, the best or by its number from 1, and the traffic.

    Raises InputError (SpecError for the file) if it is something else, or there is none.
    """
    data: Any = plan if isinstance(plan, Mapping) else read_json(Path(plan))
    if not isinstance(data, Mapping) or not isinstance(data.get("candidates"), list):
        raise InputError("plan: no list of candidates in it; give what `rooflinekit plan --format json` writes")
    found, count = data["candidates"], len(data["candidates"])
    chosen = data.get("best") if number is None else None
    if number is not None:
        if whole_number(number, "candidate") > count:
            raise InputError(f"candidate {number} is not in the plan; it has {f'1 to {count}' if count else 'none'}")
        chosen = found[number - 1]
    if not isinstance(chosen, Mapping):
        if number is not None:
            raise InputError(f"plan: candidate {number} is {chosen!r}, not an object")
        raise InputError(
            "plan: it has no best candidate, since none meets the objectives"
            + (f"; choose one with candidate, 1 to {count}" if count else "")
        )
    return chosen, data.get("traffic")


def _planned(candidate: Mapping[str, Any]) -> str | None:
    """Prediction of the plan for the candidate as a whole; None if it does not say."""
    table = candidate.get("predicted")
    times = [table.get(f"{name}_ms") if isinstance(table, Mapping) else None for name in ("ttft", "tpot")]
    found = [f"p95 {name} {p95:.1f} ms" for name, each in zip(("TTFT", "TPOT"), times, strict=True)
             if isinstance(each, Mapping) and _is_number(p95 := each.get("p95"))]  # fmt: skip
    return f"the plan predicts {', '.join(found)} at its peak" if found else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parts(candidate: Mapping[str, Any], traffic: object = None) -> Iterator[ServerPart]:
    """The kinds of server of a candidate; lengths and load that their scenarios leave out are those of the traffic.

    Raises InputError for a candidate without a scenario.
    """
    fleet = candidate.get("fleet")
    members = [candidate] if fleet is None else fleet
    if not isinstance(members, list) or not members:
        raise InputError(f"plan: fleet {fleet!r} is not a list of candidates")
    for number, member in enumerate(members, start=0 if fleet is None else 1):
        if number and (not isinstance(member, Mapping) or "fleet" in member):
            raise InputError(f"plan: fleet: part {number} is not a candidate")
        split = [role for role in ("prefill", "decode") if member.get(role) is not None]
        if len(split) == 1:
            raise InputError(f"plan: a candidate has {split[0]} and no {'decode' if 'prefill' in split else 'prefill'}")
        for role in split or [""]:
            entry = member[role] if role else member
            scenario = entry.get("scenario") if isinstance(entry, Mapping) else None
            if not isinstance(entry, Mapping) or not isinstance(scenario, Mapping):
                raise InputError(f"plan: {role or 'a candidate'} has no scenario (keywords of estimate)")
            replicas = entry.get("replicas")
            count = 1 if replicas is None else whole_number(replicas, "replicas")
            asked = _asked(traffic, entry, role, scenario) if isinstance(traffic, Mapping) else {}
            yield ServerPart(role, {**asked, **scenario}, count, number)


def _asked(
    traffic: Mapping[str, Any], entry: Mapping[str, Any], role: str, scenario: Mapping[str, Any]
) -> dict[str, Any]:
    """Lengths, and the load of one replica for a server of both prefill and decode that has no prefix cached."""
    numbers = {key: value for key, value in traffic.items() if _is_number(value)}
    asked: dict[str, Any] = {key: max(round(numbers[name]), 1) for key, name in _LENGTHS.items() if name in numbers}
    load = entry.get("load")
    if role or not _is_number(load) or any(key in scenario for key in (*_LOADS, "cached")):
        return asked
    asked |= {key: numbers[key] for key in _SPREADS if key in numbers}
    if "users" in numbers:
        return asked | {"concurrency": max(round(load), 1)}
    gaps = entry.get("burstiness", numbers.get("arrival_cv"))
    return asked | {"rate": load} | ({"burstiness": gaps} if _is_number(gaps) else {})


def _check_pairs(targets: list[Target]) -> None:
    """Raise DeploymentError where prefill and decode servers cannot exchange their cache."""
    for prefill, decode in pairwise(targets):
        if prefill.role == "prefill" and decode.role == "decode":
            ours, theirs = (
                (t.table.engine, t.version, t.checkpoint.argument, str(t.plan.precision.kv)) for t in (prefill, decode)
            )
            if ours != theirs:
                raise DeploymentError(
                    f"prefill has {' '.join(ours)}, decode {' '.join(theirs)}. The cache goes from one to the other, "
                    "so both need the same engine, version, checkpoint and cache format"
                )


def _server(target: Target, part: ServerPart) -> Server:
    granted = list(grant(target.table, target.version, wishes(target)))
    by_flag = any(setting.flag == "--model-path" for setting in granted)
    file, engine = target.flag("config"), target.table.engine
    first = _PORTS[part.role] + _PART * part.number
    asked = {"port": first, "bootstrap": _BOOTSTRAP + _PART * part.number if part.role == "prefill" else None}
    ports = tuple((flag.spelling, at) for key, at in asked.items() if at is not None and (flag := target.flag(key)))
    front_end = f"{part.name.removesuffix('prefill')}disagg.yaml"
    answer, memory = target.estimate, target.estimate.memory
    prediction = Prediction(
        answer.model, answer.gpu, target.plan.deployment.gpus, answer.engine, target.version, answer.level,
        answer.inputs["batch"], answer.inputs["isl"], answer.inputs["osl"],
        answer.load.arrivals if answer.load else None, answer.ttft_ms, answer.tpot_ms,
        answer.output_tok_s, memory.kv_pool_bytes, memory.kv_pool_tokens,
    )  # fmt: skip
    return Server(
        part.name, target.table.program, () if by_flag else (target.checkpoint.argument,), tuple(granted),
        front_end if engine == "trtllm" and part.role == "prefill" else "", file.spelling if file else "", ports,
        part.replicas, target.host_gpus, prediction,
        first + _CHANNEL if part.role and engine == "vllm" else 0, target.plan.deployment.dp,
        part.scenario.get("rate"),
    )  # fmt: skip


def _notes(target: Target) -> Iterator[str]:
    """Notes on settings without a flag, and on work left to the user."""
    deployment, engine = target.plan.deployment, target.table.engine
    for checkpoint in (target.checkpoint, target.draft_model):
        if checkpoint is not None and checkpoint.note:
            yield checkpoint.note
    if deployment.microbatches > 1:
        yield f"microbatches={deployment.microbatches} has no flag: {engine} cuts batches over its stages by itself"
    for name, value, usual in (
        ("all_reduce", deployment.all_reduce, "auto"),
        ("all_to_all", "auto" if target.exchanged else deployment.all_to_all, "auto"),
        ("two_batch", deployment.two_batch and not target.has("two_batch"), False),
        ("dispatch", deployment.dispatch, None),
        ("activations", deployment.activations, None),
    ):
        if value != usual:
            yield f"{name}={value} has no flag that is known: see that {engine} chooses it"
    if deployment.power_cap is not None:
        yield f"set the power limit before the start: nvidia-smi --power-limit {deployment.power_cap:g}"
    if deployment.clock is not None:
        yield f"lock the clock before the start: nvidia-smi --lock-gpu-clocks {deployment.clock:g}"
    yield from engine_notes(target)


def _several(servers: tuple[Server, ...], targets: list[Target]) -> Iterator[str]:
    """Notes on joining several servers to one service."""
    for server, target in zip(servers, targets, strict=True):
        if server.replicas > server.per_host:
            left = server.replicas % server.per_host
            rest = f", of the last host only the first {left} commands" if left else ""
            yield (
                f"{server.role}: {server.replicas} replicas of {server.gpus} GPUs on {server.hosts} hosts of "
                f"{server.host_gpus} GPUs (--host-gpus): the same on each host{rest}"
            )
        if target.role == "prefill":
            yield target.table.notes["split"].format(file=server.front_end)
        elif not target.role and server.replicas > 1:
            yield target.table.notes["replicas"]
    if len(servers) > 1:
        yield "each kind of server is meant for hosts of its own: device numbers begin at 0 in each"


def _front_ends(servers: tuple[Server, ...]) -> dict[str, str]:
    """The files that TensorRT-LLM's front ends of split deployments read."""
    files = {}
    for prefill, decode in pairwise(servers):
        if prefill.front_end:
            config = {
                "hostname": "localhost",
                "port": prefill.port - _PORTS["prefill"] + _PORTS[""],
                "backend": "pytorch",
                "context_servers": _urls(prefill),
                "generation_servers": _urls(decode),
            }
            files[prefill.front_end] = yaml.safe_dump(config, sort_keys=False)
    return files


def _urls(server: Server) -> dict[str, Any]:
    hosts = -(-server.replicas // server.per_host)
    names = ["localhost"] if hosts == 1 else [f"{server.role}-host-{number + 1}" for number in range(hosts)]
    urls = [f"{name}:{server.port + number}" for name in names for number in range(server.per_host)]
    return {"num_instances": server.replicas, "urls": urls[: server.replicas]}

"""Manifests of a deployment or a plan: Docker Compose, KServe, llm-d, Dynamo, LeaderWorkerSet and SkyPilot.

Each starts the very commands of `rooflinekit launch`. Field names are those of the published schemas: compose-spec
170098b, KServe's InferenceService v1beta1 (aaac4e2), KEDA's ScaledObject (8b4f083), the values of llm-d-modelservice
(3051935), Dynamo's DynamoGraphDeployment v1beta1 (006b6e1, ai-dynamo 1.6.1), LeaderWorkerSet v1 (060ab4d) and SkyPilot
0.14.1.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from textwrap import wrap
from typing import Any

import yaml

from rooflinekit.decision.launching.launch import HEAD, Launch, Server, predicted
from rooflinekit.model.types.errors import InputError, nearest_of
from rooflinekit.ops.templates import filled
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.files import table_of
from rooflinekit.version import __version__

METRIC = "rooflinekit_predicted_replicas"
"""Metric that autoscalers follow; `rooflinekit watch --listen` exports it."""
_WIDTH = 110

_facts = partial(table_of, __file__)


def manifest(launch: Launch, target: str) -> str:
    """Manifest for a target, as YAML; its first comment says which numbers of the prediction it carries.

    Raises InputError for an unknown target, and for what a target cannot hold.
    """
    targets = _facts()["targets"]
    if target not in targets:
        raise InputError(f"--target {target!r} is not known; nearest: {nearest_of(target, targets)}")
    _check(launch, target, targets[target])
    documents = _WRITERS[target](launch)
    texts = [yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=_WIDTH) for each in documents]
    return "\n".join((*_head(launch, target), "---\n".join(texts)))


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; nothing by reference."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _check(launch: Launch, target: str, can: dict[str, Any]) -> None:
    servers, others = launch.servers, _facts()["targets"]

    def instead(key: str) -> str:
        return " or ".join(name for name, each in others.items() if each[key])

    for server in servers:
        if (engine := server.prediction.engine) not in can["engines"]:
            raise InputError(f"--target {target} starts {' and '.join(can['engines'])}, and this is {engine}")
        _resource(server)
        if server.gpus > server.host_gpus and not can["hosts"]:
            raise InputError(
                f"a replica of {server.gpus} accelerators spans hosts of {server.host_gpus}; --target {target} does "
                f"not, take {instead('hosts')}"
            )
    split = any(_role(server) for server in servers)
    if split and not can["split"]:
        raise InputError(
            f"prefill and decode apart need --target {instead('split')}, not {target}; or another --candidate"
        )
    if len(servers) > (2 if split else 1) and not can["kinds"]:
        raise InputError(
            f"a fleet of {len(servers)} kinds of server needs --target {instead('kinds')}, or another --candidate"
        )


def _head(launch: Launch, target: str) -> Iterator[str]:
    """Comment: what was predicted, what of it stands below, and what a user has to do."""

    def comment(text: str, first: str = "# ") -> list[str]:
        plain = " ".join("".join(each if each.isprintable() else " " for each in text).split())
        return wrap(
            plain,
            _WIDTH,
            initial_indent=first,
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )

    yield f"# rooflinekit {__version__} launch --target {target}"
    for server in launch.servers:
        made = server.prediction
        name = "" if server.role == "serve" else f"{server.role}: "
        yield from comment(f"{name}{made.model} on {made.gpus} x {made.gpu}, {made.engine} {made.version}")
        yield from comment(predicted(server))
        carried = [
            f"{server.replicas} replicas" if server.replicas > 1 else "1 replica",
            f"{server.gpus} accelerator{'s' * (server.gpus > 1)}",
            *(f"{each.flag} {each.value}" for each in server.settings if each.on_command_line),
        ]
        yield from comment(f"{name}carried: {'; '.join(carried + _scaled(server, target))}")
    yield from comment(f"not carried: {_facts()['targets'][target]['left']}")
    if image := _facts()["own_images"].get(target):
        yield from comment(f"image: {image} stands for the version that you run; its flags have to be those below")
    for note in (*launch.warnings, *launch.notes):
        yield from comment(note, "# - ")


def _scaled(server: Server, target: str) -> list[str]:
    if target in ("kserve", "lws"):
        return [f"1 to {server.replicas} replicas by {METRIC}"] if server.replicas > 1 else []
    if target == "skypilot" and server.rate is not None and server.replicas > 1:
        return [f"{server.rate:g} requests/s a replica, 1 to {server.replicas} replicas"]
    return []


def _role(server: Server) -> str:
    found = server.role.rpartition("-")[2]
    return found if found in ("prefill", "decode") else ""


def _name(server: Server, several: bool = False) -> str:
    """A name as Kubernetes takes it (RFC 1123)."""
    parts = [server.prediction.model, server.role] if several else [server.prediction.model]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:50].strip("-")


def _image(server: Server) -> str:
    made = server.prediction
    return str(_facts()["images"][made.engine]).format(version=made.version)


def _resource(server: Server) -> str:
    gpu = load_accelerator(server.prediction.gpu).value
    known = _facts()["resources"]
    if gpu.vendor not in known:
        raise InputError(f"{gpu.name} is of {gpu.vendor}; images and resources are known for {', '.join(known)}")
    return str(known[gpu.vendor])


def _values(server: Server, **more: Any) -> dict[str, Any]:
    """What templates say of a server: one replica of it, or its share of it on one host."""
    words = [*server.positional, *(word for option in server.options() for word in option)]  # of a host's first replica
    hosts = -(-server.gpus // server.host_gpus)
    scaled = {"keda": "keda"} if server.replicas > 1 else {}
    return {
        "name": _name(server), "image": _image(server),
        "program": list(server.program), "words": words, "args": [*words, *_listening(server)], "port": server.port,
        "replicas": server.replicas, "resource": _resource(server), "gpus": str(min(server.gpus, server.host_gpus)),
        "hosts": hosts, "several_hosts": hosts > 1, "one_host": hosts == 1,
        "query": f'max({METRIC}{{model="{server.prediction.model}"}})', **scaled, **more,
    }  # fmt: skip


def _listening(server: Server) -> list[str]:
    return [] if server.prediction.engine == "vllm" else ["--host", "0.0.0.0"]


def _compose(launch: Launch) -> list[dict[str, object]]:
    """The replicas of one host, each with its own accelerators and port."""
    (server,) = launch.servers
    name, services = _name(server), dict[str, Any]()
    for number in range(server.per_host):
        devices = [str(number * server.gpus + place) for place in range(server.gpus)]
        own = _values(server, own_port=server.port + number, devices=devices)
        services[name if server.per_host == 1 else f"{name}-{number}"] = filled(_facts(), "compose", own)
    return [{"name": name, "services": services, "volumes": {"models": {}}}]


def _kserve(launch: Launch) -> list[dict[str, object]]:
    """An InferenceService for each kind of server, scaled by KEDA."""
    several = len(launch.servers) > 1
    named = ((each, _name(each, several)) for each in launch.servers)
    return [filled(_facts(), "kserve", _values(each, name=name, container="kserve-container")) for each, name in named]


def _llm_d(launch: Launch) -> list[dict[str, object]]:
    """Values of the chart llm-d-modelservice."""
    split, model = len(launch.servers) > 1, launch.servers[0].positional[0]
    if model.startswith("/"):
        raise InputError(f"llm-d takes its model from the hub, and this one is the folder {model}; name one of the hub")
    values = filled(_facts(), "llm-d", _values(launch.servers[0], model=model, split=split))
    for server in launch.servers:
        role = _role(server) or "decode"
        shares = {each.flag: str(each.value) for each in server.settings}
        degrees = {kind: int(shares.get(f"--{kind}-parallel-size", "1")) for kind in ("tensor", "data")}
        skipped = {"--port", "--tensor-parallel-size", "--data-parallel-size"}  # the chart says these
        args = [word for option in server.options() if option[0] not in skipped for word in option]
        port = 8200 if split and role == "decode" else 8000  # behind the proxy: routing.proxy.targetPort
        own = {"container": "vllm", "image": _facts()["own_images"]["llm-d"], "args": args, "port": port, **degrees}
        side = {"side_channel": str(server.side_channel)} if server.side_channel else {}
        values[role] = filled(_facts(), "llm-d role", _values(server, **own, **side))
    return [values if split else values | {"prefill": {"create": False}}]


_DYNAMO_SAYS = (
    "--port",
    "--distributed-executor-backend",
    "--data-parallel-address",
    "--data-parallel-size-local",
)
"""Settings that Dynamo's operator decides: examples/backends/vllm/deploy/v1beta1/disagg-multinode.yaml (04521f4) and
deploy/operator/internal/dynamo/backend_vllm.go (003d1ee)."""


def _dynamo(launch: Launch) -> list[dict[str, object]]:
    """A graph of a front end and its workers."""
    image = _facts()["own_images"]["dynamo"]
    components = [filled(_facts(), "dynamo front", {"image": image})]
    for server in launch.servers:
        role = _role(server)
        options = [word for option in server.options() if option[0] not in _DYNAMO_SAYS for word in option]
        args = ["--model", server.positional[0], *options, *(["--disaggregation-mode", role] if role else [])]
        own = _values(server, image=image, args=args, Role=role.capitalize(), type=role or "worker")
        components.append(filled(_facts(), "dynamo worker", own))
    return [filled(_facts(), "dynamo", {"name": _name(launch.servers[0]), "components": components})]


def _lws(launch: Launch) -> list[dict[str, object]]:
    """A LeaderWorkerSet of each kind of server and its Service, and a ScaledObject of several replicas."""
    found: list[dict[str, Any]] = []
    for server in launch.servers:
        values = _values(server, name=_name(server, len(launch.servers) > 1), container="leader")
        leader = worker = filled(_facts(), "container", values)
        if values["several_hosts"]:
            begun, joined = _on_hosts(server, leader)
            worker = {key: leader[key] for key in ("image", "env", "resources", "volumeMounts")}
            worker |= {"name": "worker", "command": ["sh", "-c", joined]}
            leader |= {"command": ["sh", "-c", begun], "args": []}
        made = (
            filled(_facts(), name, values | {"leader": leader, "worker": worker})
            for name in ("lws", "lws service", "lws scaled")
        )
        found += (each for each in made if each is not None)
    return found


_MULTI_NODE = "/vllm-workspace/examples/online_serving/multi-node-serving.sh"
"""Start of several hosts in vLLM's image: docs/examples/vllm/GPU/lws.yaml of kubernetes-sigs/lws (060ab4d)."""


def _on_hosts(server: Server, leader: dict[str, Any]) -> tuple[str, str]:
    """Shell commands of the leader of several hosts and of each worker.

    SGLang runs the same on each with its rank. vLLM's attention replicas are on all hosts, those of workers without an
    API server; a model that is split over hosts joins them by Ray. Variables are those of LeaderWorkerSet.
    """
    words = [*leader["command"], *leader["args"]]
    serve = shlex.join(words).replace(HEAD, "$(LWS_LEADER_ADDRESS)")
    if server.prediction.engine == "sglang":
        ranked = serve.replace("--node-rank 0", "--node-rank $(LWS_WORKER_INDEX)")
        return ranked, ranked
    if server.attention_replicas > 1:
        local = server.attention_replicas * server.host_gpus // server.gpus
        return serve, f"{serve} --headless --data-parallel-start-rank $((LWS_WORKER_INDEX * {local}))"
    begun = f"bash {_MULTI_NODE} leader --ray_cluster_size=$(LWS_GROUP_SIZE)"
    return f"{begun}; {serve}", f"bash {_MULTI_NODE} worker --ray_address=$(LWS_LEADER_ADDRESS)"


def _skypilot(launch: Launch) -> list[dict[str, object]]:
    """A task of SkyPilot with a service: `sky serve up FILE`."""
    (server,) = launch.servers
    names = _facts()["skypilot"]
    if (gpu := server.prediction.gpu) not in names:
        raise InputError(f"SkyPilot's name of {gpu} is not known here; known: {', '.join(names)}")
    scaled = server.replicas > 1 and server.rate is not None
    count = {"rate": float(server.rate or 0.0)} if scaled else {"fixed": server.replicas}
    own = _values(server, sky_gpu=names[gpu], all_gpus=server.gpus, **count)
    return [filled(_facts(), "skypilot", own | {"run": shlex.join([*server.program, *own["args"]]) + "\n"})]


_WRITERS: dict[str, Callable[[Launch], list[dict[str, Any]]]] = {
    "vllm-compose": _compose,
    "kserve": _kserve,
    "llm-d": _llm_d,
    "dynamo": _dynamo,
    "lws": _lws,
    "skypilot": _skypilot,
}

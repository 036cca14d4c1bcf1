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
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.files import table_of
from rooflinekit.version import __version__

METRIC = "rooflinekit_predicted_replicas"
"""Metric that autoscalers follow; `rooflinekit watch --listen` exports it."""
_PROMETHEUS = "http://prometheus-server.monitoring.svc:80"  # assumption: Prometheus' own chart in `monitoring`
_START_S = 1800  # seconds to download, load and compile before a container counts as failed: an assumption
_EVERY_S = 10  # seconds between two probes: Kubernetes' own default
_SECRET, _KEY = "hf-token-secret", "HF_TOKEN"  # as Dynamo's examples call the secret
_CACHE = "/root/.cache/huggingface"
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

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _check(launch: Launch, target: str, can: dict[str, Any]) -> None:
    """Raise InputError for what the target cannot hold."""
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
        return wrap(plain, _WIDTH, initial_indent=first, subsequent_indent="#   ", break_long_words=False,
                    break_on_hyphens=False)  # fmt: skip

    yield f"# rooflinekit {__version__} launch --target {target}"
    for server in launch.servers:
        made = server.prediction
        name = "" if server.role == "serve" else f"{server.role}: "
        yield from comment(f"{name}{made.model} on {made.gpus} x {made.gpu}, {made.engine} {made.version}")
        yield from comment(predicted(server))
        carried = [f"{server.replicas} replicas" if server.replicas > 1 else "1 replica", f"{server.gpus} accelerators",
                   *(f"{each.flag} {each.value}" for each in server.settings if each.on_command_line)]  # fmt: skip
        yield from comment(f"{name}carried: {'; '.join(carried + _scaled(server, target))}")
    yield from comment(f"not carried: {_LEFT[target]}")
    if image := _facts()["own_images"].get(target):
        yield from comment(f"image: {image} stands for the version that you run; its flags have to be those below")
    for note in (*launch.warnings, *launch.notes):
        yield from comment(note, "# - ")


_LEFT = {
    "vllm-compose": "the router (put one in front of the ports), the number of hosts",
    "kserve": "the router (KServe's own), what kind of node it runs on: add a nodeSelector",
    "llm-d": "the router (the gateway's InferencePool chooses), what kind of node it runs on, autoscaling",
    "dynamo": "the router (--router-mode of the Frontend), what kind of node it runs on, autoscaling (its planner's)",
    "lws": "the router (the Service chooses at random), what kind of node it runs on: add a nodeSelector",
    "skypilot": "the router (SkyServe's own), the cloud",
}
"""Settings of a plan that the target has no place for."""


def _scaled(server: Server, target: str) -> list[str]:
    if target in ("kserve", "lws"):
        return [f"1 to {server.replicas} replicas by {METRIC}"] if server.replicas > 1 else []
    if target == "skypilot" and server.rate is not None and server.replicas > 1:
        return [f"{server.rate:g} requests/s a replica, 1 to {server.replicas} replicas"]
    return []


# --- parts that several have ------------------------------------------------------------------------------------------


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


def _words(server: Server) -> list[str]:
    """Options of the first replica on a host; in a container each has accelerators and ports of its own."""
    return [word for option in server.options() for word in option]


def _command(server: Server) -> list[str]:
    return [*server.program, *server.positional, *_words(server)]


def _probe(server: Server, **more: int) -> dict[str, Any]:
    return {"httpGet": {"path": "/health", "port": server.port}, "periodSeconds": _EVERY_S, **more}


def _container(server: Server, name: str) -> dict[str, Any]:
    """A container of Kubernetes that runs one replica, or its share of it on one host."""
    gpus = {_resource(server): str(min(server.gpus, server.host_gpus))}
    listening = [] if server.prediction.engine == "vllm" else ["--host", "0.0.0.0"]
    return {
        "name": name,
        "image": _image(server),
        "command": list(server.program),
        "args": [*server.positional, *_words(server), *listening],
        "env": [_token()],
        "ports": [{"containerPort": server.port, "protocol": "TCP"}],
        "resources": {"requests": dict(gpus), "limits": gpus},
        "startupProbe": _probe(server, failureThreshold=_START_S // _EVERY_S),
        "readinessProbe": _probe(server),
        "livenessProbe": _probe(server, failureThreshold=3, timeoutSeconds=_EVERY_S),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "models", "mountPath": _CACHE}],
    }


def _token() -> dict[str, Any]:
    return {"name": _KEY, "valueFrom": {"secretKeyRef": {"name": _SECRET, "key": _KEY, "optional": True}}}


def _volumes() -> list[dict[str, Any]]:
    return [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "models", "emptyDir": {}}]


def _query(server: Server) -> str:
    return f'max({METRIC}{{model="{server.prediction.model}"}})'


# --- one writer a target ----------------------------------------------------------------------------------------------


def _compose(launch: Launch) -> list[dict[str, Any]]:
    """The replicas of one host, each with its own accelerators and port."""
    (server,) = launch.servers
    name, services = _name(server), dict[str, Any]()
    for number in range(server.per_host):
        port = server.port + number
        first = number * server.gpus
        devices = {"driver": "nvidia", "capabilities": ["gpu"],
                   "device_ids": [str(gpu) for gpu in range(first, first + server.gpus)]}  # fmt: skip
        services[name if server.per_host == 1 else f"{name}-{number}"] = {
            "image": _image(server),
            "entrypoint": list(server.program),
            "command": [*server.positional, *_words(server)],
            "environment": {_KEY: f"${{{_KEY}:-}}"},
            "ports": [f"127.0.0.1:{port}:{server.port}"],
            "ipc": "host",
            "volumes": [f"models:{_CACHE}"],
            "deploy": {"resources": {"reservations": {"devices": [devices]}}},
            "healthcheck": {
                "test": ["CMD", "curl", "--fail", "--silent", f"http://localhost:{server.port}/health"],
                "interval": f"{_EVERY_S}s",
                "timeout": f"{_EVERY_S}s",
                "retries": 3,
                "start_period": f"{_START_S}s",
            },
            "restart": "unless-stopped",
        }
    return [{"name": name, "services": services, "volumes": {"models": {}}}]


def _kserve(launch: Launch) -> list[dict[str, Any]]:
    """An InferenceService for each kind of server, scaled by KEDA."""
    found = []
    for server in launch.servers:
        predictor: dict[str, Any] = {"minReplicas": 1, "maxReplicas": server.replicas}
        notes = {"serving.kserve.io/deploymentMode": "RawDeployment"}
        if server.replicas > 1:
            notes["serving.kserve.io/autoscalerClass"] = "keda"
            metric = {"backend": "prometheus", "serverAddress": _PROMETHEUS, "query": _query(server)}
            target = {"type": "AverageValue", "averageValue": "1"}
            external = {"metric": metric, "target": target}
            predictor["autoScaling"] = {"metrics": [{"type": "External", "external": external}]}
        predictor |= {"containers": [_container(server, "kserve-container")], "volumes": _volumes()}
        name = _name(server, len(launch.servers) > 1)
        found.append({
            "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
            "metadata": {"name": name, "annotations": notes}, "spec": {"predictor": predictor},
        })  # fmt: skip
    return found


def _llm_d(launch: Launch) -> list[dict[str, Any]]:
    """Values of the chart llm-d-modelservice."""
    split = len(launch.servers) > 1
    one = launch.servers[0]
    model = one.positional[0]
    if model.startswith("/"):
        raise InputError(f"llm-d takes its model from the hub, and this one is the folder {model}; name one of the hub")
    values: dict[str, Any] = {
        "fullnameOverride": _name(one),
        "multinode": False,
        "modelArtifacts": {
            "name": model, "uri": f"hf://{model}", "authSecretName": _SECRET,
            "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": _name(one)},
        },
        "accelerator": {"type": "nvidia"},
        "routing": {"servicePort": 8000, "proxy": {"enabled": split}},
    }  # fmt: skip
    for server in launch.servers:
        role = _role(server) or "decode"
        port = 8200 if split and role == "decode" else 8000  # behind the proxy: routing.proxy.targetPort
        own = _container(server, "vllm") | {"image": _facts()["own_images"]["llm-d"], "modelCommand": "vllmServe"}
        del own["command"], own["volumeMounts"]
        shares = {each.flag: str(each.value) for each in server.settings}
        tensor, data = (int(shares.get(f"--{kind}-parallel-size", "1")) for kind in ("tensor", "data"))
        skipped = {"--port", "--tensor-parallel-size", "--data-parallel-size"}  # the chart says these
        options = [each for each in server.options() if each[0] not in skipped]
        own["args"] = [word for option in options for word in option]
        own["ports"] = [{"containerPort": port, "name": "metrics", "protocol": "TCP"}]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            own[probe] = own[probe] | {"httpGet": {"path": "/health", "port": port}}
        own["env"] = [*own["env"], *_side_channel(server)]
        own["mountModelVolume"] = True
        values[role] = {
            "create": True, "replicas": server.replicas,
            "parallelism": {"tensor": tensor, "data": data, "dataLocal": data},
            "containers": [own], "monitoring": {"podmonitor": {"enabled": True, "portName": "metrics"}},
        }  # fmt: skip
    if not split:
        values["prefill"] = {"create": False}
    return [values]


def _side_channel(server: Server) -> list[dict[str, Any]]:
    """Ports at which vLLM's servers of a split deployment agree on transfers."""
    if not server.side_channel:
        return []
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address},
        {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(server.side_channel)},
    ]


_DYNAMO_SAYS = (
    "--port", "--distributed-executor-backend", "--data-parallel-address", "--data-parallel-size-local",
)  # fmt: skip
"""Settings that Dynamo's operator decides: examples/backends/vllm/deploy/v1beta1/disagg-multinode.yaml (04521f4) and
deploy/operator/internal/dynamo/backend_vllm.go (003d1ee)."""


def _dynamo(launch: Launch) -> list[dict[str, Any]]:
    """A graph of a front end and its workers."""
    front = {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": _main("dynamo.frontend")}
    components: list[dict[str, Any]] = [front]
    for server in launch.servers:
        role = _role(server)
        hosts = -(-server.gpus // server.host_gpus)
        options = [each for each in server.options() if each[0] not in _DYNAMO_SAYS]
        mode = ["--disaggregation-mode", role] if role else []
        args = ["--model", server.positional[0], *(word for option in options for word in option), *mode]
        secret = {"secretRef": {"name": _SECRET, "optional": True}}
        gpus = {_resource(server): str(min(server.gpus, server.host_gpus))}
        components.append({
            "name": f"Vllm{role.capitalize()}Worker", "type": role or "worker", "replicas": server.replicas,
            **({"multinode": {"nodeCount": hosts}} if hosts > 1 else {}),
            "podTemplate": _main("dynamo.vllm", args=args, envFrom=[secret], resources={"limits": gpus}),
        })  # fmt: skip
    kind = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment"}
    spec = {"backendFramework": "vllm", "components": components}
    return [{**kind, "metadata": {"name": _name(launch.servers[0])}, "spec": spec}]


def _main(module: str, **more: Any) -> dict[str, Any]:
    """A pod whose container `main` runs a module of Dynamo; its operator adds ports and probes."""
    image = _facts()["own_images"]["dynamo"]
    container = {"name": "main", "image": image, "command": ["python3", "-m", module], **more}
    return {"spec": {"containers": [container]}}


def _lws(launch: Launch) -> list[dict[str, Any]]:
    """A LeaderWorkerSet of each kind of server and its Service, and a ScaledObject of several replicas."""
    found: list[dict[str, Any]] = []
    for server in launch.servers:
        name = _name(server, len(launch.servers) > 1)
        hosts = -(-server.gpus // server.host_gpus)
        leader = _container(server, "leader")
        group: dict[str, Any] = {"size": hosts, "restartPolicy": "RecreateGroupOnPodRestart"}
        if hosts > 1:
            worker = {key: leader[key] for key in ("image", "env", "resources", "volumeMounts")} | {"name": "worker"}
            begun, joined = _on_hosts(server, leader)
            leader |= {"command": ["sh", "-c", begun], "args": []}
            worker |= {"command": ["sh", "-c", joined]}
            labels = {"metadata": {"labels": {"role": "leader"}}}
            group["leaderTemplate"] = labels | {"spec": {"containers": [leader], "volumes": _volumes()}}
            group["workerTemplate"] = {"spec": {"containers": [worker], "volumes": _volumes()}}
        else:
            labels = {"metadata": {"labels": {"role": "leader"}}}
            group["workerTemplate"] = labels | {"spec": {"containers": [leader], "volumes": _volumes()}}
        kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        found.append({**kind, "metadata": {"name": name},
                      "spec": {"replicas": server.replicas, "leaderWorkerTemplate": group}})  # fmt: skip
        ports = [{"name": "http", "port": 8000, "protocol": "TCP", "targetPort": server.port}]
        selector = {"leaderworkerset.sigs.k8s.io/name": name, "role": "leader"}
        found.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                      "spec": {"ports": ports, "selector": selector}})  # fmt: skip
        if server.replicas > 1:
            found.append(_scaled_object(server, name, kind))
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


def _scaled_object(server: Server, name: str, kind: dict[str, str]) -> dict[str, Any]:
    """KEDA follows the predicted replicas."""
    trigger = {
        "type": "prometheus", "metricType": "AverageValue",
        "metadata": {"serverAddress": _PROMETHEUS, "query": _query(server), "threshold": "1"},
    }  # fmt: skip
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {**kind, "name": name},
            "minReplicaCount": 1,
            "maxReplicaCount": server.replicas,
            "triggers": [trigger],
        },
    }


def _skypilot(launch: Launch) -> list[dict[str, Any]]:
    """A task of SkyPilot with a service: `sky serve up FILE`."""
    (server,) = launch.servers
    names = _facts()["skypilot"]
    if (gpu := server.prediction.gpu) not in names:
        raise InputError(f"SkyPilot's name of {gpu} is not known here; known: {', '.join(names)}")
    service: dict[str, Any] = {"readiness_probe": {"path": "/v1/models", "initial_delay_seconds": _START_S}}
    if server.replicas > 1 and server.rate is not None:
        policy = {"min_replicas": 1, "max_replicas": server.replicas, "target_qps_per_replica": float(server.rate)}
        service["replica_policy"] = policy
    else:
        service["replicas"] = server.replicas
    listening = [] if server.prediction.engine == "vllm" else ["--host", "0.0.0.0"]
    task: dict[str, Any] = {
        "name": _name(server),
        "service": service,
        "resources": {
            "accelerators": f"{names[gpu]}:{server.gpus}",
            "image_id": f"docker:{_image(server)}",
            "ports": server.port,
        },
        "secrets": {_KEY: None},
        "run": shlex.join([*_command(server), *listening]) + "\n",
    }
    return [task]


_WRITERS: dict[str, Callable[[Launch], list[dict[str, Any]]]] = {
    "vllm-compose": _compose,
    "kserve": _kserve,
    "llm-d": _llm_d,
    "dynamo": _dynamo,
    "lws": _lws,
    "skypilot": _skypilot,
}

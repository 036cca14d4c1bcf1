"""Manifests: the commands of `launch` with fields that the published schemas have, and what a target cannot hold.

The names of fields were validated against the schemas that `rooflinekit/ops/manifests.py` names. With
ROOFLINEKIT_SCHEMAS=FOLDER the custom resources are validated again, strictly: it holds the CRDs of KServe,
LeaderWorkerSet and KEDA, `compose-spec.json`, and `values.schema.json` of llm-d-modelservice. Dynamo's CRD is too large
to be brought here as a file: its rules for the fields that are written stand in `GRAPH`. Pods and services are checked
by the schemas of Kubernetes where the package kubernetes-validate is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_pipelines import tool
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.model.types.errors import InputError
from rooflinekit.ops.manifests import METRIC, manifest

TARGETS = ("vllm-compose", "kserve", "llm-d", "dynamo", "lws", "skypilot")
SCENARIO = {"model": "llama-3-8b", "gpu": "h100-sxm", "tp": 2, "engine": "vllm", "max_num_seqs": 128}
PLAN = {
    "traffic": {"rate": 45.0, "isl_mean": 900.0, "osl_mean": 100.0, "arrival_cv": 1.0},
    "candidates": [],
    "best": {"replicas": 3, "load": 15.0, "scenario": SCENARIO},
}
SPLIT = PLAN | {
    "best": {"prefill": {"scenario": SCENARIO, "replicas": 2}, "decode": {"scenario": SCENARIO, "replicas": 3}}
}

_CONTAINER = """
name image command[] args[] env[].name env[].valueFrom.secretKeyRef.name
env[].valueFrom.secretKeyRef.key env[].valueFrom.secretKeyRef.optional ports[].containerPort
ports[].protocol resources.requests.nvidia.com/gpu resources.limits.nvidia.com/gpu
startupProbe.httpGet.path startupProbe.httpGet.port startupProbe.periodSeconds
startupProbe.failureThreshold readinessProbe.httpGet.path readinessProbe.httpGet.port
readinessProbe.periodSeconds livenessProbe.httpGet.path livenessProbe.httpGet.port
livenessProbe.periodSeconds livenessProbe.failureThreshold livenessProbe.timeoutSeconds
volumeMounts[].name volumeMounts[].mountPath"""
CONTAINER = _CONTAINER.split()
POD = [*(f"containers[].{each}" for each in CONTAINER), "volumes[].name", "volumes[].emptyDir",
       "volumes[].emptyDir.medium"]  # fmt: skip
HEAD = ["apiVersion", "kind", "metadata.name"]
LEADER, WORKER = (f"spec.leaderWorkerTemplate.{each}Template" for each in ("leader", "worker"))
METRIC_OF = "spec.predictor.autoScaling.metrics[]"
CHART = [*CONTAINER, "modelCommand", "mountModelVolume", "ports[].name", "env[].value",
         "env[].valueFrom.fieldRef.fieldPath"]  # fmt: skip
FIELDS: dict[str, list[str]] = {
    "InferenceService": [
        *HEAD, "metadata.annotations.serving.kserve.io/deploymentMode",
        "metadata.annotations.serving.kserve.io/autoscalerClass", "spec.predictor.minReplicas",
        "spec.predictor.maxReplicas", f"{METRIC_OF}.type",
        *(f"{METRIC_OF}.external.metric.{each}" for each in ("backend", "serverAddress", "query")),
        *(f"{METRIC_OF}.external.target.{each}" for each in ("type", "averageValue")),
        *(f"spec.predictor.{each}" for each in POD),
    ],
    "LeaderWorkerSet": [
        *HEAD, "spec.replicas", "spec.leaderWorkerTemplate.size", "spec.leaderWorkerTemplate.restartPolicy",
        *(f"{each}.metadata.labels.role" for each in (LEADER, WORKER)),
        *(f"{each}.spec.{field}" for each in (LEADER, WORKER) for field in POD),
    ],
    "Service": [*HEAD, *(f"spec.ports[].{each}" for each in ("name", "port", "protocol", "targetPort")),
                "spec.selector.leaderworkerset.sigs.k8s.io/name", "spec.selector.role"],
    "ScaledObject": [
        *HEAD, *(f"spec.scaleTargetRef.{each}" for each in ("apiVersion", "kind", "name")), "spec.minReplicaCount",
        "spec.maxReplicaCount", "spec.triggers[].type", "spec.triggers[].metricType",
        *(f"spec.triggers[].metadata.{each}" for each in ("serverAddress", "query", "threshold")),
    ],
    "DynamoGraphDeployment": [
        *HEAD, "spec.backendFramework",
        *(f"spec.components[].{each}" for each in ("name", "type", "replicas", "multinode.nodeCount")),
        *(f"spec.components[].podTemplate.spec.containers[].{each}" for each in (
            "name", "image", "command[]", "args[]", "envFrom[].secretRef.name", "envFrom[].secretRef.optional",
            "resources.limits.nvidia.com/gpu")),
    ],
    "llm-d": [
        "fullnameOverride", "multinode", *(f"modelArtifacts.{each}" for each in ("name", "uri", "authSecretName")),
        "modelArtifacts.labels.llm-d.ai/inference-serving", "modelArtifacts.labels.llm-d.ai/model", "accelerator.type",
        "routing.servicePort", "routing.proxy.enabled",
        *(f"{role}.{each}" for role in ("prefill", "decode") for each in (
            "create", "replicas", "parallelism.tensor", "parallelism.data", "parallelism.dataLocal",
            "monitoring.podmonitor.enabled", "monitoring.podmonitor.portName",
            *(f"containers[].{field}" for field in CHART))),
    ],
    "skypilot": [
        "name", "service.readiness_probe.path", "service.readiness_probe.initial_delay_seconds", "service.replicas",
        *(f"service.replica_policy.{each}" for each in ("min_replicas", "max_replicas", "target_qps_per_replica")),
        *(f"resources.{each}" for each in ("accelerators", "image_id", "ports")), "secrets.HF_TOKEN", "run",
    ],
    "vllm-compose": [
        "name", "volumes.models",
        *(f"services.*.{each}" for each in (
            "image", "entrypoint[]", "command[]", "environment.HF_TOKEN", "ports[]", "ipc", "volumes[]",
            *(f"deploy.resources.reservations.devices[].{field}" for field in
              ("driver", "capabilities[]", "device_ids[]")),
            *(f"healthcheck.{field}" for field in ("test[]", "interval", "timeout", "retries", "start_period")),
            "restart")),
    ],
}  # fmt: skip
"""Fields that the schemas have, of those that are written."""


def fields(data: object, path: str = "") -> Iterator[str]:
    """Paths of everything that a document says."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            name = "*" if path == "services" else key
            yield from fields(value, f"{path}.{name}" if path else name)
    elif isinstance(data, list) and data:
        for each in data:
            yield from fields(each, f"{path}[]")
    else:
        yield path + "[]" * (data == [])


CASES = {
    "plan": lambda: rk.launch(plan=PLAN),
    "split": lambda: rk.launch(plan=SPLIT),
    "two hosts": lambda: rk.launch("llama-3.1-405b", "h100-sxm", tp=8, pp=2),
    "replicas on two hosts": lambda: rk.launch("deepseek-r1", "h100-sxm", tp=1, dp=16, ep=16, max_model_len=8192),
    "sglang on two hosts": lambda: rk.launch("deepseek-r1", "h100-sxm", tp=1, dp=16, ep=16, engine="sglang"),
    "sglang": lambda: rk.launch("llama-3-70b", tp=4, engine="sglang"),
}
HELD = {"plan": TARGETS, "split": ("llm-d", "dynamo"), "two hosts": ("dynamo", "lws"),
        "replicas on two hosts": ("dynamo", "lws"), "sglang on two hosts": ("lws",),
        "sglang": ("kserve", "lws", "skypilot")}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> dict[str, rk.Launch]:
    return {name: make() for name, make in CASES.items()}


def documents(launch: rk.Launch, target: str) -> list[Any]:
    return list(yaml.safe_load_all(manifest(launch, target)))


@pytest.mark.parametrize(("case", "target"), [(case, target) for case, held in HELD.items() for target in held])
def test_every_field_is_one_of_the_schema(case: str, target: str, made: dict[str, rk.Launch]) -> None:
    for each in documents(made[case], target):
        assert set(fields(each)) - set(FIELDS[each.get("kind", target)]) == set()


@pytest.mark.parametrize("case", HELD)
def test_what_a_target_cannot_hold_is_refused(case: str, made: dict[str, rk.Launch]) -> None:
    for target in (each for each in TARGETS if each not in HELD[case]):
        with pytest.raises(InputError, match=target):
            manifest(made[case], target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_and_the_numbers_are_those_of_launch(target: str, made: dict[str, rk.Launch]) -> None:
    text = manifest(made["plan"], target)
    (server,) = made["plan"].servers
    found = " ".join(str(each) for document in yaml.safe_load_all(text) for each in leaves(document))
    for setting in server.settings:
        if not (target == "llm-d" and "parallel-size" in setting.flag):  # the chart says it
            assert f"{setting.flag} {setting.value}" in found
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert any("carried: 3 replicas; 2 accelerators; --tensor-parallel-size 2" in line for line in head)
    assert any("not carried: the router" in line for line in head)
    assert text.splitlines().index(head[-1]) == len(head) - 1


def leaves(data: object) -> Iterator[object]:
    """Values of a document, in order."""
    for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from leaves(each)
    if not isinstance(data, dict | list):
        yield data


class TestTargets:
    def test_compose_gives_each_replica_its_accelerators(self, made: dict[str, rk.Launch]) -> None:
        (document,) = documents(made["plan"], "vllm-compose")
        found = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
                 for each in document["services"].values()]  # fmt: skip
        assert found == [["0", "1"], ["2", "3"], ["4", "5"]]
        assert [each["ports"] for each in document["services"].values()] == [
            [f"127.0.0.1:{port}:8000"] for port in (8000, 8001, 8002)
        ]

    def test_autoscalers_follow_the_predicted_replicas_up_to_the_plan(self, made: dict[str, rk.Launch]) -> None:
        _, _, scaled = documents(made["plan"], "lws")
        (trigger,) = scaled["spec"]["triggers"]
        assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (1, 3)
        assert METRIC in trigger["metadata"]["query"]
        assert trigger["metadata"]["threshold"] == "1"
        (service,) = documents(made["plan"], "kserve")
        (metric,) = service["spec"]["predictor"]["autoScaling"]["metrics"]
        assert METRIC in metric["external"]["metric"]["query"]
        (task,) = documents(made["plan"], "skypilot")
        assert task["service"]["replica_policy"] == {
            "min_replicas": 1, "max_replicas": 3, "target_qps_per_replica": 15.0,
        }  # fmt: skip
        assert task["resources"]["accelerators"] == "H100:2"

    def test_a_split_has_both_kinds(self, made: dict[str, rk.Launch]) -> None:
        (values,) = documents(made["split"], "llm-d")
        assert (values["prefill"]["replicas"], values["decode"]["replicas"]) == (2, 3)
        assert values["decode"]["parallelism"] == {"tensor": 2, "data": 1, "dataLocal": 1}
        assert values["decode"]["containers"][0]["ports"][0]["containerPort"] == 8200  # behind the proxy
        (graph,) = documents(made["split"], "dynamo")
        front, prefill, decode = graph["spec"]["components"]
        assert [each["type"] for each in (front, prefill, decode)] == ["frontend", "prefill", "decode"]
        (container,) = prefill["podTemplate"]["spec"]["containers"]
        assert container["args"][-2:] == ["--disaggregation-mode", "prefill"]
        assert (prefill["replicas"], container["resources"]["limits"]) == (2, {"nvidia.com/gpu": "2"})
        with pytest.raises(InputError, match="not kserve; or another --candidate"):
            manifest(made["split"], "kserve")

    def test_a_replica_on_two_hosts_is_one_group(self, made: dict[str, rk.Launch]) -> None:
        group = documents(made["two hosts"], "lws")[0]["spec"]["leaderWorkerTemplate"]
        assert group["size"] == 2
        (leader,) = group["leaderTemplate"]["spec"]["containers"]
        assert leader["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        started = shlex.split(leader["command"][-1].split("; ")[1])
        assert started.count("--distributed-executor-backend") == 1
        _, worker = documents(made["two hosts"], "dynamo")[0]["spec"]["components"]
        assert worker["multinode"] == {"nodeCount": 2}

    def test_attention_replicas_on_two_hosts_have_their_ranks(self, made: dict[str, rk.Launch]) -> None:
        group = documents(made["replicas on two hosts"], "lws")[0]["spec"]["leaderWorkerTemplate"]
        leader, worker = (
            group[f"{role}Template"]["spec"]["containers"][0]["command"][-1] for role in ("leader", "worker")
        )
        assert "--data-parallel-address '$(LWS_LEADER_ADDRESS)'" not in leader  # quotes would hide it from the shell
        assert "--data-parallel-address $(LWS_LEADER_ADDRESS)" in leader
        assert worker == f"{leader} --headless --data-parallel-start-rank $((LWS_WORKER_INDEX * 8))"
        (graph,) = documents(made["replicas on two hosts"], "dynamo")
        args = graph["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["args"]
        assert args[args.index("--data-parallel-size") + 1] == "16"
        assert not {"--data-parallel-address", "--data-parallel-size-local"} & {*args}  # its operator adds them
        both = documents(made["sglang on two hosts"], "lws")[0]["spec"]["leaderWorkerTemplate"]
        assert (
            "--dist-init-addr $(LWS_LEADER_ADDRESS):5000"
            in both["workerTemplate"]["spec"]["containers"][0]["command"][-1]
        )
        for role in ("leader", "worker"):
            assert "--node-rank $(LWS_WORKER_INDEX)" in both[f"{role}Template"]["spec"]["containers"][0]["command"][-1]

    def test_sglang_listens_beyond_its_container(self, made: dict[str, rk.Launch]) -> None:
        (task,) = documents(made["sglang"], "skypilot")
        assert "--host 0.0.0.0" in task["run"]
        assert task["resources"]["image_id"].startswith("docker:lmsysorg/sglang:v0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "kserv"], "kserve"),
        (["--target", "kserve", "--gpu", "mi300x"], "AMD"),
        (["--target", "kserve", "--format", "json"], "--format"),
        (["--target", "kserve", "--engine", "trtllm"], "trtllm"),
    ],
)
def test_refusals_are_one_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["launch", "llama-3-8b", *words])
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def strict(schema: Any) -> Any:
    """A CRD's schema that refuses fields which a server would drop."""
    if isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("type", None)
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        strict(each)
    return schema


DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas(folder: Path) -> dict[str, Any]:
    """Schemas by the kinds, or targets, that they are for."""
    found = {}
    for path in folder.iterdir():
        if path.suffix == ".json":
            schema = json.loads(path.read_text())
            found["llm-d" if "values" in path.name else "vllm-compose"] = {**schema, "$schema": DRAFT}
        else:
            data = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            schema = strict(data["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
            found[data["spec"]["names"]["kind"]] = schema | {
                "properties": schema["properties"] | {"metadata": {"type": "object"}}
            }
    return found


GRAPH = {
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "nvidia.com/v1beta1"},
        "spec": {
            "additionalProperties": False,
            "properties": {
                "backendFramework": {"enum": ["sglang", "vllm", "trtllm"]},
                "components": {
                    "maxItems": 25,
                    "items": {
                        "additionalProperties": False,
                        "required": ["name"],
                        "properties": {
                            "name": {"pattern": "^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", "maxLength": 63},
                            "type": {"enum": ["frontend", "worker", "prefill", "decode", "planner", "epp"]},
                            "replicas": {"type": "integer", "minimum": 0},
                            "multinode": {"properties": {"nodeCount": {"type": "integer", "minimum": 2}}},
                            "podTemplate": {"type": "object"},
                        },
                    },
                },
            },
        },
    },
}
"""What the CRD says of a graph: deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml (01cc1c3)."""


@pytest.mark.parametrize("case", ["plan", "split", "two hosts", "replicas on two hosts"])
def test_a_graph_keeps_the_rules_of_dynamo(case: str, made: dict[str, rk.Launch]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (graph,) = documents(made[case], "dynamo")
    jsonschema.validate(graph, GRAPH)
    components = graph["spec"]["components"]
    assert len({each["name"].lower() for each in components}) == len(components)
    for each in components:
        (container,) = each["podTemplate"]["spec"]["containers"]
        assert container["name"] == "main"
        assert all(part.isdecimal() for part in container["image"].rpartition(":")[2].split("."))  # admission reads it


@pytest.mark.slow
@pytest.mark.skipif("ROOFLINEKIT_SCHEMAS" not in os.environ, reason="ROOFLINEKIT_SCHEMAS names no folder of schemas")
def test_documents_are_valid_by_the_published_schemas(made: dict[str, rk.Launch]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    known, checked = schemas(Path(os.environ["ROOFLINEKIT_SCHEMAS"])), 0
    for case, held in HELD.items():
        for target in held:
            for document in documents(made[case], target):
                if (schema := known.get(document.get("kind", target))) is not None:
                    jsonschema.validate(document, schema)
                    checked += 1
    assert checked > 8


def test_docker_compose_takes_the_replicas_of_a_plan(made: dict[str, rk.Launch], tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(manifest(made["plan"], "vllm-compose"))
    done = subprocess.run([tool("docker-compose"), "config", "--format", "json"], cwd=tmp_path, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["services"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plan", "sglang"])
def test_skypilot_reads_the_task(case: str, made: dict[str, rk.Launch]) -> None:
    sky = pytest.importorskip("sky", reason="needs the package skypilot")
    (document,) = documents(made[case], "skypilot")
    task = sky.Task.from_yaml_config(document)
    assert task.service.readiness_path == "/v1/models"
    assert {(name, count) for each in task.resources for name, count in each.accelerators.items()} == {
        ("H100", {"plan": 2, "sglang": 4}[case])
    }


def objects(document: Any) -> Iterator[Any]:
    """Pods and services of a document, as Kubernetes' own kinds."""
    if isinstance(document, dict) and document.get("kind") == "Service":
        yield document
    elif isinstance(document, dict) and "containers" in document:
        spec = {key: value for key, value in document.items() if key in ("containers", "volumes")}
        spec["containers"] = [{"name": "one"} | each for each in spec["containers"]]
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
    else:
        for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
            yield from objects(each)


@pytest.mark.parametrize("target", ["kserve", "lws", "dynamo"])
def test_pods_and_services_are_valid_by_the_schemas_of_kubernetes(target: str, made: dict[str, rk.Launch]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate")
    for case in (each for each, held in HELD.items() if target in held):
        found = [each for document in documents(made[case], target) for each in objects(document)]
        assert found
        for each in found:
            validator.validate(each, "1.37", strict=True)

"""Metrics of `watch --listen`, the dashboard and the rules: one table of names, and nothing that nobody exports."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE
from test_docs import TEXTS
from test_watch import AN_HOUR, NOTHING, exposition
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.evidence.exposition import read_scrape
from rooflinekit.evidence.measured import read_intervals
from rooflinekit.evidence.watching import Watched, watch
from rooflinekit.ops import operation
from rooflinekit.ops.metrics import Metrics

prometheus_client = pytest.importorskip("prometheus_client", reason="needs rooflinekit[watch]")

ROWS = operation._rows()
OURS = {f"rooflinekit_{name}": set(row["labels"]) for name, row in ROWS["metrics"].items()}
RULES = yaml.safe_load(operation.rules())["groups"]
DASHBOARD = json.loads(operation.dashboard())
EXPRESSIONS = [rule["expr"] for group in RULES for rule in group["rules"]] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
]
NAME = re.compile(r"\b(?:rooflinekit_|vllm:|sglang:|engine:)[a-z_0-9:]+")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    from rooflinekit.evidence.exposition import scrape_text

    path = tmp_path_factory.mktemp("day") / "day.prom"
    path.write_text(scrape_text(exposition(NOTHING), 0.0) + scrape_text(exposition(AN_HOUR), 3600.0))
    return watch(list(read_intervals(path)), gpu="h100-sxm", tp=1)


class TestMetrics:
    def test_every_value_has_its_row_and_every_row_a_value(self, answer: Watched) -> None:
        found = list(operation.values(answer))
        assert {f"rooflinekit_{each.name}" for each in found} == set(OURS)
        for each in found:
            assert len(each.labels) == len(ROWS["metrics"][each.name]["labels"])
        assert len({(each.name, each.labels) for each in found}) == len(found)

    def test_predicted_replicas_keep_the_rate_below_four_fifths_of_their_knee(self, answer: Watched) -> None:
        now = answer.now
        for rate, replicas, wanted in ((0.1, 1, 1), (0.79, 1, 1), (0.81, 1, 2), (1.61, 1, 3), (0.3, 4, 2)):
            with_rate = replace(answer, intervals=(replace(now, rate=rate * now.knee, replicas=replicas),))
            assert with_rate.predicted_replicas == wanted

    def test_metrics_keep_nothing_of_an_earlier_interval(
        self, answer: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry = prometheus_client.CollectorRegistry()
        monkeypatch.setattr(prometheus_client, "Gauge", partial(prometheus_client.Gauge, registry=registry))
        monkeypatch.setattr(prometheus_client, "start_http_server", lambda *_, **__: None)
        show, read = operation.exporter(0), registry.get_sample_value
        show(answer)
        first = {"metric": "ttft", "kind": "measured"}
        assert read("rooflinekit_seconds", first) == pytest.approx(answer.now.ttft.measured / 1e3)
        assert read("rooflinekit_requests_per_second", {"kind": "knee"}) == answer.now.knee
        silent = replace(answer.now.ttft, measured=None, high=None)
        show(replace(answer, intervals=(replace(answer.now, ttft=silent, waiting=None),), headroom=None))
        assert math.isnan(read("rooflinekit_seconds", first))
        assert read("rooflinekit_seconds", {"metric": "ttft", "kind": "high"}) == math.inf
        assert math.isnan(read("rooflinekit_waiting_requests", {"kind": "measured"}))
        assert math.isnan(read("rooflinekit_headroom_ratio"))

    def test_the_page_has_them_all(self) -> None:
        page = TEXTS["docs/watch.md"]
        rows = re.findall(r"^\| `(rooflinekit_\w+)` \|([^|]*)\|", page, re.MULTILINE)
        assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == OURS
        assert set(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE)) == set(ROWS["alerts"])


CALM = {
    'rooflinekit_seconds{metric="ttft",kind="measured"}': "0.2x60",
    'rooflinekit_seconds{metric="ttft",kind="high"}': "0.3x60",
    'rooflinekit_drift_ratio{metric="tpot"}': "0x60",
    "rooflinekit_headroom_ratio": "0.5x60",
    'rooflinekit_predicted_replicas{model="m",gpu="g"}': "2x60",
    'rooflinekit_replicas{model="m",gpu="g"}': "2x60",
    "vllm:num_requests_waiting": "1x60",
    "vllm:num_requests_running": "50x60",
    "vllm:num_preemptions_total": "7x60",
    "rooflinekit_interval_end_seconds": "0+60x60",
}
AMISS = CALM | {
    'rooflinekit_seconds{metric="ttft",kind="measured"}': "0.4x60",
    'rooflinekit_drift_ratio{metric="tpot"}': "0.1x60",
    "rooflinekit_headroom_ratio": "-0.1x60",
    'rooflinekit_predicted_replicas{model="m",gpu="g"}': "3x60",
    "vllm:num_requests_waiting": "100+10x60",
    "vllm:num_preemptions_total": "7+5x60",
    "rooflinekit_interval_end_seconds": "0x60",
}
"""Forty minutes of metrics, as promtool writes them, where all is well and where nothing is."""
FIRING = {
    "SlowerThanPredicted": {"metric": "ttft"}, "PerformanceDrift": {"metric": "tpot"},
    "TooFewReplicas": {"model": "m", "gpu": "g"},
}  # fmt: skip
"""Labels of what fires, beside its severity."""


class TestRules:
    def test_every_name_is_exported_or_recorded(self) -> None:
        engines: dict[str, Any] = yaml.safe_load(
            (Path(operation.__file__).parents[1] / "evidence" / "exposition.yaml").read_text()
        )["engines"]
        known = set(OURS) | set(ROWS["recording"])
        for engine in ("vllm", "sglang"):
            names = {name for each in engines[engine].values() for name in each}
            known |= {f"{engine}:{name}{end}" for name in names for end in ("", "_bucket", "_count", "_sum")}
        for expression in EXPRESSIONS:
            assert set(NAME.findall(expression)) - known == set(), expression

    def test_a_played_engine_exports_what_the_rules_read_of_vllm(self) -> None:
        text = Metrics.exposition("m", [Metrics(1000)])
        newest = {name for each in EXPRESSIONS for name in NAME.findall(each) if name.startswith("vllm:")}
        older = {"vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds_bucket"}
        assert {name for name in newest - older if f"{name}{{" not in text} == set()
        assert read_scrape(text, 0.0, "engine").engine == "vllm"

    def test_labels_are_those_that_the_metrics_have(self) -> None:
        for expression in EXPRESSIONS:
            for name, selector in re.findall(r"(rooflinekit_\w+)\{([^}]*)\}", expression):
                assert set(re.findall(r"(\w+)=", selector)) <= OURS[name], expression

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")
    def test_promtool_takes_them(self, tmp_path: Path) -> None:
        path = tmp_path / "rules.yaml"
        path.write_text(operation.rules())
        subprocess.run(["promtool", "check", "rules", str(path)], check=True, capture_output=True)

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")
    def test_alerts_fire_when_they_should_and_else_not(self, tmp_path: Path) -> None:
        (tmp_path / "rules.yaml").write_text(operation.rules())
        tests = [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": "40m", "alertname": alert, "exp_alerts": [{}] if alert in firing else []}
                    for alert in ROWS["alerts"]
                ],
            }
            for series, firing in ((CALM, ()), (AMISS, ROWS["alerts"]))
        ]
        for test in tests:  # labels are those of the series that fires, which the rules carry
            for each in test["alert_rule_test"]:
                if each["exp_alerts"]:
                    _, _, severity, said = ROWS["alerts"][each["alertname"]]
                    labels = {"severity": severity} | FIRING.get(each["alertname"], {})
                    text = said.replace("{{ $labels.metric }}", labels.get("metric", ""))
                    each["exp_alerts"] = [{"exp_labels": labels, "exp_annotations": {"summary": text}}]
        (tmp_path / "tests.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
        words = ["promtool", "test", "rules", "tests.yaml"]
        run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in taken]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_prometheus_has_what_the_panels_and_the_autoscaler_ask_for(tmp_path: Path) -> None:
    """A played engine, `watch` beside it, and a Prometheus with the rules that scrapes both."""
    pytest.importorskip("uvicorn", reason="needs rooflinekit[serve]")
    import httpx2
    from test_fake_engine import serving

    with serving("llama-3-8b --prefix-cache") as engine, ExitStack() as stack:
        own, asked = free_ports(2)
        jobs = [
            {"job_name": f"{port}", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for port in (engine, own)
        ]
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
        (tmp_path / "rules.yaml").write_text(operation.rules())
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        watching = [sys.executable, "-m", "rooflinekit", "watch", f"http://127.0.0.1:{engine}/metrics", "--gpu", "h100",
                    "--tp", "1", "--every", "2", "--listen", str(own)]  # fmt: skip
        scraping = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{asked}",
                    f"--storage.tsdb.path={tmp_path / 'data'}"]  # fmt: skip
        for words in (watching, scraping):
            log = stack.enter_context((tmp_path / Path(words[0]).name).open("w"))
            process = stack.enter_context(subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log))
            stack.callback(process.terminate)
        client = stack.enter_context(httpx2.Client(timeout=PATIENCE))

        def told(path: str, **asking: str) -> Any:
            """What Prometheus answers; nothing while it starts."""
            with suppress(httpx2.ConnectError):
                answer = client.get(f"http://127.0.0.1:{asked}/api/v1/{path}", params=asking)
                if answer.status_code != 503:
                    return answer.raise_for_status().json()["data"]
            return {"result": [], "groups": []}

        def healthy() -> bool:
            found = {rule["health"] for group in told("rules")["groups"] for rule in group["rules"]}
            assert found <= {"ok", "unknown"}
            return found == {"ok"}

        scaled = 'max(rooflinekit_predicted_replicas{model="llama-3-8b"})'
        panels = {target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
        wanted, ends = {scaled, *panels, *ROWS["recording"]}, time.monotonic() + PATIENCE
        while (wanted or not healthy()) and time.monotonic() < ends:
            body = {"prompt": "word" * 500, "max_tokens": 20, "ignore_eos": True}
            client.post(f"http://127.0.0.1:{engine}/v1/completions", json=body).raise_for_status()
            wanted -= {query for query in wanted if told("query", query=query)["result"]}
        assert wanted == set()
        assert healthy()
        assert told("query", query=scaled)["result"][0]["value"][1] == "1"


def lost(told: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Paths of what one value has and the other has not."""
    if isinstance(told, dict) and isinstance(kept, dict):
        for key, value in told.items():
            yield from lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(told, list) and isinstance(kept, list) and len(told) == len(kept):
        for number, (one, other) in enumerate(zip(told, kept, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif told != kept:
        yield path


class TestDashboard:
    def test_the_types_that_grafana_publishes_hold_all_of_it(self) -> None:
        models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="needs grafana-foundation-sdk")
        from grafana_foundation_sdk.cog import encoder, plugins

        plugins.register_default_plugins()
        made = models.Dashboard.from_json(DASHBOARD)
        assert list(lost(DASHBOARD, json.loads(encoder.JSONEncoder().encode(made)))) == []
        assert {type(each).__module__ for panel in made.panels for each in panel.targets} == {
            "grafana_foundation_sdk.models.prometheus"
        }

    def test_panels_lie_beside_each_other_and_ask_one_source(self) -> None:
        places = [tuple(each["gridPos"].values()) for each in DASHBOARD["panels"]]
        assert len(set(places)) == len(places)
        assert all(x + width <= 24 for _, width, x, _ in places)
        asking = [each for panel in DASHBOARD["panels"] for each in (panel, *panel["targets"])]
        sources = {json.dumps(each["datasource"]) for each in asking}
        assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
        assert DASHBOARD["templating"]["list"][0]["name"] == "datasource"
        assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)

    @pytest.mark.parametrize("template", ["dashboard", "rules"])
    def test_show_prints_it(self, template: str) -> None:
        result = CliRunner().invoke(app, ["show", "--template", template])
        assert result.exit_code == 0
        assert result.stdout.strip() == getattr(operation, template)().strip()

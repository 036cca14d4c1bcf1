"""A fleet in operation: metrics of `rooflinekit watch`, a Grafana dashboard, Prometheus recording and alert rules.

Names, panels and rules are rows of operation.yaml.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import yaml

from rooflinekit.model.types.errors import InputError
from rooflinekit.ops.templates import filled
from rooflinekit.specs.files import table_of

if TYPE_CHECKING:
    from rooflinekit.evidence.watching import Watched

_rows = partial(table_of, __file__)
_CAUSES = {
    "tpot": {"batch": "batch_ms", "stalls": "stall_ms", "step": "step_ms"},
    "ttft": {"queue": "queue_ms", "prompt": "prompt_ms"},
}
_PREFIX = "rooflinekit_"
_HALF, _TALL = 12, 8  # columns and rows of a panel


class Said(NamedTuple):
    """A value of a metric; NaN where nothing says it."""

    name: str
    labels: tuple[str, ...]
    value: float


def values(answer: Watched) -> Iterator[Said]:
    """Every value that `watch --listen` exports of what was seen."""
    from rooflinekit.evidence.watching import SMALLEST  # noqa: PLC0415 - the wing that makes what is exported

    now, room, changes = answer.now, answer.headroom, {each.metric: each.change for each in answer.drifts}

    def said(name: str, value: float | None, *labels: str, scale: float = 1.0) -> Said:
        return Said(name, labels, math.nan if value is None else value * scale)

    for metric, figure in (("ttft", now.ttft), ("tpot", now.tpot)):
        for kind, value in asdict(figure).items():
            unbounded = kind == "high" and value is None
            yield said("seconds", math.inf if unbounded else value, metric, kind, scale=1e-3)
        for cause, key in _CAUSES[metric].items():
            yield said("gap_seconds", getattr(now, key), metric, cause, scale=1e-3)
    for metric in SMALLEST:
        yield said("drift_ratio", changes.get(metric, 0.0), metric)
    yield said("requests_per_second", now.rate, "measured")
    yield said("requests_per_second", now.knee, "knee")
    yield said("headroom_ratio", None if room is None else room.share)
    yield said("headroom_hours", None if room is None else room.hours_left)
    for kind, cache, waiting in (
        ("measured", now.kv_use, now.waiting),
        ("expected", now.kv_expected, now.waiting_expected),
    ):
        yield said("cache_ratio", cache, kind)
        yield said("waiting_requests", waiting, kind)
    yield said("replicas", now.replicas, answer.model, answer.gpu)
    yield said("predicted_replicas", answer.predicted_replicas, answer.model, answer.gpu)
    yield said("interval_end_seconds", now.end)


def exporter(port: int) -> Callable[[Watched], None]:
    """Serve what is seen as metrics of our own at 127.0.0.1; returns what takes a new answer.

    Raises InputError for a port that is taken.
    """
    from prometheus_client import Gauge, start_http_server  # noqa: PLC0415 - an extra

    gauges = {name: Gauge(f"{_PREFIX}{name}", row["help"], row["labels"]) for name, row in _rows()["metrics"].items()}
    try:
        start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise InputError(f"--listen {port}: {error.strerror}") from None

    def show(answer: Watched) -> None:
        for name, labels, value in values(answer):
            (gauges[name].labels(*labels) if labels else gauges[name]).set(value)

    return show


def metric_rows() -> list[tuple[str, list[str], str]]:
    """Name, labels and meaning of each metric of `watch --listen`."""
    return [(f"{_PREFIX}{name}", row["labels"], row["help"]) for name, row in _rows()["metrics"].items()]


def alert_rows() -> list[tuple[str, str, str]]:
    """Name, delay and meaning of each alert, of any metric."""
    alerts = _rows()["alerts"].items()
    return [(name, lasting, said.replace("{{ $labels.metric }}", "a time")) for name, (_, lasting, _, said) in alerts]


def rules() -> str:
    """Recording and alert rules as Prometheus reads them."""
    found = _rows()
    recording = [{"record": name, "expr": expr} for name, expr in found["recording"].items()]
    names = ("expr", "lasting", "severity", "said")
    alerts = [
        filled(found, "alert", {"name": name, **dict(zip(names, row, strict=True))})
        for name, row in found["alerts"].items()
    ]
    groups = [{"name": "rooflinekit-engines", "rules": recording}, {"name": "rooflinekit-alerts", "rules": alerts}]
    return str(yaml.safe_dump({"groups": groups}, sort_keys=False, width=120))


def dashboard() -> str:
    """A dashboard as Grafana imports it; it asks for a Prometheus that has the recording rules."""
    found, panels = _rows(), []
    for number, (title, unit, queries) in enumerate(found["panels"]):
        targets = [
            filled(found, "target", {"letter": chr(65 + place), "expr": expr, "legend": legend})
            for place, (expr, legend) in enumerate(queries)
        ]
        place = {"id": number + 1, "x": number % 2 * _HALF, "y": number // 2 * _TALL, "w": _HALF, "h": _TALL}
        panels.append(filled(found, "panel", {**place, "title": title, "unit": unit, "targets": targets}))
    return json.dumps(filled(found, "dashboard", {"panels": panels}), indent=2) + "\n"

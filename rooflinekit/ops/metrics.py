"""Metrics of a played engine in Prometheus' text format, with the names and buckets of vLLM's V1 engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate

from rooflinekit.simulation.requests import Job
from rooflinekit.specs.files import table_of

_tables = partial(table_of, __file__)
"""What vLLM exports, by kind of metric, each with its help."""


class Histogram:
    """Counts of values by buckets, with their sum.

    >>> seen = Histogram((1.0, 2.0))
    >>> seen.add(1.0), seen.add(5.0, 2)
    (None, None)
    >>> seen.rows("t", "")
    ['t_bucket{le="1.0"} 1', 't_bucket{le="2.0"} 1', 't_bucket{le="+Inf"} 3', 't_sum{} 11.0', 't_count{} 3']
    """

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges, self.counts, self.sum = edges, [0] * (len(edges) + 1), 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        self.counts[bisect_left(self.edges, value)] += count
        self.sum += value * count

    def rows(self, name: str, labels: str) -> list[str]:
        """Samples of the histogram."""
        comma = "," if labels else ""
        upto = list(accumulate(self.counts))
        edges = (*map(str, self.edges), "+Inf")
        rows = [f'{name}_bucket{{{labels}{comma}le="{edge}"}} {n}' for edge, n in zip(edges, upto, strict=True)]
        return [*rows, f"{name}_sum{{{labels}}} {self.sum}", f"{name}_count{{{labels}}} {upto[-1]}"]


def lengths_up_to(most: int) -> tuple[float, ...]:
    """Buckets 1, 2, 5, 10, … up to a length.

    >>> lengths_up_to(100)
    (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    """
    return tuple(each for power in range(len(str(most))) for unit in (1, 2, 5) if (each := unit * 10.0**power) <= most)


class Metrics:
    """Metrics of one replica."""

    def __init__(self, longest: int) -> None:
        known = _tables()
        edges = known["buckets"] | {"tokens": lengths_up_to(longest)}
        self.histograms = {name: Histogram(edges[kind]) for name, (kind, _) in known["histograms"].items()}
        self.counters: dict[str, float] = dict.fromkeys(known["counters"], 0)
        self.gauges: Mapping[str, float] = dict.fromkeys(known["gauges"], 0)
        self.finished = dict.fromkeys(known["reasons"], 0)
        self.info: Mapping[str, str] = {}

    def see(self, name: str, value: float) -> None:
        """Count a value of a histogram."""
        self.histograms[name].add(value)

    def first(self, job: Job, seconds: float) -> None:
        """A first token has come."""
        self.see("time_to_first_token_seconds", seconds)
        self.counters["prompt_tokens"] += job.isl

    def tokens(self, job: Job, count: int, gap: float | None) -> None:
        """Tokens of each of its answers have come, so long after the ones before; None after none."""
        self.counters["generation_tokens"] += count * job.samples
        if gap is not None:
            self.histograms["inter_token_latency_seconds"].add(gap, job.samples)

    def success(self, reason: str) -> None:
        """A request has ended: by itself (stop), by its limit (length), or by its client (abort)."""
        self.finished[reason] += 1

    def finish(self, job: Job, now: float) -> None:
        """The last token of a request has come."""
        self.see("e2e_request_latency_seconds", now - job.arrived)
        self.see("request_prefill_time_seconds", max(job.first - job.queued, 0.0))
        self.see("request_decode_time_seconds", now - job.first)
        if job.osl > 1:
            self.see("request_time_per_output_token_seconds", (now - job.first) / (job.osl - 1))
        self.see("request_prompt_tokens", job.isl)
        self.see("request_generation_tokens", job.osl)

    @staticmethod
    def exposition(model: str, replicas: Sequence[Metrics]) -> str:
        """The text that a scrape gets; each replica is an `engine`."""
        name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = [f'engine="{number}",model_name="{name}"' for number in range(len(replicas))]
        lines: list[str] = []

        def family(short: str, said: str, kind: str) -> str:
            whole = f"vllm:{short}"
            lines.extend((f"# HELP {whole} {said}.", f"# TYPE {whole} {kind}"))
            return whole

        both, known = list(zip(labels, replicas, strict=True)), _tables()
        for short, said in known["gauges"].items():
            whole = family(short, said, "gauge")
            lines += [f"{whole}{{{label}}} {each.gauges[short]}" for label, each in both]
        for short, said in known["counters"].items():
            whole = family(short, said, "counter")
            lines += [f"{whole}_total{{{label}}} {each.counters[short]}" for label, each in both]
        whole = family("request_success", "Requests that ended", "counter")
        lines += [
            f'{whole}_total{{{label},finished_reason="{why}"}} {count}'
            for label, each in both
            for why, count in each.finished.items()
        ]
        for short, (_, said) in known["histograms"].items():
            whole = family(short, said, "histogram")
            for label, each in both:
                lines += each.histograms[short].rows(whole, label)
        whole = family("cache_config_info", "The cache", "gauge")
        for number, each in enumerate(replicas):
            told = ",".join(f'{key}="{value}"' for key, value in {**each.info, "engine": number}.items())
            lines.append(f"{whole}{{{told}}} 1")
        return "\n".join(lines) + "\n"

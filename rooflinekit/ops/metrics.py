"""Metrics of a played engine in Prometheus' text format, with the names and buckets of vLLM's V1 engine.

Names, labels and buckets are those of `vllm/v1/metrics/loggers.py` (005a810b), and of its successor for
`inter_token_latency_seconds` and `request_time_per_output_token_seconds`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from rooflinekit.simulation.requests import Job

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
          160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip
_SECONDS = {
    "time_to_first_token_seconds": (_FIRST, "Time to first token"),
    "inter_token_latency_seconds": (_TOKEN, "Time between two tokens"),
    "request_time_per_output_token_seconds": (_TOKEN, "Mean time of a token after the first, by request"),
    "e2e_request_latency_seconds": (_REQUEST, "Time from sending to the last token"),
    "request_queue_time_seconds": (_REQUEST, "Time in the queue"),
    "request_prefill_time_seconds": (_REQUEST, "Time from the queue to the first token"),
    "request_decode_time_seconds": (_REQUEST, "Time from the first to the last token"),
}
_LENGTHS = {
    "request_prompt_tokens": "Prompt tokens of a request",
    "request_generation_tokens": "Output tokens of a request",
    "request_params_max_tokens": "max_tokens of a request",
}
_COUNTERS = {
    "prompt_tokens": "Prompt tokens computed, or found in the cache",
    "generation_tokens": "Output tokens",
    "num_preemptions": "Requests thrown out of the cache",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Of them, those that were found",
}
_GAUGES = {
    "num_requests_running": "Requests in the batch",
    "num_requests_waiting": "Requests in the queue",
    "kv_cache_usage_perc": "Share of the cache in use; 1 is all of it",
}
_REASONS = ("stop", "length", "abort")


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
        edges = lengths_up_to(longest)
        self.histograms = {name: Histogram(found) for name, (found, _) in _SECONDS.items()}
        self.histograms |= {name: Histogram(edges) for name in _LENGTHS}
        self.counters: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self.gauges: Mapping[str, float] = dict.fromkeys(_GAUGES, 0)
        self.finished = dict.fromkeys(_REASONS, 0)
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

        both = list(zip(labels, replicas, strict=True))
        for short, said in _GAUGES.items():
            whole = family(short, said, "gauge")
            lines += [f"{whole}{{{label}}} {each.gauges[short]}" for label, each in both]
        for short, said in _COUNTERS.items():
            whole = family(short, said, "counter")
            lines += [f"{whole}_total{{{label}}} {each.counters[short]}" for label, each in both]
        whole = family("request_success", "Requests that ended", "counter")
        lines += [f'{whole}_total{{{label},finished_reason="{why}"}} {count}'
                  for label, each in both for why, count in each.finished.items()]  # fmt: skip
        for short, said in (*((name, said) for name, (_, said) in _SECONDS.items()), *_LENGTHS.items()):
            whole = family(short, said, "histogram")
            for label, each in both:
                lines += each.histograms[short].rows(whole, label)
        whole = family("cache_config_info", "The cache", "gauge")
        for number, each in enumerate(replicas):
            told = ",".join(f'{key}="{value}"' for key, value in {**each.info, "engine": number}.items())
            lines.append(f"{whole}{{{told}}} 1")
        return "\n".join(lines) + "\n"

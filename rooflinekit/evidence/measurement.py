"""Measurements of a benchmark run, in our definitions, and how figures are read from the mappings of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooflinekit.estimation.options import Keywords
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.files import Parsed
from rooflinekit.specs.foreign import MOST, number_of

PREDICTED = "rooflinekit estimate"
"""The tool of a run that is a prediction of ours."""


@dataclass(frozen=True)
class MeasuredSpread:
    """A latency over requests (or over gaps, for ITL) [ms]; None where the file has no such figure."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    low: float | None = None  #: the smallest

    @property
    def middle(self) -> tuple[str, float | None]:
        """The mean, or else the median, and which of them it is."""
        return ("mean", self.mean) if self.mean else ("median", self.p50)


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run, as far as they are known; a user fills in what the file leaves out.

    isl, osl: mean tokens a request; concurrency: most requests that the client kept in flight; rate: requests a second
    that the client offered (None: as fast as `concurrency` allows); requests: how many were counted; warmup: how many
    came and ended before them.
    """

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp: int | None = None
    isl: float | None = None
    osl: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    cv: float = 1.0  #: of the gaps between arrivals
    requests: int | None = None
    osl_cv: float | None = None  #: standard deviation of the output lengths over their mean
    max_num_seqs: int | None = None  #: sequences that the server runs at once
    hits: float | None = None  #: share of the prompt tokens that the prefix cache held
    isl_cv: float | None = None  #: standard deviation of the prompt lengths over their mean
    warmup: int | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """One run.

    ttft: request sent to first token. tpot: mean over tokens 2..n of a request. itl: single gaps between tokens. e2e:
    request sent to last token. output_tok_s: all output tokens over the duration. request_s: requests completed a
    second. unbegun: requests that wait for their first token, on average, where the time itself is not counted. notes:
    what the mapping had to assume. servers: how many were measured together. static: one batch that began together,
    without a server. total: mean tokens of a request, in and out, where the file does not divide them. deployment:
    formats, limits and degrees that the file states, by the names of options.
    """

    source: str
    tool: str
    facts: RunFacts
    ttft: MeasuredSpread = MeasuredSpread()
    tpot: MeasuredSpread = MeasuredSpread()
    itl: MeasuredSpread = MeasuredSpread()
    e2e: MeasuredSpread = MeasuredSpread()
    output_tok_s: float | None = None
    request_s: float | None = None
    unbegun: float | None = None
    notes: tuple[str, ...] = ()
    servers: int = 1
    static: bool = False
    total: float | None = None
    deployment: tuple[tuple[str, Any], ...] = ()

    @property
    def figures(self) -> dict[str, tuple[str, float | None]]:
        """Latencies [ms] and the rate of output tokens [1/s], each with the statistic that the file gives."""
        times = {f"{name}_ms": getattr(self, name).middle for name in ("ttft", "tpot", "e2e")}
        return times | {"output_tok_s": ("mean", self.output_tok_s)}


@dataclass(frozen=True)
class StartUp:
    """An engine's start-up log; memory is that of one accelerator, None where the log does not say.

    kv_bytes: room for the cache [B]; kv_tokens: tokens that fit in it; weight_bytes [B]; max_len: longest request
    [tokens] and how many of that length fit. facts, deployment: how it was started. printed_tokens: what the log calls
    the size of the cache, where that is divided by groups of layers; state_bytes: recurrent states beside kv_bytes;
    called: the model as the log names it.
    """

    source: str
    kv_bytes: float | None = None
    kv_tokens: int | None = None
    weight_bytes: float | None = None
    max_len: int | None = None
    concurrency: float | None = None
    facts: RunFacts = RunFacts()
    deployment: Keywords = field(default_factory=dict)
    printed_tokens: int | None = None
    state_bytes: float | None = None
    graph_bytes: float | None = None
    activation_bytes: float | None = None
    called: str | None = None
    draft: str | None = None  #: its method, as the engine names it
    draft_tokens: int = 0
    stored: str | None = None  #: quantisation of the weights, where its name alone does not say their format
    compiled: bool = False  #: whether the engine compiled its model, and had no result of an earlier start


class Fields:
    """A mapping from a file, with the name by which errors call it.

    names: where the file has each quantity: the first of some keys, joined by dots, that is there. Without them a
    quantity is a key.
    """

    def __init__(self, source: str, data: Parsed, names: Mapping[str, Sequence[str]] | None = None) -> None:
        self.source, self.data, self.names = source, data, names

    def inside(self, *path: str) -> Fields:
        """The mapping under some keys; empty if there is none."""
        data: Any = self.data
        for key in path:
            data = data.get(key) if isinstance(data, Mapping) else None
        return Fields(f"{self.source}: {'.'.join(path)}", data if isinstance(data, Mapping) else {})

    def entries(self, key: str) -> list[Fields]:
        """The mappings of a list; none if there is no such list."""
        listed = self.data.get(key)
        each = listed if isinstance(listed, list) else []
        return [Fields(self.source, data) for data in each if isinstance(data, Mapping)]

    def found(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Where the file has these quantities, and each value that is there."""
        for name in names:
            for path in (name,) if self.names is None else self.names.get(name, ()):
                value = self.data.get(path)
                if value is None and self.names is not None and "." in path:
                    inner, _, key = path.rpartition(".")
                    value = self.inside(*inner.split(".")).data.get(key)
                if value is not None and (value != "" or self.names is None):
                    yield path, value

    def value(self, *names: str) -> Any:
        """The first of these quantities that is there, as it stands; None if none is."""
        return next((value for _, value in self.found(*names)), None)

    def text(self, *names: str) -> str | None:
        """The first of these quantities that holds text."""
        return next((value for _, value in self.found(*names) if isinstance(value, str) and value.strip()), None)

    def number(self, *names: str, scale: float = 1.0, most: float = MOST) -> float | None:
        """The first of these quantities that is there, scaled; None if none is."""
        path, value = next(self.found(*names), ("", None))
        if value is None:
            return None
        try:
            return number_of(value, high=most) * scale
        except ValueError as error:
            raise SpecError(f"{self.source}: {path} is {error}") from None

    def count(self, *names: str) -> int | None:
        """The quantity as a whole number of at least 1; 0 is None."""
        value = self.number(*names)
        return int(value) if value else None

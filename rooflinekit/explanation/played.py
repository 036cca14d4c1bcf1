"""A load that was played, as lines of an explanation: what the loop wrote down, then the formulas of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

from rooflinekit.load.answer import LoadPlay
from rooflinekit.load.law import full_engine
from rooflinekit.model.graph import named
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import StepTime, time_parts
from rooflinekit.model.serving.energy import Run
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.files import table_of

_NAMES: dict[str, dict[str, str]] = table_of(__file__)
_WAITS, _PARTS = _NAMES["waits"], _NAMES["parts"]
_ASKED = "your input"


class PlayedCase(Protocol):
    """The case as `estimate` reads it: `metrics.Case`."""

    @property
    def work(self) -> Workload:
        """The workload."""


class Tracing(Protocol):
    """The case whose numbers are traced, and the pool that its lines come from: `metrics.Traced`."""

    @property
    def case(self) -> PlayedCase:
        """The case as `estimate` reads it."""

    @property
    def work(self) -> Workload:
        """Batch and lengths as variables."""

    @property
    def predictor(self) -> Predictor:
        """Steps of the predictor."""

    def inputs(self, of: object, *names: str) -> Mapping[str, Numeric]:
        """Numbers of the question, as variables."""

    def step(self, name: str) -> StepTime:
        """The step whose kernels `estimate` lists under that name."""

    def told(self, value: float, symbol: str, meaning: str, unit: str = "s", source: str | None = None) -> Numeric:
        """A number as a leaf."""

    def stated(self, value: float, formula: Numeric, symbol: str, meaning: str, unit: str = "s") -> Numeric:
        """A number that `estimate` states, and its formula."""


class PlayedLoad:
    """The load of a traced case; every number that `estimate` states is stated to its last digit."""

    def __init__(self, traced: Tracing, found: LoadPlay) -> None:
        self.traced, self.found = traced, found
        self.told, self.stated = traced.told, traced.stated

    @cached_property
    def lengths(self) -> tuple[Numeric, Numeric]:
        """Mean tokens of a prompt and of an answer."""
        asked, work = self.found.asked, self.traced.case.work
        found = []
        for name, mean, title in (("isl", asked.isl.mean, "a prompt"), ("osl", asked.osl.mean, "an answer")):
            same = float(getattr(work, name)) == mean
            told = self.told(mean, name, f"mean tokens of {title}", "", _ASKED)
            found.append(getattr(self.traced.work, name) if same else told)
        return found[0], found[1]

    @cached_property
    def cached(self) -> Numeric:
        """Tokens of a mean prompt that are in the cache already."""
        return self.told(float(self.found.asked.cached), "cached", "tokens of a prompt in the cache", "", _ASKED)

    @cached_property
    def ttft(self) -> Numeric:
        """Waits of a first token, as played, and the step of the own prompt."""
        parts, found = self.found.played.first_parts, self.found
        own = named(self.traced.step("prefill").expected, "own", "a step of the own prompt alone", "s")
        beside = parts.prompt - float(own)
        title = "added by decodes and other prompts to its steps" if beside > 0.0 else "less: as played"
        prompt = self.stated(
            parts.prompt, own + self.told(beside, "beside", title), "prompt", "steps with the own prompt"
        )
        waits = (self.told(getattr(parts, name), name, title) for name, title in _WAITS.items())
        return self.stated(found.samples["ttft"].mean, sum(waits, 0.0) + prompt, "TTFT", "mean time to first token")

    @cached_property
    def tpot(self) -> Numeric:
        """Waits of a token: its decode step in parts, at the mean batch, and prompts of others."""
        found, system = self.found, self.traced.predictor.plan.system
        step = self.told(found.tokens.step, "step", "time of a token in decode steps")
        sequences, context = found.decoding
        isl, osl = self.lengths
        own = self.told(sequences, "batch", "sequences that decode on one attention replica, in the mean", "")
        decode = self.traced.predictor.plan.time(Batch.decode(own, named(isl + osl / 2.0, "keys", "mean context")))
        assert context == float(isl) + float(osl) / 2.0
        parts = {
            name: named(part, f"t_{name}", f"{_PARTS[name]}: of a decode step at the mean batch", "s")
            for name, part in time_parts(decode, system.accelerator).items()
            if float(part)
        }
        whole = named(sum(parts.values(), 0.0), "decode", "kernels and engine of that step", "s")
        symbols = {name: "engine" if name == "host" else name for name in parts}
        spent = [named(step * part / whole, symbols[name], _PARTS[name], "s") for name, part in parts.items()]
        others = self.told(found.tokens.prompts, "prompts", "prompts of others, in the same or in between steps")
        return self.stated(found.tpot, sum(spent, 0.0) + others, "TPOT", "mean time of an output token after the first")

    @cached_property
    def e2e(self) -> Numeric:
        """From sending to the last token."""
        asked, found = self.found.asked, self.found
        whole = found.samples["e2e"].mean
        if asked.osl.quantile(0.0) == asked.osl.quantile(1.0):
            after = (self.lengths[1] - 1.0) * self.tpot
        else:
            rest = whole - found.samples["ttft"].mean
            after = self.told(rest, "after", "mean time from the first token to the last")
        return self.stated(whole, self.ttft + after, "E2E", "mean time of a request, end to end")

    @property
    def rate(self) -> Numeric:
        """Requests a second: those that arrive; of a closed loop by Little's law."""
        if self.found.asked.rate is not None:
            return self.traced.inputs(self.found.asked, "rate")["rate"]
        together = self.found.rate * self.found.samples["e2e"].mean
        users = self.told(together, "L", "requests in the system, in the mean over the run", "")
        title = "requests a second, by Little's law: L = rate*E2E"
        return self.stated(self.found.rate, users / self.e2e, "rate", title, "1/s")

    @property
    def running(self) -> Numeric:
        """Sequences in steps, by Little's law."""
        done = self.found.played
        inside = float(done.replicas["sequence_time"].sum()) / max(done.arrived, 1)
        stay = self.told(inside, "stay", "mean time of a request in steps")
        arrived = self.told(float(done.arrived), "requests", "requests sent", "")
        over = self.told(done.now, "duration", "length of the run")
        title = "sequences in steps, by Little's law: rate*stay"
        return self.stated(done.running, arrived / over * stay, "running", title, "")

    @property
    def knee(self) -> Numeric:
        """The rate of a full engine."""
        found, law = self.found, "approximate: the law of a full engine; docs/under-load.md"
        scene, asked = found.scene, found.asked
        full = full_engine(scene.tables, scene.rules, asked.isl.mean, asked.osl.mean, asked.cached)
        begun = self.told(full.begun, "q", "prompts that begin in a turn of a full engine", "", law)
        decode = self.told(full.decode, "t_decode", "decode steps of such a turn", "s", law)
        prompts = self.told(full.prompts, "t_prompts", "added by its prompts", "s", law)
        each = self.told(float(scene.replicas), "replicas", "replicas", "", _ASKED)
        title = "approximate: largest rate that can be sustained"
        if not found.stable:
            return self.told(found.knee, "knee", "requests a second that are served, as played", "1/s")
        if found.knee < full.rate * scene.replicas * (1.0 - 1e-9):
            return self.told(found.knee, "knee", f"{title}, of the front end", "1/s", law)
        return self.stated(found.knee, begun / (decode + prompts) * each, "knee", title, "1/s")

    def percentile(self, time: str, share: float) -> Numeric:
        """The request at its place by rank."""
        sample, found = self.found.samples[time], self.found
        name, place = f"{time}_p{100 * share:.0f}", sample.rank(share)
        title = f"of {sample.count:,} requests that count, the {_ordinal(place)} by {time.upper()}"
        if not sample.count:
            title = "no request has a second token; the step that would follow"
        return self.told(found.quantile(time, share), name, title)

    @property
    def queue(self) -> Numeric:
        """The wait behind prompts and for a place."""
        parts = self.found.played.first_parts
        waits = (self.told(getattr(parts, name), name, _WAITS[name]) for name in ("behind", "place"))
        title = "mean wait before the own prompt begins"
        return self.stated(parts.behind + parts.place, sum(waits, 0.0), "queue", title)

    @property
    def run(self) -> Run:
        """Sums of the run, for its energy."""
        found = self.found.run
        return Run(
            self.told(float(found.prompts), "prompts", "prompts that were computed, of mean length", ""),
            self.told(float(found.decoded), "decoded", "output tokens but the first ones", ""),
            self.told(float(found.tokens), "tokens", "output tokens", ""),
            self.told(float(found.busy), "busy", "time with a step"),
            self.told(float(found.seconds), "duration", "length of the run"),
        )

    @cached_property
    def output(self) -> Numeric:
        """Output tokens a second."""
        done = self.found.played
        made = float(done.osl[done.counted].sum())
        tokens = self.told(made, "tokens", "output tokens of the requests that count", "")
        span = self.told(done.makespan, "makespan", "from their first sending to their last end")
        rate = self.found.output_rate
        return self.stated(rate, tokens / span, "output", "output tokens a second", "token/s")


def _ordinal(place: int) -> str:
    """A place as people say it.

    >>> _ordinal(1), _ordinal(1520), _ordinal(12), _ordinal(103)
    ('1st', '1,520th', '12th', '103rd')
    """
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place:,}{ending}"

"""Latency under load: the closed form of docs/serving.md, term by term."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflinekit.derivation.case import step_node, tpot_node
from rooflinekit.derivation.node import Node, branch, given, reckoned
from rooflinekit.derivation.scene import Scene
from rooflinekit.operating_point import Predictor
from rooflinekit.traffic.closed_form import Loaded, Traffic
from rooflinekit.traffic.mixing import InFlight, Shared, mixed_step, shared_times, slots
from rooflinekit.traffic.question import LoadQuestion, answer_load
from rooflinekit.types.batch import Batch
from rooflinekit.types.errors import WorkloadError
from rooflinekit.types.workload import Workload

__all__ = ["LoadCase"]

_FORM = "docs/serving.md"
_FULL = 0.98  # as in rooflinekit.traffic.closed_form: the share of the time from which Kingman's formula is held


@dataclass(frozen=True)
class LoadCase:
    """A predictor under load, and what the closed form found."""

    predictor: Predictor
    question: LoadQuestion
    loaded: Loaded

    @classmethod
    def of(cls, predictor: Predictor, question: LoadQuestion) -> LoadCase:
        """Evaluate the closed form again; raises DoesNotFitError as `estimate` does."""
        return cls(predictor, question, answer_load(predictor, question).loaded)

    @property
    def closed(self) -> bool:
        """Whether users wait for their answers."""
        return self.question.rate is None

    @property
    def stable(self) -> bool:
        """Whether there is a steady state."""
        return bool(self.loaded.stable)

    @property
    def traffic(self) -> Traffic:
        """Lengths and their variation."""
        return self.question.traffic

    @property
    def room(self) -> float:
        """Sequences that can run at once."""
        return float(slots(self.predictor, self.traffic.isl, self.traffic.osl, self.traffic.most))

    def _asked(self, symbol: str, title: str, value: float, unit: str = "") -> Node:
        return given(symbol, title, value, unit, "the question")

    @property
    def running(self) -> Node:
        """Sequences that a decoding request finds in its steps, itself included."""
        value = float(self.loaded.running)
        if not self.closed and self.stable:
            title = "sequences running, C = 1 + λ·(N − 1)·TPOT (Little's law), by bisection"
            return given("C", title, value, "", _FORM)
        parts = [self._slots()]
        if not self.closed:
            return branch("C", "all slots: the rate is above the knee", value, "", ("slots", parts))
        users = self._asked("users", "users", float(self.question.users or 0.0))
        formula = "min(users, slots)" if self.room >= 1.0 else "users"
        return branch("C", "sequences running", value, "", (formula, [users, *parts]))

    def _slots(self) -> Node:
        title = "sequences that the cache and the engine's limit allow at once"
        return given("slots", title, self.room, "", "rooflinekit.traffic.mixing.slots")

    @property
    def lengths(self) -> list[Node]:
        """Mean tokens in and out."""
        return [
            self._asked("S", "mean tokens in", float(self.traffic.isl)),
            self._asked("N", "mean tokens out", float(self.traffic.osl)),
        ]

    # --- times that requests share -----------------------------------------------------------------------------------

    def _in_flight(self, users: float) -> InFlight:
        return InFlight(users, self.traffic.isl, self.traffic.osl)

    def step(self, users: float, times: Shared, symbol: str = "step") -> Node:
        """A decode step of all that run, at their mean context [s]."""
        node = tpot_node(self.predictor, Workload(users, self.traffic.isl, self.traffic.osl), float(times.step.time))
        return replace(node, symbol=symbol, title=f"a decode step of {users:.5g} sequences")

    def share(self, users: float, times: Shared) -> Node:
        """What one prompt adds to the steps of the others [s]."""
        plan, value, title = (
            self.predictor.plan,
            float(times.share.time),
            "what one prompt adds to the steps of the others",
        )
        if not plan.costs.mixes:
            alone = step_node(
                "alone",
                "a prefill by itself: the engine does not mix",
                [Scene(plan, Batch.prefill(1.0, self.traffic.isl))],
            )
            return branch("s", title, value, "s", ("alone", [alone]))
        chunks, mixed = mixed_step(self.predictor, self._in_flight(users))
        both = step_node("both", "a step with a chunk of a prompt", [Scene(plan, mixed)])
        one = step_node("one", "the same step without it", [Scene(plan, Batch(None, mixed.decoding))])
        count = given("chunks", "steps that a prompt takes, by the token budget", float(chunks), "", _FORM)
        return branch("s", title, value, "s", ("chunks*max(both - one, 0)", [count, both, one]))

    def first(self) -> Node:
        """The steps that hold the own prompt [s]."""
        plan, times, users = self.predictor.plan, self.loaded.shared, float(self.loaded.running)
        alone = step_node("alone", "the prompt by itself", [Scene(plan, Batch.prefill(1.0, self.traffic.isl))])
        value, title = float(times.first.time), "the steps that hold the own prompt"
        if not plan.costs.mixes:
            return branch("first", title, value, "s", ("alone", [alone]))
        chunks = given(
            "chunks",
            "steps that a prompt takes",
            float(mixed_step(self.predictor, self._in_flight(users))[0]),
            "",
            _FORM,
        )
        formula = "alone + (1 - 1/C)*(chunks*step + s - alone)"
        return branch("first", title, value, "s", (formula, [alone, self.running, chunks, *self._shared()]))

    def _shared(self) -> list[Node]:
        """Step and share of what runs, without what is below them: they stand in TPOT."""
        times = self.loaded.shared
        return [given("step", "a decode step of all that run", float(times.step.time), "s", "explain MODEL tpot"),
                given("s", "what one prompt adds", float(times.share.time), "s", "explain MODEL tpot")]  # fmt: skip

    # --- answers -----------------------------------------------------------------------------------------------------

    def tpot(self) -> Node:
        """Mean time of an output token after the first [s]."""
        users, times, value = float(self.loaded.running), self.loaded.shared, float(self.loaded.tpot.time)
        parts = [self.step(users, times), self.share(users, times), self.running, *self.lengths]
        if self.closed or not self.stable:
            return branch(
                "TPOT",
                "while N tokens are made, each other user prefills once",
                value,
                "s",
                ("step + (C - 1)/N*s", parts),
            )
        title = "a share rho of the time goes to prompts"
        return branch("TPOT", title, value, "s", ("(step + Q*s)/(1 - rho)", [*parts, self.busy(), self._behind()]))

    def busy(self) -> Node:
        """Share of the time that goes to prompts."""
        value = float(self.loaded.busy)
        if self.closed or not self.stable:
            return given("rho", "share of the time that goes to the prompts of others", value, "", _FORM)
        rate = self._asked("rate", "requests a second", float(self.question.rate or 0.0), "1/s")
        held = given("full", "beyond this the queue formula loses its meaning", _FULL, "", "an assumption")
        return branch(
            "rho",
            "share of the time that goes to prompts",
            value,
            "",
            ("min(rate*s, full)", [rate, held, *self._shared()]),
        )

    def _variation(self, other: float) -> Node:
        cv = [self._asked("ca", "variation of the gaps between arrivals", self.traffic.arrival_cv if not self.closed else 1.0),
              self._asked("cs", "variation of the lengths", other)]  # fmt: skip
        value = (cv[0].value ** 2 + other**2) / 2.0
        return branch("v", "mean squared variation", value, "", ("(ca**2 + cs**2)/2", cv))

    def _behind(self) -> Node:
        rho, v = self.busy(), self._variation(self.traffic.isl_cv)
        formula = "(rho + rho**2*v/(1 - rho))/max(N - 1, 1)"
        title = "prompts behind a request when its decode begins, for each step (M/G/1)"
        return reckoned("Q", title, "", (formula, [rho, v, *self.lengths]))

    def queue(self) -> Node:
        """Waiting for prompts ahead and for a slot [s]."""
        self._steady("a wait")
        parts = [*(self._closed_waits() if self.closed else [self._prompts()]), self._slot()]
        formula = " + ".join(part.symbol for part in parts)
        return branch(
            "queue", "waiting for prompts ahead and for a slot", float(self.loaded.queue), "s", (formula, parts)
        )

    def _prompts(self) -> Node:
        formula = "rho/(1 - rho)*v*s"
        return reckoned(
            "prompts",
            "behind prompts that came before (Kingman)",
            "s",
            (formula, [self.busy(), self._variation(self.traffic.isl_cv), *self._shared()]),
        )

    def _closed_waits(self) -> list[Node]:
        together = given(
            "together", "share of the requests whose prompts come all at once", float(self.loaded.together), "", _FORM
        )
        C, N, s = self.running, self.lengths[1], self._shared()[1]
        burst = reckoned("burst", "prompts of all users at once", "s", ("together*(C - 1)/2*s", [together, C, s]))
        parts = [self.busy(), self._variation(self.traffic.isl_cv), s, C, N]
        ahead = reckoned(
            "ahead", "other prompts, at most all of them in a turn", "s", ("min(rho/(1 - rho)*v*s, (C - 1)/N*s)", parts)
        )
        return [burst, ahead]

    def _slot(self) -> Node:
        held = self._held()
        if self.closed:
            late = given(
                "late",
                "share of the turns that wait: 1 − 1/(2·requests)",
                1.0 - 0.5 / float(self.traffic.requests),
                "",
                _FORM,
            )
            users = self._asked("users", "users", float(self.question.users or 0.0))
            return reckoned(
                "slot",
                "for a slot: a turn of those that run",
                "s",
                ("max(users/C - 1, 0)*held*late", [users, self.running, held, late]),
            )
        full = given(
            "load",
            "rate over the knee, at most 0.98",
            min(float(self.loaded.rate / self.loaded.knee), _FULL),
            "",
            "explain MODEL knee_rate",
        )
        formula = "v_o*held/slots*load**(sqrt(2*(slots + 1)) - 1)/(1 - load)"
        varied = replace(self._variation(self.traffic.osl_cv), symbol="v_o")
        return reckoned("slot", "for a slot (Sakasegawa 1977)", "s", (formula, [varied, held, self._slots(), full]))

    def _held(self) -> Node:
        """How long a request holds its slot [s]."""
        loaded, times = self.loaded, self.loaded.shared
        decode = (float(self.traffic.osl) - 1.0) * float(loaded.tpot.time)
        half = (1.0 - 1.0 / float(loaded.running)) if self.closed else 1.0
        waits = [node.value for node in (self._closed_waits() if self.closed else [self._prompts()])]
        value = times.request + float(times.first.time) + 0.5 * half * float(loaded.tpot.time) + sum(waits) + decode
        return given(
            "held",
            "a request's time without waiting for a slot",
            value,
            "s",
            "request + first + TPOT/2 + waits + (N − 1)·TPOT",
        )

    def ttft(self) -> Node:
        """Front end, the step under way, prompts ahead, the own prompt [s]."""
        self._steady("TTFT")
        request = Scene.facts(self.predictor.plan).engine(
            "request", "front end of a request", self.loaded.shared.request, "request"
        )
        parts = [request, self._tpot_alone(), self.queue(), self.first(), self.running]
        half = "(1 - 1/C)/2*TPOT" if self.closed else "TPOT/2"
        formula = f"request + {half} + queue + first"
        return branch("TTFT", "time to the first token under load", float(self.loaded.ttft.time), "s", (formula, parts))

    def _tpot_alone(self) -> Node:
        return given("TPOT", "mean time of an output token", float(self.loaded.tpot.time), "s", "explain MODEL tpot")

    def e2e(self) -> Node:
        """From arrival to the last token [s]."""
        parts = [self.ttft(), self.lengths[1], self.tpot()]
        return branch("E2E", "a request from end to end", float(self.loaded.e2e), "s", ("TTFT + (N - 1)*TPOT", parts))

    def knee(self) -> Node:
        """The rate that cannot be exceeded [1/s]; in a closed loop the rate it has."""
        value = float(self.loaded.knee)
        if self.closed:
            e2e = given("E2E", "a request from end to end", float(self.loaded.e2e), "s", "explain MODEL e2e")
            return branch(
                "rate", "rate of the closed loop", value, "1/s", ("C/held", [self.running, self._held(), e2e])
            )
        times, C = shared_times(self.predictor, self._in_flight(self.room)), self._slots()
        parts = [replace(C, symbol="C"), self.lengths[1], self.step(self.room, times), self.share(self.room, times)]
        return branch(
            "knee", "largest rate that can be sustained: a full batch", value, "1/s", ("C/(N*step + C*s)", parts)
        )

    def rate(self) -> Node:
        """Requests a second that are served."""
        if self.closed:
            return self.knee()
        rate, knee = (
            self._asked("rate", "requests a second that arrive", float(self.question.rate or 0.0), "1/s"),
            self.knee(),
        )
        return branch(
            "served",
            "requests a second that are served",
            min(rate.value, knee.value),
            "1/s",
            ("min(rate, knee)", [rate, knee]),
        )

    def output(self) -> Node:
        """Output tokens a second of the deployment."""
        served = replace(self.rate(), symbol="served")
        value = served.value * float(self.traffic.osl)
        return branch("output", "output tokens a second", value, "token/s", ("served*N", [served, self.lengths[1]]))

    def _steady(self, what: str) -> None:
        if not self.stable:
            raise WorkloadError(
                f"{what} has no limit at {self.question.rate:g} requests/s: the knee is {float(self.loaded.knee):.4g}; "
                "explain knee_rate or tpot, or ask for a lower --rate"
            )
        if math.isinf(float(self.loaded.queue)):
            raise WorkloadError(f"{what} has no limit")


LOAD_METRICS: dict[str, tuple[str, float, Callable[[LoadCase], Node]]] = {
    "ttft": ("ms", 1e3, LoadCase.ttft),
    "tpot": ("ms", 1e3, LoadCase.tpot),
    "e2e": ("ms", 1e3, LoadCase.e2e),
    "output_tok_s": ("token/s", 1.0, LoadCase.output),
    "queue": ("ms", 1e3, LoadCase.queue),
    "knee_rate": ("1/s", 1.0, LoadCase.knee),
    "rate": ("1/s", 1.0, LoadCase.rate),
}
"""Metrics whose derivation differs under load: unit shown, its scale, and the tree."""

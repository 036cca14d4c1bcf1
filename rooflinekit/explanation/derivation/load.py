"""Latency under load: the closed form of docs/serving.md, term by term."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflinekit.explanation.derivation.case import step_node, tpot_node
from rooflinekit.explanation.derivation.node import Node, branch, given
from rooflinekit.explanation.derivation.scene import Scene
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, Traffic
from rooflinekit.model.traffic.mixing import InFlight, Shared, lone_prompt, mixed_step, slots
from rooflinekit.model.traffic.question import LoadQuestion, answer_load
from rooflinekit.model.traffic.side_by_side import side_by_side
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.workload import Workload

__all__ = ["FORM", "LoadCase"]

FORM = "docs/serving.md"


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

    def asked(self, symbol: str, title: str, value: float, unit: str = "") -> Node:
        """Part of the question."""
        return given(symbol, title, value, unit, "the question")

    @property
    def running(self) -> Node:
        """Sequences that a decoding request finds in its steps, itself included."""
        value = float(self.loaded.running)
        if not self.closed and self.stable:
            title = "sequences running, C = 1 + λ·(N − 1)·TPOT (Little's law), where both sides agree"
            return given("C", title, value, "", FORM)
        parts = [self.slots()]
        if not self.closed:
            return branch("C", "all slots: the rate is above the knee", value, "", ("slots", parts))
        users = self.asked("users", "users", float(self.question.users or 0.0))
        formula = "min(users, slots)" if self.room >= 1.0 else "users"
        return branch("C", "sequences running", value, "", (formula, [users, *parts]))

    def slots(self) -> Node:
        """Sequences that can run at once."""
        title = "sequences that the cache and the engine's limit allow at once"
        return given("slots", title, self.room, "", "rooflinekit.model.traffic.mixing.slots")

    @property
    def lengths(self) -> list[Node]:
        """Mean tokens in and out."""
        return [
            self.asked("S", "mean tokens in", float(self.traffic.isl)),
            self.asked("N", "mean tokens out", float(self.traffic.osl)),
        ]

    # --- times that requests share -----------------------------------------------------------------------------------

    def in_flight(self, users: float) -> InFlight:
        """That many requests of the mean lengths."""
        return InFlight(users, self.traffic.isl, self.traffic.osl)

    def step(self, users: float, times: Shared, symbol: str = "step") -> Node:
        """A decode step of all that run, at their mean context [s]."""
        node = tpot_node(
            self.predictor, Workload(users, self.traffic.isl, self.traffic.osl), float(times.step.expected)
        )
        return replace(node, symbol=symbol, title=f"a decode step of {users:.5g} sequences")

    def share(self, users: float, times: Shared) -> Node:
        """What one prompt adds to the steps of the others [s]."""
        plan, value, title = (
            self.predictor.plan,
            float(times.share.expected),
            "what one prompt adds to the steps of the others",
        )
        load = self.in_flight(users)
        if not plan.costs.mixes:
            beside = side_by_side(users / self.traffic.osl, plan.deployment.dp)
            prompt = lone_prompt(load, beside / plan.deployment.dp)
            alone = step_node("alone", "a prefill by itself: the engine does not mix", [Scene(plan, prompt)])
            return branch("s", title, value, "s", ("alone" + self._over, [alone, *_beside(beside)]))
        chunks, beside, mixed = mixed_step(self.predictor, load)
        both = step_node("both", "a step with a chunk of a prompt", [Scene(plan, mixed)])
        one = step_node("one", "the same step without it", [Scene(plan, Batch(None, mixed.decoding))])
        count = given("chunks", "steps that a prompt takes, by the token budget", float(chunks), "", FORM)
        formula = "chunks*max(both - one, 0)" + self._over
        return branch("s", title, value, "s", (formula, [count, both, one, *_beside(beside)]))

    @property
    def _over(self) -> str:
        """Attention replicas wait once for the prompts that they compute side by side."""
        return "/beside" if self.predictor.plan.deployment.dp > 1 else ""

    def first(self) -> Node:
        """The steps that hold the own prompt [s]."""
        plan, times, users = self.predictor.plan, self.loaded.shared, float(self.loaded.running)
        prompt = lone_prompt(self.in_flight(users), 1.0 / plan.deployment.dp)
        alone = step_node("alone", "the prompt by itself", [Scene(plan, prompt)])
        value, title = float(times.first.expected), "the steps that hold the own prompt"
        if not plan.costs.mixes:
            return branch("first", title, value, "s", ("alone", [alone]))
        count, beside, _ = mixed_step(self.predictor, self.in_flight(users))
        chunks = given("chunks", "steps that a prompt takes", float(count), "", FORM)
        added = "s*beside" if self._over else "s"
        formula = f"alone + (1 - 1/C)*(chunks*step + {added} - alone)"
        parts = [alone, self.running, chunks, *self.shared(), *_beside(beside)]
        return branch("first", title, value, "s", (formula, parts))

    def shared(self) -> list[Node]:
        """Step and share of what runs, without what is below them: they stand in TPOT."""
        times = self.loaded.shared
        return [
            given("step", "a decode step of all that run", float(times.step.expected), "s", "explain MODEL tpot"),
            given("s", "what one prompt adds", float(times.share.expected), "s", "explain MODEL tpot"),
        ]


def _beside(count: Numeric) -> list[Node]:
    """Prompts that share the time; asked for where there are attention replicas."""
    return [given("beside", "chunks that attention replicas compute side by side", float(count), "", FORM)]

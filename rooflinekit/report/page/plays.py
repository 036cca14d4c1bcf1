"""What a page needs to play loads on a deployment: its step times in parts, its rules, and the requests that are drawn.

The parts are those of `rooflinekit.load.table`; the page fills its tables with them as the loop reads.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.load.answer import AskedLoad
from rooflinekit.load.lengths import Fixed, Length, LogNormal, Longer
from rooflinekit.load.policies import rules_of
from rooflinekit.load.scene import Scheduler, front_end_of, limits_of
from rooflinekit.load.table import _Halves, _Parts
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan, host_times
from rooflinekit.model.timing.overlap import UNDIVIDED
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import replace
from rooflinekit.model.types.kernel import ExchangeShape

_CONTEXT = 1025.0  # of sequences whose work does not depend on it
_VARIED = LogNormal(1000.0, 0.2)  # lengths beside which equal ones are set
_EVEN = 1e-6  # variation of gaps below which they are even
_LONGER = 1 << 40  # tokens of a request that is longer than any step


@dataclass(frozen=True)
class Split:
    """The operations of a plan in the parts whose times add up, and what a table is told besides."""

    phased: Mapping[Operation, int]
    sampling: Mapping[Operation, int]
    rest: Mapping[Operation, int]  #: on all tokens of an attention replica, with the engine's costs
    together: Mapping[Operation, int]  #: on the tokens of all attention replicas
    keyed: Mapping[Operation, int]
    images: Mapping[Operation, int]
    switching: bool
    halves: bool  #: of steps whose halves take turns
    numbers: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan, halves: bool = False) -> Split:
        """As a step table has them."""
        parts = (_Halves if halves else _Parts)(plan, 1, [])
        phased, sampling = parts.by_phase.operations, parts.by_rows.operations
        rest = {op: n for op, n in parts.calm.operations.items() if op not in phased and op not in sampling}
        together = {op: n for op, n in parts.whole.operations.items() if op in parts.together}
        floor, graph_floor, each = parts.floor()
        numbers = {
            "floor": floor, "graph_floor": graph_floor, "sequence_floor": each, "graph_tokens": plan.graph_tokens,
            "graphs": plan.costs.graphs and not plan.deployment.settings.eager, "unsampled": parts.unsampled(),
            "encoded_floor": parts.encoded_floor(), "replicas": plan.deployment.dp, "ranks": plan.deployment.cp,
            "summed": not parts.by_keys.operations and plan.deployment.cp == 1, "seen": parts.seen,
            "parts": int(parts.times), "switching": parts.switching, "once": parts._host(0.0),
        }  # fmt: skip
        keyed = parts.by_keys.operations
        return cls(phased, sampling, rest, together, keyed, parts.images, parts.switching, halves, numbers)

    @property
    def pieces(self) -> dict[str, tuple[tuple[str, ...], Callable[..., Any]]]:
        """Functions of a plan that give the entries of a table, each with its inputs [s]."""

        def work(operations: Mapping[Operation, int], made: Callable[..., Batch], host: bool = False) -> Any:
            """Time of some operations in a batch, and with `host` what the engine adds but for launches."""

            def time(plan: Plan, **given: Any) -> Any:
                batch = made(**given)
                own = replace(plan, operations=operations)
                added = host_times(plan.costs, plan.iteration(batch)) if host else ()
                return sum(added, self._spent(own, batch))

            return time

        def moved(made: Callable[..., Batch]) -> Any:
            """Time of exchanges, which are a floor where halves take turns."""

            def time(plan: Plan, **given: Any) -> Any:
                timed = replace(plan, operations=every).apart(made(**given).half, plan.costs)
                return sum((2.0 * each.expected for each in timed if each.kernel.family == "exchange"), 0.0)

            return time

        def prompts(count: Any, fresh: Any, past: Any) -> Batch:
            return Batch(prefilling=Sequences(count, fresh, past))

        def chunk(tokens: Any) -> Batch:
            return Batch(prefilling=Sequences(1.0, tokens, 0.0, 1.0))

        def decode(count: Any, context: Any = _CONTEXT) -> Batch:
            return Batch.decode(count, context)

        def beside(count: Any) -> Batch:
            return decode(count) | Batch.prefill(1.0, 8.0)

        def rows(count: Any) -> Batch:
            return Batch.prefill(count, 1.0) if self.switching else Batch.decode(count, 1.0)

        dp, seen = self.numbers["replicas"], self.numbers["seen"]
        every = {**self.phased, **self.sampling, **self.rest, **self.together}
        others = {op: count for op, count in every.items() if op not in self.phased}
        whole: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
            "tokens": (("tokens",), work(self.rest, chunk, host=True)),
            "sequences": (("count",), work(self.rest, beside if self.switching else decode, host=True)),
            "decode": (("count", "context"), work(self.phased, decode)),
            "prompts": (("count", "fresh", "past"), work(self.phased, prompts)),
            "together": (("count", "fresh", "past"), work(every, prompts, host=True)),
        }
        if self.sampling:
            whole["sampled"] = ("count",), work(self.sampling, rows)
        if self.together:
            whole["pooled"] = ("tokens",), work(self.together, lambda tokens: chunk(tokens / dp))
        if self.keyed:
            whole["keyed"] = ("tokens",), work(self.keyed, lambda tokens: prompts(1.0, tokens / seen, 0.0))
        if self.images:
            whole["encoded"] = ("count",), work(self.images, lambda count: Batch.prefill(count, 1.0))
        if self.switching:
            whole["alone"] = ("count",), work(others, decode, host=True)
        if self.halves:
            whole["moved"] = ("tokens",), moved(chunk)
            whole["moved_alone"] = ("count",), moved(decode)
        return whole

    def _spent(self, plan: Plan, batch: Batch) -> Any:
        """Time of the kernels of a batch; or twice that of a half, which exchanges slow while they hold cores [s]."""
        if not self.halves:
            return sum((each.expected for each in plan.apart(batch, plan.costs)), 0.0)
        timed = plan.apart(batch.half, plan.costs)
        moving = [each for each in timed if each.kernel.family == "exchange"]
        movers = max((float(each.kernel.shaped(ExchangeShape).movers) for each in moving), default=0.0)
        share = movers / float(plan.system.accelerator.cores)
        return sum((2.0 * (share if each.kernel.family == "exchange" else 1.0) * each.expected for each in timed), 0.0)


def tables_of(plan: Plan) -> list[tuple[Plan, Split]]:
    """The step tables of a plan: its own; of steps whose halves take turns; of each kind of pipeline stage with lanes.

    Raises WorkloadError for halves in lanes.
    """
    found = [(plan, Split.of(plan))]
    if plan.deployment.two_batch:
        found.append((plan, Split.of(plan, halves=True)))
    if plan.lanes == 1:
        return found
    if plan.deployment.two_batch:
        raise WorkloadError("pages play no halves of steps in lanes of pipeline stages")
    costs = replace(plan.costs.free, padded=plan.costs.padded)
    bare = replace(plan, engine=replace(plan.engine, costs=costs)).stages
    return [*found, *((stage, Split.of(stage)) for stage, _ in bare)]


def prompt_step(plan: Plan, isl: Any) -> StepTime:
    """The prompt of a request alone."""
    return plan.time(Batch.prefill(1.0, isl))


def decode_step(plan: Plan, count: Any, context: Any) -> StepTime:
    """A decode step."""
    return plan.time(Batch.decode(count, context))


def scene_data(predictor: Predictor, splits: Sequence[Split]) -> dict[str, Any]:
    """Rules, grids and front end of a deployment, as the page makes a scene of them.

    Raises WorkloadError where its token budget leaves no room for prompts.
    """
    plan = predictor.plan
    rules, longer = limits_of(predictor, Scheduler(), 1), None
    try:
        longer = limits_of(predictor, Scheduler(), _LONGER)
    except WorkloadError:
        if not rules.policy.mixes or rules.policy.chunks:
            raise
    front = front_end_of(predictor)
    settings, ends = plan.deployment.settings, plan.load_ends
    block = settings.block_size or int(plan.engine.memory.block)
    told = rules_of(rules, 1, block, apart=front.hand_over, lanes=plan.lanes)._asdict()
    del told["horizon"]
    return {
        "tables": [split.numbers for split in splits],
        "halved": list(UNDIVIDED) if plan.deployment.two_batch else None,
        "stages": [count for _, count in plan.stages] if plan.lanes > 1 else [],
        "replicas": plan.deployment.dp,
        "rules": told,
        "chunks": [rules.policy.chunks, None if longer is None else longer.policy.chunks],
        "most": -(-rules.max_num_seqs // (rules.engines * plan.lanes)),
        "step_tokens": int(plan.token_budget),
        "admitted": rules.max_model_len,
        "anew": sorted({size for layer in plan.model.layer_counts if (size := getattr(layer.mixer, "chunk", None))}),
        "front": [front.time(0), plan.costs.token],
        "images": plan.image_tokens,
        "ends": [ends.ttft, ends.tpot, ends.full],
        "fitted": plan.calibration is not None,
        "reserves": rules.reserves,
    }


def load_data(asked: AskedLoad | None) -> dict[str, Any]:
    """How requests come and how long they are, with what was drawn; None as of a page on a static batch."""
    open_loop, asked = asked is not None and asked.users is None, asked or AskedLoad(Fixed(1), Fixed(1), rate=1.0)
    fifth = {name: _law(_VARIED, asked, stream) for stream, name in enumerate(("isl", "osl"), 1)}
    return {
        "requests": asked.requests, "warmup": asked.warmup, "goals": [asked.ttft, asked.tpot],
        "isl": _law(asked.isl, asked, 1), "osl": _law(asked.osl, asked, 2), "gaps": _gaps(asked),
        "fifth": None if open_loop else fifth,
    }  # fmt: skip


def _gaps(asked: AskedLoad) -> dict[str, Any]:
    """Gaps of an open loop in units of `scale` over the rate; none where they are even."""
    import numpy as np  # noqa: PLC0415 - pages of static batches have even lengths

    cv, count = asked.burstiness, asked.requests or AskedLoad(asked.isl, asked.osl, rate=1.0).count
    drawn = np.random.default_rng((asked.seed, 0))
    if cv < _EVEN:
        return {"scale": 1.0, "units": None, "count": count}
    units = drawn.standard_exponential(count) if cv == 1.0 else drawn.standard_gamma(cv**-2, count)
    return {"scale": 1.0 if cv == 1.0 else cv**2, "units": _floats(units), "count": count}


def _law(law: Length, asked: AskedLoad, stream: int) -> dict[str, Any] | None:
    """What was drawn of a law of lengths; None where all are equal."""
    import numpy as np  # noqa: PLC0415 - as above

    text = law.text if isinstance(law, Longer) else law
    if text.quantile(0.0) == text.quantile(1.0):
        return None
    drawn, count = np.random.default_rng((asked.seed, stream)), max(asked.count, AskedLoad(law, law, rate=1.0).count)
    if isinstance(text, LogNormal):
        mu, sigma, _ = text._shape
        units, fixed = drawn.lognormal(mu, sigma, count), True
    else:
        units, fixed = np.array(text.sample(drawn, count), float), False
    told = {"mean": text.mean, "asked": max(round(text.mean), 1), "longest": text.quantile(1.0), "fixed": fixed}
    return told | {"units": _floats(units)}


def _floats(values: Any) -> str:
    """Numbers of eight bytes each, as text."""
    return b64encode(values.astype("<f8").tobytes()).decode()

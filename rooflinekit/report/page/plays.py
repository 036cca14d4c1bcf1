"""Data for playing loads on a page: its step times in parts, its rules, and the requests that are drawn.

The parts are those of `rooflinekit.load.table`; the page fills its tables with them as the loop reads.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflinekit.estimation.doubts import version_words
from rooflinekit.load.answer import POOL_ERROR, Load
from rooflinekit.load.lengths import Length, LogNormal, Longer
from rooflinekit.load.policies import rules_of
from rooflinekit.load.scene import Scheduler, front_end_of, limits_of
from rooflinekit.load.table import _Halves, _Parts, context_edges
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan, host_times
from rooflinekit.model.timing.overlap import UNDIVIDED
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import OwnLoads
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import replace
from rooflinekit.model.types.kernel import ExchangeShape
from rooflinekit.model.types.late import np
from rooflinekit.model.types.numeric import Array, Numeric
from rooflinekit.model.types.speculation import expected_tokens
from rooflinekit.model.types.time import KernelTime
from rooflinekit.model.types.workload import Workload

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
    def of(cls, plan: Plan, width: int = 1, halves: bool = False) -> Split:
        """Read the split of a step table."""
        parts = (_Halves if halves else _Parts)(plan, width, [])
        phased, sampling = parts.by_phase.operations, parts.by_rows.operations
        rest, together = parts.rest.operations, parts.joint.operations
        floor, graph_floor, each = parts.floor()
        numbers = {
            "floor": floor, "graph_floor": graph_floor, "sequence_floor": each, "graph_tokens": plan.graph_tokens,
            "graphs": plan.costs.graphs and not plan.deployment.settings.eager, "unsampled": parts.unsampled(),
            "tile_rows": plan.tile_rows,
            "encoded_floor": parts.encoded_floor(), "replicas": plan.deployment.dp, "ranks": plan.deployment.cp,
            "summed": not parts.by_keys.operations and plan.deployment.cp == 1, "seen": parts.seen,
            "parts": int(parts.times), "width": width, "switching": parts.switching, "once": parts._host(0.0),
        }  # fmt: skip
        keyed = parts.by_keys.operations
        return cls(phased, sampling, rest, together, keyed, parts.images, parts.switching, halves, numbers)

    @property
    def pieces(self) -> dict[str, tuple[tuple[str, ...], Callable[..., list[Numeric]]]]:
        """Functions of a plan that give the entries of a table and their bounds, each with its inputs [s]."""
        dp, seen, width = self.numbers["replicas"], self.numbers["seen"], float(self.numbers["width"])

        def work(
            operations: Mapping[Operation, int], made: Callable[..., Batch], host: bool = False
        ) -> Callable[..., list[Numeric]]:
            """Time of some operations in a batch, with `host` what the engine adds but for launches; and its bound."""

            def time(plan: Plan, **given: Numeric) -> list[Numeric]:
                batch = made(**given)
                own = replace(plan, operations=operations)
                added = host_times(plan.costs, plan.iteration(batch)) if host else ()
                time, bound = self._spent(own, batch)
                return [sum(added, time), bound]

            return time

        def moved(made: Callable[..., Batch]) -> Callable[..., list[Numeric]]:
            """Time of exchanges, which are a floor where halves take turns."""

            def time(plan: Plan, **given: Numeric) -> list[Numeric]:
                timed = replace(plan, operations=every).apart(made(**given).half, plan.costs)
                return _sums([(2.0, each) for each in timed if each.kernel.family == "exchange"])

            return time

        def prompts(count: Numeric, fresh: Numeric, past: Numeric) -> Batch:
            return Batch(prefilling=Sequences(count, fresh, past))

        def chunk(tokens: Numeric) -> Batch:
            return Batch(prefilling=Sequences(1.0, tokens, 0.0, 1.0))

        def decode(count: Numeric, context: Numeric = 1024.0 + width) -> Batch:
            return Batch.decode(count, context, width)

        def beside(count: Numeric) -> Batch:
            return decode(count) | Batch.prefill(1.0, 8.0)

        def rows(count: Numeric) -> Batch:
            return Batch.prefill(count, 1.0) if self.switching else Batch.decode(count, 1.0)

        every = {**self.phased, **self.sampling, **self.rest, **self.together}
        others = {op: count for op, count in every.items() if op not in self.phased}
        whole: dict[str, tuple[tuple[str, ...], Callable[..., list[Numeric]]]] = {
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

    def _spent(self, plan: Plan, batch: Batch) -> list[Numeric]:
        """Time of the kernels of a batch; or twice that of a half, which exchanges slow while they hold cores [s]."""
        if not self.halves:
            return _sums([(1.0, each) for each in plan.apart(batch, plan.costs)])
        timed = plan.apart(batch.half, plan.costs)
        moving = [each for each in timed if each.kernel.family == "exchange"]
        movers = max((float(each.kernel.shaped(ExchangeShape).movers) for each in moving), default=0.0)
        share = movers / float(plan.system.accelerator.cores)
        return _sums([(2.0 * (share if each.kernel.family == "exchange" else 1.0), each) for each in timed])


def _sums(parts: list[tuple[float, KernelTime]]) -> list[Numeric]:
    """Expected time and bound of kernels, each so many times [s]."""
    return [sum((share * getattr(each, end) for share, each in parts), 0.0) for end in ("expected", "bound")]


def tables_of(plan: Plan, width: int = 1) -> list[tuple[Plan, Split]]:
    """The step tables of a plan: its own; of steps whose halves take turns; of each kind of pipeline stage with lanes.

    width: tokens that a sequence computes in a decode step.

    Raises WorkloadError for halves in lanes.
    """
    found = [(plan, Split.of(plan, width))]
    if plan.deployment.two_batch:
        found.append((plan, Split.of(plan, width, halves=True)))
    if plan.lanes == 1:
        return found
    if plan.deployment.two_batch:
        raise WorkloadError("pages play no halves of steps in lanes of pipeline stages")
    costs = replace(plan.costs.free, padded=plan.costs.padded)
    bare = replace(plan, engine=replace(plan.engine, costs=costs)).stages
    return [*found, *((stage, Split.of(stage, width)) for stage, _ in bare)]


def prompt_step(plan: Plan, isl: Numeric) -> StepTime:
    """The prompt of a request alone."""
    return plan.time(Batch.prefill(1.0, isl))


def decode_step(plan: Plan, count: Numeric, context: Numeric) -> StepTime:
    """A decode step."""
    return plan.time(Batch.decode(count, context))


def draft_work(own: SpeculativePredictor, count: Numeric, isl: Numeric, osl: Numeric) -> list[Numeric]:
    """Time of drafting in a step of so many sequences, and its bound [s]."""
    rounds = own.draft.batches(own._local(Workload(count, isl, osl)), isl + osl / 2.0)
    steps = [(times, plan.time(batch)) for plan, batch, times in rounds]
    return [sum((times * getattr(step, end) for times, step in steps), 0.0) for end in ("expected", "bound")]


def scene_data(predictor: Predictor, splits: Sequence[Split]) -> dict[str, object]:
    """Rules, grids and front end of a deployment, as the page makes a scene of them; `bound`: at datasheet rates.

    Raises WorkloadError where its token budget leaves no room for prompts.
    """
    scene = _scene(predictor, splits)
    if predictor.plan.calibration is None:
        return scene
    other = predictor.on(replace(predictor.plan, calibration=None))
    tables = tables_of(other.plan, splits[0].numbers["width"])
    return scene | {"bound": _scene(other, [split for _, split in tables])}


def _scene(predictor: Predictor, splits: Sequence[Split]) -> dict[str, object]:
    plan = predictor.plan
    rules, longer = limits_of(predictor, Scheduler(), 1, 1.0), None
    try:
        longer = limits_of(predictor, Scheduler(), _LONGER, 1.0)
    except WorkloadError:
        if not rules.policy.mixes or rules.policy.chunks:
            raise
    front, drafted = front_end_of(predictor), dict[str, Any]()
    fronts = {key: getattr(front, key) for key in ("stream", "tokeniser", "hop")}
    if isinstance(predictor, SpeculativePredictor):
        choice = predictor.draft.choice
        rates = [choice.acceptance[min(at, len(choice.acceptance) - 1)] for at in range(choice.draft_tokens)]
        drafted = {"width": choice.verified + 1, "drafted": choice.draft_tokens, "acceptance": rates}
    settings, errors = plan.deployment.settings, plan.load_errors
    block = settings.block_size or int(plan.engine.memory.block)
    told = rules_of(rules, 1, block, front_ends=front.servers, lanes=plan.lanes, **fronts, **drafted)._asdict()
    del told["horizon"]
    off = []
    for each, version in zip(("ttft", "tpot"), errors.version, strict=True):
        law, places = [*getattr(errors, each), version], getattr(errors, f"{each}_places")
        off.append([law, places, _known(errors.own, each), plan.stands_in(each)])
    return {
        "tables": [split.numbers for split in splits],
        "halved": list(UNDIVIDED) if plan.deployment.two_batch else None,
        "stages": [count for _, count in plan.stages] if plan.lanes > 1 else [],
        "replicas": plan.deployment.dp,
        "rules": told,
        "yielded": expected_tokens(told["acceptance"], told["drafted"]),
        "chunks": [rules.policy.chunks, None if longer is None else longer.policy.chunks],
        "most": -(-rules.max_num_seqs // (rules.engines * plan.lanes)),
        "step_tokens": int(plan.token_budget),
        "admitted": rules.max_model_len,
        "edges": context_edges(plan),
        "front": [front.time(0), plan.costs.token if settings.front_end == "http" else 0.0],
        "images": plan.image_tokens,
        "errors": off,
        "version": version_words(plan.deployment),
        "pool_error": POOL_ERROR,
        "full": errors.full_places,
        "fitted": plan.calibration is not None,
        "reserves": rules.reserves,
    }


def _known(own: OwnLoads, metric: str) -> dict[str, object] | None:
    """Laws of measured loads of the deployment; None where there are none."""
    loads, inverse, weights = own.solved[metric]
    if not loads:
        return None
    level, near = getattr(own, metric)
    known = [[each.users, each.prompt] for each in loads]
    return {"loads": known, "level": level, "near": near, "inverse": inverse, "weights": weights}


def load_data(asked: Load | None, played: int = 0) -> dict[str, object]:
    """Arrivals and lengths of requests, with what was drawn; None as of a page on a static batch.

    played: requests that the first answer of the page needs; a load that needs more begins with the first draws again.

    What the latter draws stands in a file: such a page does not wait for NumPy.
    """
    if asked is None:
        found: dict[str, object] = json.loads(Path(__file__).with_name("draws.json").read_text(encoding="utf-8"))
        return found
    least = max(asked.count, Load(asked.isl, asked.osl, rate=1.0).count, played)
    fifth = {name: _law(_VARIED, asked, stream, least) for stream, name in enumerate(("isl", "osl"), 1)}
    return {
        "requests": asked.requests,
        "warmup": asked.warmup,
        "goals": [asked.ttft, asked.tpot],
        "isl": _law(asked.isl, asked, 1, least),
        "osl": _law(asked.osl, asked, 2, least),
        "gaps": _gaps(asked, least),
        "fifth": None if asked.users is None else fifth,
    }


def _gaps(asked: Load, count: int) -> dict[str, object]:
    """Gaps of an open loop in units of `scale` over the rate; none where they are even."""
    cv, count = asked.burstiness, asked.requests or count
    drawn = np.random.default_rng((asked.seed, 0))
    if cv < _EVEN:
        return {"scale": 1.0, "units": None, "count": count}
    units = drawn.standard_exponential(count) if cv == 1.0 else drawn.standard_gamma(cv**-2, count)
    return {"scale": 1.0 if cv == 1.0 else cv**2, "units": _floats(units), "count": count}


def _law(law: Length, asked: Load, stream: int, count: int) -> dict[str, object] | None:
    """Draws of a law of lengths; None where all are equal."""
    text = law.text if isinstance(law, Longer) else law
    if text.quantile(0.0) == text.quantile(1.0):
        return None
    drawn = np.random.default_rng((asked.seed, stream))
    if isinstance(text, LogNormal):
        mu, sigma, _ = text._shape
        units, fixed = drawn.lognormal(mu, sigma, count), True
    else:
        units, fixed = np.array(text.sample(drawn, count), float), False
    told = {"mean": text.mean, "asked": max(round(text.mean), 1), "longest": text.quantile(1.0), "fixed": fixed}
    return told | {"units": _floats(units)}


def _floats(values: Array) -> str:
    """Numbers of eight bytes each, as text."""
    return b64encode(values.astype("<f8").tobytes()).decode()

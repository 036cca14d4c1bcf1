"""What a page needs to play loads on a deployment: its step times in parts, its rules, and the requests that are drawn.

The parts are those of `rooflinekit.load.table`; the page fills its tables with them as the loop reads.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.load.answer import AskedLoad
from rooflinekit.load.lengths import Fixed, Length, LogNormal, Longer
from rooflinekit.load.policies import rules_of
from rooflinekit.load.scene import Scheduler, front_end_of, limits_of
from rooflinekit.load.table import _Parts
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan, host_times
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import replace

_CONTEXT = 1025.0  # of sequences whose work does not depend on it
_EVEN = 1e-6  # variation of gaps below which they are even
_LONGER = 1 << 40  # tokens of a request that is longer than any step


def playable(predictor: Predictor) -> bool:
    """Whether pages play loads on it; drafts, halves, lanes of pipeline stages and encoders apart are left out."""
    deployment = predictor.plan.deployment
    apart = deployment.two_batch or deployment.encoder_gpus or deployment.ffn_gpus
    return type(predictor) is Predictor and not apart and predictor.plan.lanes == 1


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
    numbers: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> Split:
        """As a step table has them."""
        parts = _Parts(plan, 1, [])
        phased, sampling = parts.by_phase.operations, parts.by_rows.operations
        rest = {op: n for op, n in parts.calm.operations.items() if op not in phased and op not in sampling}
        together = {op: n for op, n in parts.whole.operations.items() if op in parts.together}
        floor, graph_floor, each = parts.floor()
        numbers = {
            "floor": floor, "graph_floor": graph_floor, "sequence_floor": each, "graph_tokens": plan.graph_tokens,
            "graphs": plan.costs.graphs and not plan.deployment.settings.eager, "unsampled": parts.unsampled(),
            "encoded_floor": parts.encoded_floor(), "replicas": plan.deployment.dp, "ranks": plan.deployment.cp,
            "summed": not parts.by_keys.operations and plan.deployment.cp == 1,
        }  # fmt: skip
        return cls(phased, sampling, rest, together, parts.by_keys.operations, parts.images, parts.switching, numbers)

    @property
    def pieces(self) -> dict[str, tuple[tuple[str, ...], Callable[..., Any]]]:
        """Functions of a plan that give the entries of a table, each with its inputs [s]."""

        def work(operations: Mapping[Operation, int], made: Callable[..., Batch], host: bool = False) -> Any:
            """Time of some operations in a batch, and with `host` what the engine adds but for launches."""

            def time(plan: Plan, **given: Any) -> Any:
                batch = made(**given)
                kernels = replace(plan, operations=operations).apart(batch, plan.costs)
                added = host_times(plan.costs, plan.iteration(batch)) if host else ()
                return sum((*(each.expected for each in kernels), *added), 0.0)

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

        dp = self.numbers["replicas"]
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
            whole["keyed"] = ("tokens",), work(self.keyed, lambda tokens: Batch(prefilling=Sequences(1.0, tokens)))
        if self.images:
            whole["encoded"] = ("count",), work(self.images, lambda count: Batch.prefill(count, 1.0))
        if self.switching:
            whole["alone"] = ("count",), work(others, decode, host=True)
        return whole


def prompt_step(plan: Plan, isl: Any) -> StepTime:
    """The prompt of a request alone."""
    return plan.time(Batch.prefill(1.0, isl))


def decode_step(plan: Plan, count: Any, context: Any) -> StepTime:
    """A decode step."""
    return plan.time(Batch.decode(count, context))


def scene_data(predictor: Predictor, split: Split) -> dict[str, Any]:
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
    told = rules_of(rules, 1, block, apart=front.hand_over)._asdict()
    del told["horizon"]
    return split.numbers | {
        "rules": told,
        "chunks": [rules.policy.chunks, None if longer is None else longer.policy.chunks],
        "most": rules.max_num_seqs // rules.engines,
        "step_tokens": int(plan.token_budget),
        "admitted": rules.max_model_len,
        "anew": sorted({size for layer in plan.model.layer_counts if (size := getattr(layer.mixer, "chunk", None))}),
        "front": [front.time(0), plan.costs.token],
        "switching": split.switching,
        "images": plan.image_tokens,
        "ends": [ends.ttft, ends.tpot, ends.full],
        "fitted": plan.calibration is not None,
        "reserves": rules.reserves,
    }


def load_data(asked: AskedLoad | None, more: int = 0) -> dict[str, Any]:
    """How requests come and how long they are, with what was drawn; `more`: tokens that images add to each prompt."""
    asked = asked or AskedLoad(Fixed(1), Fixed(1), rate=1.0)
    laws = {name: _law(law, asked, stream) for stream, (name, law) in enumerate((("isl", asked.isl), ("osl", asked.osl)), 1)}
    return {
        "requests": asked.requests, "warmup": asked.warmup, "goals": [asked.ttft, asked.tpot], **laws,
        "gaps": _gaps(asked),
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

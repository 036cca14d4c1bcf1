"""Why an output token costs more than an input token: the same FLOP, but bytes that fewer tokens share."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.decision.economics.token_prices import TokenTimes
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.workload import Workload

__all__ = ["TokenWork", "token_work"]


@dataclass(frozen=True, slots=True)
class TokenWork:
    """What one token takes on one accelerator: FLOP, bytes of weights, of keys and values, and seconds of the replica.

    shared_by: tokens that one reading of the weights serves.
    """

    flops: float
    weight_bytes: float
    kv_bytes: float
    seconds: float
    shared_by: float


def token_work(predictor: Predictor, times: TokenTimes) -> tuple[TokenWork, TokenWork]:
    """Work of an input token and of an output token, from the kernels of a prompt and of a decode step.

        input   FLOP(prompt)/(S − c),  weights/(S − c) of each pass,  s/(S − c)
        output  FLOP(step)/C,          weights/C,                     t_d/C

    A dense model computes about 2·P FLOP for either. The bytes of the weights are shared by the tokens of a pass:
    C of them in a decode step, up to the token budget in a prompt; a sequence's own cache is shared by nobody in
    decode, and by all tokens of its prompt in prefill.

    >>> from rooflinekit.decision.economics.token_prices import token_times
    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.traffic.mixing import InFlight
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> given, made = token_work(plain, token_times(plain, InFlight(32.0, 1024.0, 256.0)))
    >>> round(made.flops / given.flops, 1), round(made.weight_bytes / given.weight_bytes)  # 1024 tokens share, or 32
    (1.1, 32)
    """
    load, plan = times.load, predictor.plan
    users, isl, cached = float(load.users), float(load.isl), float(load.cached)
    fresh = isl - cached
    prompt = plan.kernels(Batch.prefill(1.0, isl, cached))
    work = Workload(users, isl, float(load.osl))
    step = plan.kernels(predictor.decode_batch(work, work.decode_context))
    passes = float(plan.iteration(Batch.prefill(1.0, isl, cached)).passes)
    local = float(predictor.decode_batch(work, work.decode_context).decoding.sequences)  # type: ignore[union-attr]
    return (
        _each(prompt, fresh, float(times.prompt.expected) / fresh, passes),
        _each(step, local, float(times.output), 1.0),
    )


def _each(kernels: list[Kernel], tokens: float, seconds: float, passes: float) -> TokenWork:
    """Sums of a list of kernels over its tokens; `passes` readings of the weights in it."""
    flops = sum(k.count * float(k.flops) for k in kernels)
    weights = passes * sum(k.count * float(k.weight_bytes) for k in kernels)
    cache = sum(k.count * float(k.kv_read_bytes + k.kv_write_bytes) for k in kernels)
    return TokenWork(flops / tokens, weights / tokens, cache / tokens, seconds, tokens / passes)

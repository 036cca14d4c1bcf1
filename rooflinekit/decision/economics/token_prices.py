"""Replica time and price of a token: cached input, input and output apart.

Symbols: C sequences running, S, c and N mean tokens in, in the cache, and out; t_d(C) a decode step of all of them,
s(S, c) what one prompt adds to the steps of the others (`serving.flight.prefill_share`), π the price of a replica's
second, u the share of the time that it works.

    request = s(S, c) + N·t_d(C)/C            seconds of a replica: at the knee the rate is one over this
    output  = t_d(C)/C                        a step gives C tokens, one to each sequence
    cached  = (s(S, c) − s(S − c, 0))/c       what the prefix adds: its keys are read and scored, nothing is computed
    input   = (s(S, c) − c·cached)/(S − c)    the rest of the prompt's time, over the tokens that are computed
    price   = π/u · seconds

The parts add up to the request by construction. What decoding reads of the prompt's cache is in the output: a long
prompt makes output tokens dearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflinekit.decision.economics.price import HourlyPrice
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import InFlight, prefill_share
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, maximum, where
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload

MILLION = 1e6
_HOUR = 3600.0


@dataclass(frozen=True)
class TokenTimes:
    """Seconds of a replica that one token of each kind takes; scalars or arrays, as the load is.

    step: the decode step that all sequences share; prompt: what one prompt adds to the steps of the others.
    """

    cached: Numeric
    input: Numeric
    output: Numeric
    step: Time
    prompt: Time
    load: InFlight

    @property
    def request(self) -> Numeric:
        """Seconds of a replica that one request takes: s + N·t_d/C."""
        return self.prompt.expected + self.load.osl * self.output

    @property
    def asymmetry(self) -> Numeric:
        """Output token over input token."""
        return self.output / self.input


def token_times(predictor: Predictor, load: InFlight) -> TokenTimes:
    """Divide the time of a replica among the tokens of its requests.

    Args:
        predictor: the deployment.
        load: requests in flight, their mean lengths, and the part of each prompt that is in the cache [tokens]; with
            `cached` 0, the price of a cached token is that of a prefix of half the prompt.

    Returns:
        Seconds of a replica a token. A step has no fewer sequences than `load.users`: what fits is not asked here.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> at_bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> times = token_times(at_bound, InFlight(64.0, 1024.0, 256.0))
    >>> round(times.step.expected * 1e3, 2), round(times.output * 1e6, 1)  # 15.0 + 9.7 GB at 3.35 TB/s, 64 tokens
    (7.37, 115.1)
    >>> round(times.asymmetry, 1)  # the same FLOP, but 64 sequences share the weights and none shares its cache
    9.6
    """
    step = predictor.tpot(Workload(load.users, load.isl, load.osl))
    prompt = prefill_share(predictor, load)
    prefix = where(load.cached == 0.0, load.isl // 2.0, load.cached)  # of half the prompt where nothing is cached
    whole = prefill_share(predictor, replace(load, cached=prefix))
    alone = prefill_share(predictor, replace(load, isl=load.isl - prefix, cached=0.0))
    added = maximum(whole.expected - alone.expected, 0.0)
    cached = added / maximum(prefix, 1.0)  # a prompt of one token has no half
    return TokenTimes(
        cached=cached,
        input=(prompt.expected - load.cached * cached) / (load.isl - load.cached),
        output=step.expected / load.users,
        step=step,
        prompt=prompt,
        load=load,
    )


@dataclass(frozen=True)
class TokenPrices:
    """USD for a million tokens of each kind, and for a request; with the price of the hour that they come from."""

    cached_usd_per_million: Numeric
    input_usd_per_million: Numeric
    output_usd_per_million: Numeric
    request_usd: Numeric
    replica_usd_per_hour: Numeric
    hour: HourlyPrice


def token_prices(times: TokenTimes, hour: HourlyPrice, gpus: Numeric = 1, utilisation: Numeric = 1.0) -> TokenPrices:
    """Price the tokens of a replica of `gpus` accelerators: π/u · seconds.

    utilisation: the share of the paid time that the replica works at this load; the rest is idle and spread over all
    tokens alike.

    >>> second, load = Time(1.0, 1.0, 1.0, 1.0), InFlight(1.0, 100.0, 10.0)
    >>> times = TokenTimes(1e-6, 1e-5, 1e-4, second, Time(1e-3, 1e-3, 1e-3, 1e-3), load)
    >>> p = token_prices(times, HourlyPrice(3.6, "given"), utilisation=0.5)  # 0.001 USD a second, half of them idle
    >>> p.cached_usd_per_million, p.input_usd_per_million, p.output_usd_per_million
    (0.002, 0.02, 0.2)
    >>> round(p.request_usd, 9)  # 100 x 0.02 and 10 x 0.2 USD a million
    4e-06
    """
    replica = hour.usd_per_gpu_hour * gpus
    second = replica / _HOUR / utilisation
    return TokenPrices(
        second * times.cached * MILLION,
        second * times.input * MILLION,
        second * times.output * MILLION,
        second * times.request,
        replica,
        hour,
    )


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Work of one token on one accelerator: FLOP, bytes of weights, of keys and values, and seconds of the replica.

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
        output  FLOP(step)/C,          weights/C,                     t_d/C         with a draft C·E tokens a round

    A dense model computes about 2·P FLOP for either. The bytes of the weights are shared by the tokens of a pass:
    C of them in a decode step, up to the token budget in a prompt; a sequence's own cache is shared by nobody in
    decode, and by all tokens of its prompt in prefill.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> given, made = token_work(plain, token_times(plain, InFlight(32.0, 1024.0, 256.0)))
    >>> round(made.flops / given.flops, 1), round(made.weight_bytes / given.weight_bytes)  # 1024 tokens share, or 32
    (1.1, 32)
    """
    load, plan = times.load, predictor.plan
    batch = Batch.prefill(1.0, float(load.isl), float(load.cached))
    work = Workload(float(load.users), float(load.isl), float(load.osl))
    step = predictor.decode_batch(work, work.decode_context)
    fresh, local = float(load.isl) - float(load.cached), float(step.decoding.sequences)  # type: ignore[union-attr]

    def each(kernels: Sequence[Kernel], tokens: float, seconds: float, passes: float) -> TokenWork:
        """Sums of the kernels over the tokens; `passes` readings of the weights are in them."""
        flops = sum(k.count * float(k.flops) for k in kernels)
        weights = passes * sum(k.count * float(k.weight_bytes) for k in kernels)
        cache = sum(k.count * float(k.cache_bytes) for k in kernels)
        return TokenWork(flops / tokens, weights / tokens, cache / tokens, seconds, tokens / passes)

    passes = float(plan.iteration(batch).passes)
    prompt = each(plan.kernels(batch), fresh, float(times.prompt.expected) / fresh, passes)
    decoded, made = plan.kernels(step), local
    if isinstance(predictor, SpeculativePredictor):  # what is verified and drafted, over the tokens that it yields
        decoded = [timed.kernel for timed in predictor.decode_step(work).kernels]
        made = local * predictor.draft.choice.tokens_per_pass
    return prompt, each(decoded, made, float(times.output), 1.0)

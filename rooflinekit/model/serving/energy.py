"""Energy of requests on one deployment: what a prompt and a decode step take of all boards, and the power of a load.

    e_out  = E(step)/C                        a decode step serves C sequences
    e_in   = (E(prompts and decodes) − E(decodes))/prompts, over S    what a prompt adds to the steps of the others
    P      = R·e_out + λ·E(prompt) + (1 − busy)·P_idle      R decoded tokens, λ prompts a second; P_wait if it is busy
    busy   = R·t(step)/C + λ·s                share of the time in which there is a step

Of a load that was played, busy is what was played, and what boards draw besides their work is as long as that. A stage
of a pipeline waits while others compute; what waits within a busy server draws P_wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.model.graph import named
from rooflinekit.model.operating_point import OperatingPoint, Predictor
from rooflinekit.model.power import Energy, idle_energy, plug_power
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.serving.encoding import encoders_of, served
from rooflinekit.model.serving.flight import InFlight, mixed_step
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.hardware import PowerLaw
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum, minimum, where
from rooflinekit.model.types.time import KernelTime
from rooflinekit.model.types.workload import Workload


@dataclass(frozen=True)
class TokenEnergy:
    """Energy of requests over all boards: joules, and seconds of the deployment.

    prompt: of one request's prompt; step: of one output token, its share of a decode step.
    """

    prompt: Energy
    prompt_seconds: Numeric
    step: Energy
    step_seconds: Numeric
    gpus: int
    law: PowerLaw

    def request(self, osl: Numeric) -> Energy:
        """Prompt and output of one request, without waiting between requests."""
        return self.prompt + self.step.times(osl)


@dataclass(frozen=True)
class LoadPower:
    """Mean power of one board, the share of the time in which it works, and all energy over all output tokens.

    plug: that power with the board's share of its machine, at the plug.
    """

    watts: Numeric
    busy: Numeric
    joules_per_output_token: Numeric
    energy: Energy
    plug: Numeric


@dataclass(frozen=True)
class Run:
    """Sums of a run that was played, over the replicas of one deployment.

    prompts: that were computed, in prompts of mean length; decoded: output tokens but the first ones; tokens: all of
    them; busy, seconds: with a step, and from begin to end, of all replicas together [s].
    """

    prompts: Numeric
    decoded: Numeric
    tokens: Numeric
    busy: Numeric
    seconds: Numeric


def step_of(predictor: Predictor, kernels: Iterable[KernelTime], seconds: Numeric, parts: Numeric) -> Energy:
    """Energy of all boards in a period of `seconds` in which each stage runs `parts` steps of these kernels."""
    plan = predictor.plan
    law, timed, deployment = _law(predictor), tuple(kernels), plan.deployment
    boards = [deployment.boards(each.kernel.place) / deployment.stage for each in timed]  # 1 but in another group
    busy = parts * sum((n * each.expected for n, each in zip(boards, timed, strict=True)), 0.0)
    energy = Energy.sum(zip(boards, map(plan.energy, timed), strict=True)).times(parts)
    waits = idle_energy(law, deployment.gpus / deployment.stage * seconds - busy)
    return (energy + waits).labelled("", ", in a step").times(float(deployment.stage))


def _law(predictor: Predictor) -> PowerLaw:
    law = predictor.plan.system.accelerator.power
    if law is None:
        raise ValueError(f"{predictor.plan.system.accelerator.name} has no rated power")
    return law


def decode_energy(predictor: Predictor, work: Workload, step: StepTime, tpot: Numeric) -> Energy:
    """Energy of all boards while every sequence makes one token, in `tpot` seconds; `step` is the decode step.

    Without microbatches the power of the step, for as long as a token takes: the mean context, or a speculative round.
    """
    if predictor.plan.deployment.microbatches == 1:
        return step_of(predictor, step.kernels, step.expected, 1.0).times(tpot / step.expected)
    local = predictor.decode_batch(work, work.decode_context).sequences
    return step_of(predictor, step.kernels, tpot, ceil_div(work.batch / predictor.plan.deployment.dp, local))


def prompt_energy(predictor: Predictor, load: InFlight) -> tuple[Energy, Numeric]:
    """Energy that one prompt adds to the steps of others, and the time that it adds [s]."""
    plan = predictor.plan

    def alone(step: StepTime) -> Energy:
        return step_of(predictor, step.kernels, step.expected, 1.0)

    if not plan.costs.mixes:
        step = plan.time(Batch.prefill(1.0, load.isl, load.cached))
        return alone(step), step.expected / plan.deployment.dp
    together, mixed = mixed_step(predictor, load)
    both, one = plan.time(mixed), plan.time(Batch(None, mixed.decoding))
    added = alone(both) + alone(one).times(-1.0)
    counts = where(added.total > 0.0, 1.0, 0.0)  # a step that prompts keep whole can take less than its halves
    return added.times(counts / together), maximum(both.expected - one.expected, 0.0) / together


def token_energy(predictor: Predictor, load: InFlight) -> TokenEnergy:
    """Energy of requests in flight: `load.users` of them decode together; encoders of images work beside the steps."""
    predictor = served(predictor)
    prompt, seconds = prompt_energy(predictor, load)
    if encoders := encoders_of(predictor.plan):
        prompt += encoders.energy(predictor.plan, _law(predictor))
    work, users = Workload(load.users, load.isl, load.osl), load.users
    tpot = predictor.tpot(work).expected
    period = decode_energy(predictor, work, predictor.decode_step(work), tpot)
    gpus = predictor.plan.deployment.gpus
    return TokenEnergy(prompt, seconds, period.times(1.0 / users), tpot / users, gpus, _law(predictor))


def static_energy(predictor: Predictor, work: Workload, point: OperatingPoint | None = None) -> TokenEnergy:
    """Energy of a static batch: all prompts first, then all tokens together; `point` where it is known already."""
    point = point or predictor.evaluate(work)
    ttft, tpot, deployment = point.ttft.expected, point.tpot.expected, predictor.plan.deployment
    prompts = step_of(predictor, point.prefill.kernels, ttft, float(deployment.microbatches))
    period = decode_energy(predictor, work, point.decode, tpot)
    each = 1.0 / work.batch
    return TokenEnergy(
        prompts.times(each), ttft * each, period.times(each), tpot * each, deployment.gpus, _law(predictor)
    )


def static_power(predictor: Predictor, work: Workload, point: OperatingPoint | None = None) -> LoadPower | None:
    """Power over a static batch, whose prefill makes the first token; None where no power limit is known."""
    if predictor.plan.system.accelerator.power is None:
        return None
    return load_power(static_energy(predictor, work, point), work.osl, lone=1.0)


def load_power(
    tokens: TokenEnergy, osl: Numeric, rate: Numeric | None = None, lone: Numeric = 0.0, serving: bool = False
) -> LoadPower:
    """Power at `rate` output tokens a second of the whole deployment; None is as many as it makes.

    `serving`: it makes so few because its steps are slower than predicted, and not because nobody asks. `lone`: tokens
    of the output that the prompt's own step makes (1 in a static batch). Where the rate is measured and higher than the
    predicted times allow, all steps are that much faster, and boards run for less time.
    """
    made = (osl - lone) / osl
    needed = tokens.prompt_seconds / osl + tokens.step_seconds * made
    rate = named(1.0 / needed if rate is None else rate, "R", "output tokens a second", "token/s")
    busy = rate * needed
    energy = tokens.prompt.times(1.0 / osl) + tokens.step.times(made)
    if not isinstance(busy, float) or busy > 1.0:
        shrink = minimum(1.0 / busy, 1.0)
        energy = replace(energy, running=energy.running * shrink, idle=energy.idle * shrink)
    wait = tokens.gpus * maximum(1.0 / rate - needed, 0.0)
    whole = energy + idle_energy(tokens.law, wait, serving)
    whole = whole.labelled("", ", for an output token")
    asked = named(whole.total, "E", "energy that an output token asks for", "J")
    most = tokens.law.held * tokens.law.limit
    watts = named(minimum(asked * rate / tokens.gpus, most), "power", "mean power of a board", "W")
    joules = watts * tokens.gpus / rate
    return LoadPower(watts, minimum(busy, 1.0), joules, whole.times(joules / asked), plug_power(watts, tokens.law.host))


def run_power(tokens: TokenEnergy, run: Run) -> LoadPower:
    """Power over a run that was played; `tokens` are those of its mean batch and lengths.

    Its steps took as long as they were played: so long the boards draw what they take besides their work, and idle
    power for the rest.
    """
    energy = tokens.prompt.times(run.prompts) + tokens.step.times(run.decoded)
    steps = tokens.prompt_seconds * run.prompts + tokens.step_seconds * run.decoded
    longer = named(run.busy / maximum(steps, _NOTHING), "longer", "steps as played over those of the mean batch")
    energy = replace(energy, running=energy.running * longer, idle=energy.idle * longer)
    whole = energy + idle_energy(tokens.law, tokens.gpus * maximum(run.seconds - run.busy, 0.0), serving=False)
    whole = whole.labelled("", ", in the run")
    asked = named(whole.total, "E", "energy that the run asks for", "J")
    most = tokens.law.held * tokens.law.limit
    watts = named(minimum(asked / (run.seconds * tokens.gpus), most), "power", "mean power of a board", "W")
    joules = watts * tokens.gpus * run.seconds / run.tokens
    busy = minimum(run.busy / run.seconds, 1.0)
    return LoadPower(watts, busy, joules, whole.times(joules / asked), plug_power(watts, tokens.law.host))


_NOTHING = 1e-30  # seconds of a run without a step

"""A deployment as a load meets it: step table, scheduler, cache, front end, replicas and their router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from rooflinekit.load.arrays import Clients, Rules
from rooflinekit.load.arrivals import Drawn
from rooflinekit.load.policies import POLICIES, ROUTERS, Limits, rules_of
from rooflinekit.load.table import StepTable, build_table
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.encoding import encoders_of, served
from rooflinekit.model.traffic.mixing import front_end
from rooflinekit.model.types.errors import DoesNotFitError

_LONGEST = 1 << 20  # tokens up to which step times are tabulated; beyond, the last slope goes on
_FOLLOWED = 1 << 26  # tokens beyond which a cache that does not grow is not followed


@dataclass(frozen=True)
class Scheduler:
    """How each replica forms its steps, how many there are and how requests reach them.

    None leaves a limit to the engine's default.
    """

    policy: str | None = None
    token_budget: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    queue_limit: int | None = None
    receive_interval: int = 1
    batch_wait: int = 0
    by_class: bool = False
    draft_tokens: int = 0
    acceptance: float = 0.0
    draft_ms: float = 0.0  #: time to draft one token [ms]
    replicas: int = 1
    router: str = "round-robin"
    block_size: int | None = None  #: tokens of a cache block; None: as the engine has it
    kv_tokens: int | None = None  #: tokens that the cache of one replica holds; None: as the memory model says
    seed: int = 0


class EncoderStation:
    """Accelerators that encode images before a request comes to a queue: all replicas' are one pool, first come first.

    parts: seconds of each accelerator that shares the images of a request; send: the way of the embeddings [s].
    """

    def __init__(self, gpus: int, parts: Sequence[float], send: float) -> None:
        self.parts, self.send, self.gpus = parts, send, gpus
        self.busy, self.encoded = 0.0, 0  #: of all accelerators [s]; parts of requests
        self._free_at = [0.0] * gpus

    def done(self, now: float) -> float:
        """When the embeddings of a request that comes now have come; each part goes to who is free first."""
        last = now
        for part in self.parts:
            ends = max(now, heappop(self._free_at)) + part
            heappush(self._free_at, ends)
            self.busy += part
            self.encoded += 1
            last = max(last, ends)
        return last + self.send


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What a request passes before it comes to a queue."""

    time: Callable[[int], float] = lambda isl: 0.0  #: of a prompt of so many tokens [s]
    hand_over: float = 0.0  #: least time from one request to the next that it hands to a replica [s]
    encoders: EncoderStation | None = None  #: before that, where images have accelerators of their own


@dataclass(frozen=True)
class Scene:
    """What is played on: step table, seconds of a draft, limits, blocks of the cache, front end, replicas, router."""

    table: StepTable
    drafted: int
    acceptance: float
    draft_seconds: float
    limits: Limits
    blocks: int
    block: int
    front: FrontEnd
    replicas: int
    router: str
    seed: int

    @property
    def rules(self) -> Rules:
        """As the loop has them."""
        encoders = self.front.encoders
        return rules_of(
            self.limits,
            self.blocks,
            self.block,
            width=self.table.width,
            drafted=self.drafted,
            acceptance=self.acceptance,
            replicas=self.replicas,
            router=ROUTERS[self.router],
            apart=self.front.hand_over / self.replicas,
            encoder_parts=encoders.parts if encoders else [],
            encoder_send=encoders.send if encoders else 0.0,
        )

    def clients(self, drawn: Drawn, users: int | None, warmup: int, cached: int = 0, prompts: int = 0) -> Clients:
        """As the loop has them, with what `AskedLoad` says of the cache; each prompt's last token is computed."""
        times, n = {each: self.front.time(each) for each in set(drawn.isl)}, len(drawn.isl)
        chosen = [0] * n
        if self.router == "random":
            draw = Random(0)
            chosen = [draw.choice(range(self.replicas)) for _ in range(n)]
        front = [times[each] for each in drawn.isl]
        there = [min(cached, each - 1) for each in drawn.isl]
        if prompts:
            there[prompts:] = [(each - 1) // self.block * self.block for each in drawn.isl[prompts:]]
        return Clients(users or 0, warmup, drawn.time, drawn.isl, drawn.osl, there, drawn.priority, front, chosen)


def kv_capacity_tokens(predictor: Predictor, context: float, sequences: int) -> int:
    """Tokens that the cache of a replica holds, for sequences of about `context` tokens.

    The number that fits at this length times the longest length at which it still does; where layers stop growing
    with the context (windows, recurrent states), that is more than for longer sequences.

    Raises DoesNotFitError if not even one such sequence fits.
    """
    memory = predictor.memory
    fitting = float(memory.max_batch(context, context))
    if fitting < 1:
        raise DoesNotFitError(
            f"{predictor.plan.model.name} on {predictor.plan.system.accelerator.name} has no room for one request of "
            f"{context:.0f} tokens; raise tp, shorten requests or take 8-bit weights"
        )
    low, high = int(context), 2 * int(context) + 2
    while high < _FOLLOWED and memory.max_batch(float(high), context) >= fitting:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if memory.max_batch(float(middle), context) >= fitting else (low, middle)
    return low * int(min(fitting, sequences) if high >= _FOLLOWED else fitting)


def usual_policy(plan: Plan, longer: bool) -> str:
    """The name of the policy that the engine is known for; where prompts are longer than a step, it has to cut them."""
    if plan.costs.mixes:
        return "chunked" if plan.costs.splits or longer else "continuous"
    return "chunked-prefill" if plan.costs.splits else "prefill-priority"


def kept_table(plan: Plan, *size: int) -> StepTable:
    """A step table; the latest few are kept with their plans, which a planner simulates several times."""
    kept, table = _tables.pop((id(plan), size), (None, None))
    if table is None or kept is not plan:
        table = build_table(plan, *size)
    _tables[id(plan), size] = plan, table
    if len(_tables) > _KEPT:
        del _tables[next(iter(_tables))]
    return table


_tables: dict[tuple[int, tuple[int, ...]], tuple[Plan, StepTable]] = {}
_KEPT = 16


def limits_of(predictor: Predictor, chosen: Scheduler, longest: float) -> Limits:
    """What the scheduler of a replica may do where requests are up to `longest` tokens long."""
    plan = predictor.plan
    settings, dp = plan.deployment.settings, plan.deployment.dp
    budget = chosen.token_budget or settings.token_budget or int(plan.token_budget)
    sequences = chosen.max_num_seqs or settings.max_num_seqs
    return Limits(
        policy=POLICIES[chosen.policy or usual_policy(plan, longest > budget)],
        token_budget=budget,
        max_num_seqs=(sequences or int(predictor.memory.rows)) * dp,
        max_model_len=chosen.max_model_len or settings.max_model_len or plan.model.max_context,
        queue_limit=chosen.queue_limit,
        by_class=chosen.by_class,
        receive_interval=chosen.receive_interval,
        batch_wait=chosen.batch_wait,
        engines=dp,
        overlap=int(plan.costs.overlap),
        reserves=plan.engine.memory.reserves,
    )


def steps_of(predictor: Predictor, limits: Limits, longest: int, width: int = 1) -> StepTable:
    """Step times of a deployment whose steps verify `width` tokens of each sequence."""
    most = min(longest, limits.max_model_len or _LONGEST, _LONGEST)
    return kept_table(predictor.plan, limits.max_num_seqs // limits.engines, most, width, limits.token_budget)


def front_end_of(predictor: Predictor, replicas: int = 1) -> FrontEnd:
    """What requests pass before they come to the queue of a replica; encoders of all replicas are together."""
    costs = predictor.plan.costs
    return FrontEnd(lambda isl: float(front_end(costs, isl)), costs.hand_over, _encoders(predictor.plan, replicas))


def _encoders(plan: Plan, replicas: int) -> EncoderStation | None:
    """Those of all replicas together, where images have accelerators of their own."""
    found = encoders_of(plan)
    if found is None:
        return None
    parts = [float(part.expected) for count, part in found.parts for _ in range(count)]
    return EncoderStation(found.gpus * replicas, parts, float(found.send.expected))


def scene_of(predictor: Predictor, chosen: Scheduler, typical: float, longest: int) -> Scene:
    """The scene of a deployment.

    Args:
        predictor: the deployment.
        chosen: its scheduler, replicas and router.
        typical: mean tokens of a request, prompt and answer; the cache holds so many of them.
        longest: tokens of the longest request.

    Raises:
        DoesNotFitError: the cache holds not one request.
    """
    predictor = served(predictor)
    limits = limits_of(predictor, chosen, longest)
    tokens = chosen.kv_tokens or kv_capacity_tokens(predictor, typical, limits.max_num_seqs)
    settings = predictor.plan.deployment.settings
    block = chosen.block_size or settings.block_size or int(predictor.plan.engine.memory.block)
    return Scene(
        table=steps_of(predictor, limits, longest, chosen.draft_tokens + 1),
        drafted=chosen.draft_tokens,
        acceptance=chosen.acceptance,
        draft_seconds=chosen.draft_tokens * chosen.draft_ms / 1e3,
        limits=limits,
        blocks=max(tokens // block, 1),
        block=block,
        front=front_end_of(predictor, chosen.replicas),
        replicas=chosen.replicas,
        router=chosen.router,
        seed=chosen.seed,
    )

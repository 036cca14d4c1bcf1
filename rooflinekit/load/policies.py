"""Scheduling policies as data: six policies that differ in four choices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rooflinekit.load.arrays import Rules
from rooflinekit.load.loop import LEAST_LOADED, RANDOM, ROUND_ROBIN, SHARED
from rooflinekit.model.types.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Policy:
    """Content of a step by a scheduling policy.

    mixes: prompts and decoding sequences share a step. chunks: a prompt may be cut to fit the token budget. joins: new
    requests start while others decode. pads: a finished sequence keeps its place until all of its batch have finished.
    """

    mixes: bool
    chunks: bool
    joins: bool
    pads: bool = False


POLICIES = {
    "static": Policy(mixes=False, chunks=False, joins=False, pads=True),
    "decode-priority": Policy(mixes=False, chunks=False, joins=False),
    "prefill-priority": Policy(mixes=False, chunks=False, joins=True),
    "chunked-prefill": Policy(mixes=False, chunks=True, joins=True),
    "continuous": Policy(mixes=True, chunks=False, joins=True),
    "chunked": Policy(mixes=True, chunks=True, joins=True),
}
"""static: a batch is filled once and decoded to its longest output. decode-priority: the same, but who is done leaves
(FasterTransformer). prefill-priority: whole prompts in steps of their own, before any decoding (vLLM 0).
chunked-prefill: the same, but the last prompt of a step is cut to fill the token budget (SGLang's `PrefillAdder`,
python/sglang/srt/managers/schedule_policy.py). continuous: whole prompts beside the decoding sequences (Orca, OSDI
2022). chunked: decoding first, prompts in what is left of the token budget (Sarathi-Serve, arXiv:2403.02310; vLLM
1)."""


def policy_name(policy: Policy) -> str:
    """The name of one of the policies.

    >>> policy_name(POLICIES["continuous"])
    'continuous'
    """
    return next(name for name, each in POLICIES.items() if each == policy)


@dataclass(frozen=True)
class Limits:
    """Limits of the scheduler of one replica; those that the loop reads under the same name stand in `Rules`.

    token_budget: tokens of one step of one attention replica. max_num_seqs: sequences that run at once, in all.
    queue_limit: waiting requests beyond which new ones are rejected. by_class: the queue is ordered by priority class,
    else by arrival. reserves: a request is admitted where its whole answer has room. swap: a preempted request goes to
    host memory, else it is computed again. longest_run: decode steps that are taken together when nothing can happen
    between them (the result is the same for any). receive_interval, batch_wait: SGLang's --scheduler-recv-interval and
    TensorRT-LLM's batch_wait_timeout_iters. prefix_caching: a prompt that was sent before is found in the cache.
    """

    policy: Policy = POLICIES["chunked"]
    token_budget: int = 8192
    max_num_seqs: int = 256
    max_model_len: int | None = None
    queue_limit: int | None = None
    by_class: bool = False
    swap: bool = False
    longest_run: int = 1 << 30
    engines: int = 1
    overlap: int = 0
    reserves: bool = False
    receive_interval: int = 1
    batch_wait: int = 0
    prefix_caching: bool = True
    imports: bool = False

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_num_seqs", "longest_run", "engines", "receive_interval"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.policy.chunks and self.policy.mixes and self.token_budget * self.engines < self.max_num_seqs:
            raise WorkloadError(
                f"token_budget={self.token_budget} holds no step of max_num_seqs={self.max_num_seqs} decoding "
                "sequences; use as large a budget, or fewer sequences"
            )


def rules_of(limits: Limits, blocks: int, block: int, **more: Any) -> Rules:
    """The rules of the loop: those of a scheduler, a cache of so many blocks, and `more` fields of `Rules` by name.

    >>> rules_of(Limits(token_budget=2048), blocks=1000, block=16).budget
    2048
    """
    alike = ("by_class", "reserves", "imports", "engines", "overlap", "receive_interval", "batch_wait")
    return Rules(
        **asdict(limits.policy),
        **{name: getattr(limits, name) for name in alike},
        budget=limits.token_budget,
        most=limits.max_num_seqs,
        longest=limits.max_model_len or 0,
        queue_limit=-1 if limits.queue_limit is None else limits.queue_limit,
        blocks=blocks,
        block=block,
        **more,
    )


ROUTERS = {"round-robin": ROUND_ROBIN, "random": RANDOM, "least-loaded": LEAST_LOADED, "shared": SHARED}
"""Routers that the loop knows."""

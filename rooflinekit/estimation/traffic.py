"""The load that keywords describe: users of a closed loop, or a rate of arrivals; lengths, requests, objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooflinekit.estimation.options import Keywords, part_of
from rooflinekit.estimation.scenario import LOAD_KEYS
from rooflinekit.model.types.errors import InputError, WorkloadError

if TYPE_CHECKING:
    from rooflinekit.load.answer import Load

VARIES = "{key}={law} varies from request to request; add concurrency (a closed loop) or rate"
"""Refusal of a law of lengths without a load."""

_PROTOCOL = ("rate", "burstiness", "requests", "warmup", "seed")


def load_of(given: Keywords, image_tokens: int = 0) -> Load:
    """The load by its options, whether they go together or not; image_tokens: what images add to each prompt."""
    from rooflinekit.load.answer import Load  # noqa: PLC0415 - statistics take a while
    from rooflinekit.load.lengths import lengths_of, longer  # noqa: PLC0415 - likewise

    isl, osl = lengths_of(given)
    told = part_of(given, _PROTOCOL) | {key: ms / 1e3 for key, ms in part_of(given, ("ttft", "tpot")).items()}
    told |= {"cached": float(given.get("cached", 0)), "prompts": given.get("seed_reuse", 0)}
    return Load(longer(isl, image_tokens), osl, given.get("concurrency"), **told)


def read_load(given: Keywords, image_tokens: int = 0) -> Load | None:
    """Read what keywords say of traffic, to be played; None if no load is asked for.

    Args:
        given: keywords of `estimate`, those that nobody gave left out.
        image_tokens: what images add to each prompt.

    Raises:
        InputError: users together with a rate, an option of one that is given to the other, or to neither.
        WorkloadError: no request that counts, or more than are played.

    >>> read_load({"concurrency": 64, "requests": 640}).arrivals
    'closed loop of 64 users, 640 requests'
    >>> read_load({"rate": 2.0, "isl_cv": 1.0}).arrivals
    '2 requests/s, Poisson, mean lengths (cv 1 in, 0 out)'
    """
    asked = part_of(given, LOAD_KEYS)
    if not {"concurrency", "rate"} & asked.keys():
        for key in asked:
            raise InputError(f"{key} describes traffic; add concurrency (a closed loop) or rate (requests/s)")
        for key in ("isl", "osl"):
            if isinstance(given.get(key), str):
                raise InputError(VARIES.format(key=key, law=given[key]))
        return None
    _refuse(asked)
    load = load_of(given, image_tokens)
    if load.users is None and load.filling >= load.count:
        raise WorkloadError(f"warmup={load.filling} leaves none of {load.count} requests to count; use fewer")
    return load


def _refuse(asked: Keywords) -> None:
    """Raise InputError for options that exclude each other."""
    users = asked.get("concurrency")
    if users is not None and "rate" in asked:
        raise InputError("concurrency and rate exclude each other: a closed loop of users, or arrivals at a rate")
    if users is not None and "burstiness" in asked:
        raise InputError("burstiness belongs to a rate; users of a closed loop send when their answers have come")

"""Changes of intervals under load beside an engine's own errors: its version's distance, loads of one's own."""

from __future__ import annotations

from functools import partial

from rooflinekit.model.types.engine import OwnLoads, Pair
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs.files import table_of

_rules = partial(table_of, __file__)
"""What a version's distance adds, and what loads of one deployment have in common."""


@dataclass(frozen=True)
class Nearest:
    """The measured version of an engine that is nearest to one, and how many releases lie between."""

    version: str
    releases: float


def nearest_measured(engine: str, version: str | None) -> Nearest | None:
    """The nearest version whose loads were measured; None for an engine or a version that nobody names.

    >>> nearest_measured("vllm", "0.33"), nearest_measured("sglang", "0.5.9").releases, nearest_measured("vllm", None)
    (Nearest(version='0.24.0', releases=9.0), 0.0, None)
    """
    known = _rules()["versions"].get(engine)
    if known is None or version is None:
        return None
    places = known["places"]
    apart = {each: abs(_place(each, places) - _place(version, places)) for each in known["measured"]["value"]}
    name = min(apart, key=lambda each: apart[each])
    return Nearest(name, apart[name])


def _place(version: str, places: list[int]) -> float:
    """The place of a version, in releases."""
    numbers = [
        int(digits)
        for part in version.lstrip("v").split(".")[: len(places)]
        if (digits := part[: len(part) - len(part.lstrip("0123456789"))])
    ]
    return float(sum(weight * number for weight, number in zip(places, numbers, strict=False)))


def version_variances(engine: str, version: str | None) -> Pair:
    """Variances of TTFT and TPOT that a version adds by its distance from the measured ones.

    >>> version_variances("vllm", "0.18.0"), version_variances("vllm", "0.27")
    ((0.0, 0.0), (0.0239, 0.00746))
    """
    near, pair = nearest_measured(engine, version), _rules()["pair"]
    pairs = near.releases / pair["releases"]["value"] if near else 0.0
    return pairs * pair["ttft"]["value"], pairs * pair["tpot"]["value"]


def own_loads(engine: str) -> OwnLoads:
    """The common part of one deployment's loads, without any load yet."""
    known = _rules()["own"]
    shares = known.get(engine, known["other"])
    return OwnLoads((shares["ttft"][0], shares["ttft"][1]), (shares["tpot"][0], shares["tpot"][1]))

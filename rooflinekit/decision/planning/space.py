"""What is searched: splits, formats, engines and settings, as keywords of `rk.estimate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import MixtureOfExperts, Model

__all__ = ["BUDGETS", "SEQUENCES", "Space", "Split", "settings", "splits"]

BUDGETS = (2048, 4096, 8192, 16384)
"""Token budgets of a step that are tried beside the engine's default."""
SEQUENCES = (128, 256, 512)
"""Limits of running sequences that are tried beside the engine's default."""
_STAGES = (2, 4, 8)
_DENSE, _SPARSE, _STAGED = 8, 16, 32  # accelerators of one replica at most: dense, with experts, in stages

Split = dict[str, int]


@dataclass(frozen=True)
class Space:
    """What a search goes through; an empty tuple means all that are valid, None (of formats) the checkpoint's own.

    max_gpus: accelerators of one replica at most (None: 8, or 16 with experts). disaggregated: also pools for prefill
    and decode. mixed: also fleets of two kinds of replica.
    """

    gpus: tuple[str, ...]
    engines: tuple[str, ...] = ("vllm",)
    weights: tuple[str | None, ...] = (None,)
    kv: tuple[str | None, ...] = (None,)
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    token_budgets: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    max_gpus: int | None = None
    memory_fraction: float | None = None
    activations: str | None = None
    disaggregated: bool = True
    mixed: bool = True

    def __post_init__(self) -> None:
        if not self.gpus or not self.engines:
            raise WorkloadError("a plan needs at least one gpu and one engine")

    @property
    def told(self) -> bool:
        """Whether the split is given in part."""
        return bool(self.tp or self.pp or self.ep or self.dp)

    def fixed(self) -> dict[str, Any]:
        """Keywords that all candidates share."""
        shared = {"memory_fraction": self.memory_fraction, "activations": self.activations}
        return {key: value for key, value in shared.items() if value is not None}


def settings(space: Space) -> Iterator[dict[str, int]]:
    """Token budgets and limits of running sequences; the engine's own defaults first."""
    budgets: Sequence[int | None] = space.token_budgets or (None, *BUDGETS)
    limits: Sequence[int | None] = space.max_num_seqs or (None, *SEQUENCES)
    for budget, limit in product(budgets, limits):
        chosen = {"token_budget": budget, "max_num_seqs": limit}
        yield {key: value for key, value in chosen.items() if value is not None}


def splits(model: Model, system: System, space: Space, staged: bool = False) -> list[Split]:
    """Splits of one replica, the fewest accelerators first; whether each exists is checked when it is laid out.

    Powers of two for tp. With experts: whole experts on every rank or none (ep), and attention replicated over some of
    them (dp). Pipeline stages (`staged`) are tried where nothing else holds the model, or when they are asked for.
    """
    experts = any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layer_counts)
    most = space.max_gpus or (_STAGED if staged else _SPARSE if experts else _DENSE)
    tps = space.tp or _powers(min(system.domain_size, most))
    pps = space.pp or (_STAGES if staged else (1,))
    dps = space.dp or (_powers(most) if experts and system.max_gpus > 1 else (1,))
    found = []
    for tp, pp, dp in product(tps, pps, dps):
        group = tp * dp
        eps = space.ep or ((1, group) if dp == 1 and group > 1 else (group,)) if experts else (space.ep or (1,))
        fits = group * pp <= min(max(most, *tps), system.max_gpus)
        found += [{"tp": tp, "pp": pp, "ep": ep, "dp": dp} for ep in dict.fromkeys(eps) if fits or space.told]
    return sorted(found, key=lambda split: (split["tp"] * split["pp"] * split["dp"], split["pp"], split["dp"]))


def _powers(most: int) -> tuple[int, ...]:
    return tuple(1 << exponent for exponent in range(max(most, 1).bit_length()) if 1 << exponent <= most)

"""Warnings of rows, in the words of `estimate`."""

from __future__ import annotations

import numpy as np

from rooflinekit.estimation.estimator import Resolved
from rooflinekit.estimation.frames.texts import Rows, Texts
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.units import GB

__all__ = ["warn", "warn_of_lengths"]


def warn(said: Texts, rows: Rows, resolved: Resolved, work: dict[str, Array], results: dict[str, Array]) -> None:
    """The warnings of the deployment, and those of each row."""
    said.put(rows, "; ".join(resolved.warnings))
    warn_of_lengths(said, rows, resolved, work)
    _misfits(said, rows, results)


def warn_of_lengths(said: Texts, rows: Rows, resolved: Resolved, work: dict[str, Array]) -> None:
    """The limits that the sequences of a row exceed."""
    tokens = np.fmax(work["context"][rows], work["isl"][rows] + work["osl"][rows])
    model, settings = resolved.plan.model, resolved.plan.deployment.settings
    if model.max_context is not None:
        beyond = f" tokens exceed {model.name}'s maximum context of {model.max_context}"
        _over(said, rows, tokens, float(model.max_context), beyond)
    alone = rows[work["osl"][rows] == 1]
    said.append(alone, [], lambda: "osl 1 has no second token: TPOT is the step that would follow")
    if (longest := settings.max_model_len) is not None:
        _over(
            said, rows, tokens, float(longest), f" tokens exceed max_model_len {longest}: the engine would refuse them"
        )
    if (sequences := settings.max_num_seqs) is not None:
        batch = work["batch"][rows]
        over = batch > sequences * resolved.plan.deployment.dp
        words = f"max_num_seqs {sequences} would run a batch of "
        said.append(rows[over], [batch[over]], lambda batch: f"{words}{int(batch)} in turns")


def _over(said: Texts, rows: Rows, tokens: Array, limit: float, words: str) -> None:
    over = tokens > limit
    said.append(rows[over], [tokens[over]], lambda count: f"{int(count)}{words}")


def _misfits(said: Texts, rows: Rows, results: dict[str, Array]) -> None:
    need, have = results["needed_bytes"][rows], results["available_bytes"][rows]
    over = need > have
    said.append(rows[over], [_tenths(size[over] / GB) for size in (need, have, need - have)], _misfit)


def _misfit(need: float, have: float, more: float) -> str:
    return f"does not fit: needs {need:.1f} GB per accelerator and has {have:.1f} GB, {more:.1f} GB too little"


def _tenths(value: Array) -> Array:
    """One digit behind the point, and all of a number that is too large for one."""
    return np.where(value < 1e12, np.round(value, 1), value)

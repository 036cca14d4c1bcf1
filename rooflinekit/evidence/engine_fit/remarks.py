"""What to doubt in a fit to benchmark files, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rooflinekit.evidence.engine_fit.outcome import Error, Outcome
from rooflinekit.evidence.engine_fit.solve import Posterior

__all__ = ["alike", "remarks"]

_ALIKE = 0.5  # correlation of two errors beyond which files tell the sum of two costs, and not each
_SILENT = 0.1  # share of the files in a value, below which they say nothing of it
_NEAR = 0.25  # prior spreads
_OFF = 0.25  # error that is left where something else than the engine is wrong


def alike(names: Sequence[str], posterior: Posterior) -> tuple[tuple[str, str], ...]:
    """Pairs of costs that go down as the other goes up, the closest first."""
    scale = np.sqrt(np.diag(posterior.covariance))
    correlation = posterior.covariance / np.outer(scale, scale)
    pairs = [(correlation[a, b], a, b) for a in range(len(names)) for b in range(a) if correlation[a, b] < -_ALIKE]
    return tuple((names[b], names[a]) for _, a, b in sorted(pairs))


def remarks(
    outcomes: Sequence[Outcome], errors: Mapping[str, Error], interval: float, widened: float
) -> tuple[str, ...]:
    """Bounds that were reached, costs that the files say nothing of, errors that are left, what intervals do."""
    said = [
        f"{each.prior.name} stands at its bound, {'the most' if each.at == 'most' else 'the least'} that is believed"
        for each in outcomes
        if each.at and not (each.at == "least" and each.value == 0.0)
    ]
    if silent := [each.prior.name for each in outcomes if each.data < _SILENT and abs(each.moved) < _NEAR]:
        said.append(f"the files say little of {', '.join(silent)}: they stay near what was shipped")
    waits = errors.get("ttft_ms")
    if any(error.after > _OFF for name, error in errors.items() if name != "ttft_ms"):
        said.append(f"over {_OFF:.0%} is left, which no cost explains: check --gpu, --tp, --model, formats and load")
    elif waits is not None and waits.after > _OFF:
        said.append(
            f"TTFT stays {waits.after:.0%} off: waits hang on how the client starts and how output lengths vary"
            " (--osl-cv), not on the engine's costs"
        )
    if any(error.unseen is not None and error.unseen > error.before for error in errors.values()):
        said.append("a file that the fit has not seen is predicted no better than before: the fit does not generalise")
    if all(error.unseen is None for error in errors.values()):
        said.append("with three files or more, each would be left out in turn to show whether the fit generalises")
    if widened > interval:
        said.append(f"intervals widen to a factor of {widened:.2f}, as far as left-out files are off")
    else:
        said.append(
            "intervals: the part of the engine's costs narrows with their errors; that of kernels, and the least factor"
            f" of {interval:.2f}, stay, since these files are of one deployment"
        )
    return tuple(said)

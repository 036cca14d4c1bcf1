"""The pictures of docs/why-decode.md: `python -m docs.generate.why_decode docs/images` draws them again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rooflinekit.decision.sensitivity.levers import levers
from rooflinekit.decision.sweeping.sweep import sweep
from rooflinekit.estimation.estimator import estimate
from rooflinekit.report.plots import plot
from rooflinekit.report.plots.style import Picture

__all__ = ["pictures", "write_pictures"]

_MODEL, _GPU = "llama3-8b", "h100-sxm"
_CONTEXTS = (128, 512, 2048, 8064)
_BATCHES = tuple(2**power for power in range(11))


def pictures() -> Iterator[Picture]:
    """Each picture of the page, in its order; those of the bound do not change when a calibration does."""
    yield plot(estimate(_MODEL, _GPU, isl=2048), "roofline", "light")
    points = [estimate(_MODEL, _GPU, batch=batch, isl=128, context=context, calibration="none", allow_oom=True)
              for context in _CONTEXTS for batch in _BATCHES]  # fmt: skip
    yield plot(tuple(points), "intensity", "light")
    yield plot(sweep(_MODEL, gpu=_GPU, batch=list(_BATCHES[:9]), isl=2048), "batch", "light")
    yield plot(sweep(_MODEL, gpu=_GPU, batch=32, isl=[256, 512, 1024, 2048, 4096, 7936]), "context", "light")
    found = levers(_MODEL, _GPU, batch=32, isl=2048, calibration="none", price=3, gpus={"h200-sxm": 3.8}, by="tpot")
    yield plot(found, "elasticities", "light")
    yield plot(found, "moves", "light")


def write_pictures(folder: Path) -> list[Path]:
    """Write them all as SVG, over those that are there."""
    return [picture.save(folder / f"decode-{picture.name}.svg", force=True) for picture in pictures()]


if __name__ == "__main__":
    write_pictures(Path(sys.argv[1]))

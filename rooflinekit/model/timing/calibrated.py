"""How far real kernels stay from the datasheet: fitted forms, corrections and error bars."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace

from rooflinekit.model.timing.parameter import Duration, TimeForm
from rooflinekit.model.timing.surface import AXES, Surface
from rooflinekit.model.types.engine import ServedCosts
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, minimum, where

UNMEASURED = 2.0
"""Power of the interval's factor where another number format stands in: an assumption, as wide as another engine."""

WIDEST = 10.0
"""Largest factor of an interval either way. Powers of borrowed fits multiply to any size, which would say no more than
that the time is unknown: an assumption."""

BORROWED = "borrowed, interval widened: "
"""How the source of a fit starts that is not of the accelerator and engine that it serves."""

__all__ = ["BORROWED", "Beyond", "Calibration", "FamilyFit", "Regimes"]


@dataclass(frozen=True)
class Regimes:
    """90 % interval of measured / predicted by size: factor `width[i]` either way below `edges[i]` of the shape `axis`.

    Quantiles of |log(measured / predicted)| in shape groups that the fit had not seen (split conformal; Lei et al.
    2018, arXiv:1604.04173), one for each regime, because a pooled one covers the middle sizes badly.
    """

    axis: str
    edges: tuple[float, ...]
    width: tuple[float, ...]

    def factor(self, kernel: Kernel) -> Numeric:
        """Upper end over prediction, and prediction over lower end.

        >>> from rooflinekit.model.types.dtype import Dtype
        >>> from rooflinekit.model.types.kernel import GemmShape
        >>> wide = Kernel("w", "gemm", 1, Dtype.BF16, shape=GemmShape(128.0, 1.0, 1.0))
        >>> Regimes("m", (64.0,), (1.2, 1.1)).factor(wide)
        1.1
        """
        size = AXES[self.axis](kernel) if self.axis else 0.0
        factor: Numeric = self.width[-1]
        for edge, width in zip(reversed(self.edges), reversed(self.width[:-1]), strict=True):
            factor = where(size <= edge, width, factor)
        return factor


@dataclass(frozen=True)
class Beyond:
    """An engine runs another kernel where the shape `axis` is at least `start`: that kernel's own fit."""

    axis: str
    start: float
    fit: FamilyFit


@dataclass(frozen=True)
class FamilyFit:
    """The time of one kernel family in one number format on one accelerator with one engine.

    spread: one standard error of each parameter, in SI; frozen: parameters that the data could not pin; error: mean
    |predicted / measured − 1| in shape groups that the fit had not seen.
    """

    form: TimeForm
    spread: Mapping[str, float]
    frozen: tuple[str, ...]
    surface: Surface | None
    regimes: Regimes
    rows: int
    error: float
    source: str

    beyond: Beyond | None = None

    def time(self, kernel: Kernel, system: System, warm: bool = False, corrected: bool = True) -> Duration:
        """Time of one launch [s]; `corrected` multiplies the total, not its parts, by the correction surface."""
        if self.beyond is None:
            return self._own(kernel, system, warm, corrected)
        size = AXES[self.beyond.axis](kernel)
        if isinstance(size, (int, float)):
            fit = self.beyond.fit if size >= self.beyond.start else self
            return fit._own(kernel, system, warm, corrected)
        near = self._own(kernel, system, warm, corrected)
        far = self.beyond.fit._own(kernel, system, warm, corrected)
        chosen = {part.name: where(size >= self.beyond.start, getattr(far, part.name), getattr(near, part.name))
                  for part in fields(Duration)}  # fmt: skip
        return Duration(**chosen)

    def _own(self, kernel: Kernel, system: System, warm: bool, corrected: bool) -> Duration:
        form = self.form.time(kernel, system, warm)
        if self.surface is None or not corrected:
            return form
        return replace(form, total=form.total * self.surface.ratio(kernel))


@dataclass(frozen=True)
class Calibration:
    """Fits for every kernel family, and where they came from."""

    name: str
    hash: str
    accelerator: str
    engine: str
    families: Mapping[str, FamilyFit]  #: by "family/dtype/variant", and by "family" for all others
    source: str
    date: str = ""
    defaults: Collection[str] = ()  #: families whose entry without a number format is that of another
    widening: Mapping[str, float] = field(default_factory=dict)
    """Power of the interval's factor by family, where the calibration stands in for another accelerator or engine."""

    served: ServedCosts | None = None
    """What benchmark files of one deployment added: the engine's costs there."""

    untuned: Mapping[str, str] = field(default_factory=dict)
    """Fits by "family/dtype" that another format's stand in for, because the measured kernels ran without tuning."""

    def factor(self, kernel: Kernel, fit: FamilyFit) -> Numeric:
        """Upper end of the 90 % interval over the prediction, and the prediction over its lower end."""
        factor, power = fit.regimes.factor(kernel), self.widening.get(kernel.family, 1.0)
        if not self.measured(kernel):
            power *= UNMEASURED
        return minimum(factor if power == 1.0 else factor**power, WIDEST)

    def measured(self, kernel: Kernel) -> bool:
        """Whether the kernel has a fit of its own, and not that of another number format."""
        return self._own(kernel) is not None and f"{kernel.family}/{kernel.dtype.value}" not in self.untuned

    def fit(self, kernel: Kernel) -> FamilyFit:
        """The fit for this kernel: its own, or the nearest of its family."""
        return self._own(kernel) or self._other(kernel)

    def _own(self, kernel: Kernel) -> FamilyFit | None:
        key = f"{kernel.family}/{kernel.dtype.value}"
        found = self.families.get(f"{key}/{kernel.variant}") or self.families.get(key)
        plain = None if kernel.family in self.defaults else self.families[kernel.family]
        return found or plain

    def _other(self, kernel: Kernel) -> FamilyFit:
        same = f"{kernel.family}/bf16/{kernel.variant}"
        return self.families.get(same) or self.families[kernel.family]

"""Fits of real kernels: fitted forms, corrections and error bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, cached_property, partial
from itertools import pairwise, product
from operator import attrgetter

from rooflinekit.model.graph.symbol import UNKNOWN, Symbol, named
from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.timing.forms import Duration, PlainTime, TimeForm, parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import ServedCosts
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import (
    ASSUMED,
    LORA,
    AttentionShape,
    CollectiveShape,
    ExpertsShape,
    GemmShape,
    Kernel,
    S,
    SteplessGemmShape,
)
from rooflinekit.model.types.numeric import Numeric, ceil, choose, fails, lattice, log2, maximum

FADE = 4.0
"""Doublings beyond the outermost node with data over which a correction fades to none."""


@dataclass(frozen=True)
class Axis:
    """One shape that a correction depends on: positions of the nodes in doublings, the first and last with ratio 1."""

    name: str
    nodes: tuple[float, ...]

    @classmethod
    def around(cls, name: str, inner: tuple[float, ...]) -> Axis:
        """The nodes with data, with one more on either side where the correction has faded.

        Nothing is added below a shape's least value: there is no batch below 1.

        >>> Axis.around("k", (8.0, 10.0)).nodes, Axis.around("batch", (0.0, 2.0)).nodes
        ((4.0, 8.0, 10.0, 14.0), (0.0, 2.0, 6.0))
        """
        below = () if inner[0] <= 0.0 else (inner[0] - FADE,)
        return cls(name, (*below, *inner, inner[-1] + FADE))

    @property
    def inner(self) -> tuple[float, ...]:
        """The nodes where the correction has not faded."""
        return self.nodes[0 if self.open_low else 1 : -1]

    @property
    def open_low(self) -> bool:
        """True if the first node holds data, because the shape has no smaller value (a batch of 1 = 2^0)."""
        return self.nodes[0] == 0.0


def _of(kind: type[S], size: Callable[[S], Numeric]) -> Callable[[Kernel], Numeric]:
    return lambda kernel: size(kernel.shaped(kind))


_NAMED = {
    GemmShape: "n k",
    AttentionShape: "head_dim heads batch keys cached",
    ExpertsShape: "hidden width local ranks matrices tokens",
}
AXES: Mapping[str, Callable[[Kernel], Numeric]] = {
    **{name: _of(kind, attrgetter(name)) for kind, names in _NAMED.items() for name in names.split()},
    "m": _of(GemmShape, lambda shape: shape.tiled_rows),
    "group": _of(AttentionShape, lambda shape: shape.heads / shape.kv_heads),
    "batch_kv_heads": _of(AttentionShape, lambda shape: shape.batch * shape.kv_heads),
    "batch_heads": _of(AttentionShape, lambda shape: shape.batch * shape.heads),
    "length": _of(AttentionShape, lambda shape: shape.causal_length),
    "queries": _of(AttentionShape, lambda shape: shape.rows),
    "bytes": _of(CollectiveShape, lambda shape: shape.payload),
    "gpus": lambda kernel: float(kernel.gpus),
    "traffic": lambda kernel: kernel.bytes,
    "network": lambda kernel: kernel.network_bytes,
}
"""Shapes that a correction may depend on, from the kernel."""

_FIXED = frozenset({"n", "k", "head_dim", "group", "heads", "hidden", "width", "local", "ranks", "matrices", "gpus"})
"""Shapes that the model and its deployment fix, whatever the step: a correction at these is worked out once."""


@dataclass(frozen=True)
class Surface:
    """log(measured / formula) at the nodes of a grid, in whole percent: a correction on top of a time form.

    Engines dispatch to different kernels; no formula knows where. The nodes are coarse, spread evenly on a logarithmic
    scale in between, and the correction fades to 1 beyond the outermost ones, where nothing was measured.

    `percent` is the text of a file: one line for every combination of the leading axes, one number for every node of
    the last; nodes where the correction has faded are left out. It is read when it is first needed.
    """

    axes: tuple[Axis, ...]
    percent: str

    def ratio(self, kernel: Kernel) -> Numeric:
        """Factor on the formula's time.

        >>> from rooflinekit.model.types.dtype import Dtype
        >>> surface, shape = Surface((Axis("k", (0.0, 2.0, 4.0)),), "20 10"), GemmShape(1.0, 1.0, 2.0)
        >>> surface.ratio(Kernel("a", "gemm", 1, Dtype.BF16, shape=shape))  # (e^0.2 + e^0.1) / 2
        1.163
        """
        known: list[float | None] = []
        places: list[Numeric] = []
        for axis in self.axes:
            place = log2(AXES[axis.name](kernel))
            if isinstance(place, float) and axis.name in _FIXED:
                known.append(place)
            else:
                known.append(None)
                places.append(place)
        return lattice(self.table if len(places) == len(known) else self.table.sliced(tuple(known)), places)

    @cached_property
    def table(self) -> NodeTable:
        """Ratios at all nodes."""
        return NodeTable(tuple(axis.nodes for axis in self.axes), self.values)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """Ratios at all nodes, the last axis fastest."""
        factors = [math.exp(int(word) / 100.0) for word in self.percent.split()]
        first, shape = [0 if axis.open_low else 1 for axis in self.axes], [len(axis.nodes) for axis in self.axes]
        inner = [range(low, size - 1) for low, size in zip(first, shape, strict=True)]
        width, ratios = len(inner[-1]), [1.0] * math.prod(shape)
        for row, place in enumerate(product(*inner[:-1])):
            start = 0
            for index, size in zip((*place, first[-1]), shape, strict=True):
                start = start * size + index
            ratios[start : start + width] = factors[row * width : (row + 1) * width]
        return tuple(ratios)


UNMEASURED = 2.0
"""Power of the interval's factor where another number format stands in: an assumption, as wide as another engine."""

WIDEST = 10.0
"""Largest factor of an interval either way. Powers of borrowed fits multiply to any size, which would say no more than
that the time is unknown: an assumption."""

BORROWED = "borrowed, interval widened: "
"""Beginning of the source of a fit that is not of the accelerator and engine that it serves."""


_STREAMED = (6.0, 0.0), (9.0, 0.15), (math.inf, 0.6)
"""Doublings of the rows up to which the time of a matrix product grows at the least with this power of them: it streams
its weights up to some hundred rows, and takes the same time for all of them. An assumption for the ends alone."""


@dataclass(frozen=True)
class Regimes:
    """90 % interval of measured / predicted by size: factor `width[i]` either way in the middle of a regime of `axis`.

    Quantiles of |log(measured / predicted)| in shape groups that the fit had not seen (split conformal; Lei et al.
    2018, arXiv:1604.04173), one for each regime, because a pooled one covers the middle sizes badly. `edges` are where
    regimes end. Between their middles the factor is interpolated over the logarithm of the size, so that an end has no
    step; where the time does not grow with the size, no end may fall with it.
    """

    axis: str
    edges: tuple[float, ...]
    width: tuple[float, ...]

    def factors(self, kernel: Kernel, power: float = 1.0, wider: float = 1.0) -> tuple[Numeric, Numeric]:
        """Upper end over prediction, and prediction over lower end; a power, and then a factor, widen both.

        >>> from rooflinekit.model.types.dtype import Dtype
        >>> regimes = Regimes("traffic", (2.0**17, 2.0**23), (1.4, 1.2, 1.1))
        >>> kernels = [Kernel("w", "elementwise", 1, Dtype.BF16, activation_bytes=2.0**power) for power in (10, 17, 20)]
        >>> [regimes.factors(kernel)[0] for kernel in kernels]  # small, at the first edge, in the middle
        [1.4, 1.3, 1.2]
        """
        if not self.edges:
            factor = min(self.width[0] ** power * wider, WIDEST)
            return factor, factor
        size = kernel.shaped(GemmShape).m if self.axis == "m" else AXES[self.axis](kernel)
        upper, lower = self._tables.get((power, wider)) or self._tables.setdefault(
            (power, wider), _ends(self, power, wider)
        )
        place = [log2(maximum(size, 1.0))]
        above = lattice(upper, place)
        return above, above if lower is upper else lattice(lower, place)

    @cached_property
    def _tables(self) -> dict[tuple[float, float], tuple[NodeTable, NodeTable]]:
        return {}


def _ends(regimes: Regimes, power: float, wider: float) -> tuple[NodeTable, NodeTable]:
    """The factors of upper and of lower ends at the middles of the regimes."""
    ends = [math.log2(edge) for edge in regimes.edges]
    steps = [later - end for end, later in pairwise(ends)] or [_ALONE]
    bounds = [ends[0] - steps[0], *ends, ends[-1] + steps[-1]]
    middles = tuple((low + high) / 2.0 for low, high in pairwise(bounds))
    width = [min(each**power * wider, WIDEST) for each in regimes.width]
    if regimes.axis != "m":
        table = NodeTable((middles,), tuple(width))
        return table, table
    upper, lower = list(width), list(width)
    powers = [next(grows for end, grows in _STREAMED if middle <= end) for middle in middles[1:]]
    grown = [2.0 ** (grows * (high - low)) for grows, (low, high) in zip(powers, pairwise(middles), strict=True)]
    for place, growth in enumerate(grown):
        upper[place + 1] = max(width[place + 1], upper[place] / growth)
    for place, growth in reversed(list(enumerate(grown))):
        lower[place] = max(width[place], lower[place + 1] / growth)
    return NodeTable((middles,), tuple(upper)), NodeTable((middles,), tuple(lower))


_ALONE = 3.0  # doublings on either side of a single edge


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
    stepless: bool = False  #: whether the steps of tiles are smoothed, because they were not measured here

    def elsewhere(self, corrected: bool) -> FamilyFit:
        """The fit on another accelerator: without steps that nobody measured there.

        Corrections hold within an architecture and not beyond. That an engine changes its kernel at the same shapes
        elsewhere is an assumption: without it the fit of one kernel would stand in for all of them.
        """
        other = self.beyond and replace(self.beyond, fit=self.beyond.fit.elsewhere(corrected))
        return replace(self, stepless=True, surface=self.surface if corrected else None, beyond=other)

    def sustaining(self, share: float) -> FamilyFit:
        """The fit where arithmetic reaches so many times the share of the peak, up to the whole peak."""
        other = self.beyond and replace(self.beyond, fit=self.beyond.fit.sustaining(share))
        if "compute" not in parameters(self.form):
            return self
        own: float = self.form.compute  # type: ignore[attr-defined]
        form = replace(self.form, compute=min(own * share, max(own, 1.0)))
        return replace(self, form=form, beyond=other)

    def among(self, share: float) -> FamilyFit:
        """The fit on cores of another kind, `share` times as many: a tile takes all of them as long as before.

        A core of a TPU is no multiprocessor: attention took 30 times its bound by a GPU's cost of a tile on one core.
        """
        bound = parameters(self.form).get("tile")
        if bound is None or bound.unit != "us":
            return self
        other = self.beyond and replace(self.beyond, fit=self.beyond.fit.among(share))
        form = replace(self.form, tile=share * self.form.tile)  # type: ignore[attr-defined]
        return replace(self, form=form, beyond=other)

    def wider(self, factor: float) -> FamilyFit:
        """The fit with intervals wider by a factor, and a source that says so."""
        regimes = replace(self.regimes, width=tuple(width * factor for width in self.regimes.width))
        return replace(self, regimes=regimes, source=f"{BORROWED}{self.source}")

    def time(self, kernel: Kernel, system: System, warm: bool = False, corrected: bool = True) -> Duration:
        """Time of one launch [s]; `corrected` multiplies the total, not its parts, by the correction surface."""
        if self.beyond is None:
            return self._own(kernel, system, warm, corrected)
        near, far = (partial(time, kernel, system, warm, corrected) for time in (self._own, self.beyond.fit.time))
        return choose(AXES[self.beyond.axis](kernel) >= self.beyond.start, far, near)

    def _own(self, kernel: Kernel, system: System, warm: bool, corrected: bool) -> Duration:
        if self.stepless:
            kernel = kernel.tiled(SteplessGemmShape)
        form = self.form.time(kernel, system, warm)
        total = named(form.total, "t", "time of one launch, by the formula of its family", "s")
        if self.surface is None or not corrected:
            return form if total is form.total else replace(form, total=total)
        ratio = self.surface.ratio(kernel)
        if isinstance(ratio, Symbol):
            places = ((axis.name, AXES[axis.name](kernel)) for axis in self.surface.axes)
            at = ", ".join(f"{name} {float(place):.5g}" if _known(place) else name for name, place in places)
            meaning = f"correction: measured over form at {at}; 1 where nothing was measured"
            ratio = named(ratio, "r", meaning, source=f"table over {self.source}")
        return replace(form, total=total * ratio)


class Fits(Mapping[str, FamilyFit]):
    """Fits by key, each made when it is first needed: a step needs ten of a hundred.

    >>> made = []
    >>> fits = Fits(dict.fromkeys(("gemm", "gemm/bf16"), cache(lambda: made.append("gemm/bf16"))))
    >>> "gemm" in fits, made
    (True, [])
    >>> fits["gemm"] is fits["gemm/bf16"], made  # keys of one maker have one fit
    (True, ['gemm/bf16'])
    """

    def __init__(self, makers: Mapping[str, Callable[[], FamilyFit]]) -> None:
        self.makers = makers

    @classmethod
    def of(cls, fits: Mapping[str, FamilyFit]) -> Fits:
        """Fits as they are; those of a dictionary are made already."""
        if isinstance(fits, Fits):
            return fits
        makers = {id(fit): partial(fits.__getitem__, key) for key, fit in fits.items()}
        return cls({key: makers[id(fit)] for key, fit in fits.items()})

    def changed(self, change: Callable[[FamilyFit], FamilyFit]) -> Fits:
        """All of them changed alike."""
        others = {maker: cache(lambda maker=maker: change(maker())) for maker in self.makers.values()}
        return Fits({key: others[maker] for key, maker in self.makers.items()})

    def __getitem__(self, key: str) -> FamilyFit:
        return self.makers[key]()

    def __contains__(self, key: object) -> bool:
        return key in self.makers

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)

    def __or__(self, others: Mapping[str, FamilyFit]) -> Fits:
        return Fits({**self.makers, **Fits.of(others).makers})

    def __reduce__(self) -> tuple[type[dict[str, FamilyFit]], tuple[dict[str, FamilyFit]]]:
        return dict, (dict(self),)


def _known(place: Numeric) -> bool:
    return not isinstance(place, Symbol) or place.value is not UNKNOWN


def odd_heads(kernel: Kernel) -> bool:
    """True if latent attention has a number of heads that no table has.

    >>> shape = AttentionShape(*[1.0] * 5, heads=20.0, kv_heads=1.0, head_dim=576.0)
    >>> odd_heads(Kernel("attention", "mla_decode", 1, Dtype.BF16, shape=shape))
    True
    """
    if kernel.family not in ("mla_decode", "mla_prefill") or not isinstance(kernel.shape, AttentionShape):
        return False
    heads = kernel.shape.heads
    return fails(2.0 ** ceil(log2(heads)) == heads)


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
    """Factor on the interval by family, where it stands in for another accelerator or engine."""

    served: ServedCosts | None = None
    """Additions of one deployment's benchmark files: the engine's costs there."""

    power: tuple[float, float] | None = None
    """Factors of measured kernels on the accelerator's law of power: of running and of work."""

    untuned: Mapping[str, str] = field(default_factory=dict)
    """Fits by "family/dtype" that another format's stand in for, because the measured kernels ran without tuning."""

    intervals: bool = True  #: whether the ends of times are worked out; else they are what is expected

    @cached_property
    def without_intervals(self) -> Calibration:
        """The same for who asks for expected times alone."""
        return replace(self, intervals=False)

    def factors(self, kernel: Kernel, fit: FamilyFit) -> tuple[Numeric, Numeric]:
        """Upper end of the 90 % interval over the prediction, and the prediction over its lower end."""
        power = 1.0 if self.measured(kernel) else UNMEASURED
        return fit.regimes.factors(kernel, power, self.widening.get(kernel.family, 1.0))

    def measured(self, kernel: Kernel) -> bool:
        """True if the kernel has a fit of its own, and not that of another number format.

        Latent attention was measured with 1 to 128 heads, powers of two. Others run padded, or on another backend:
        GLM-4.7-Flash with its 20 took 2.3 times as long a token under SGLang 0.5.7 on B200.
        """
        return self._chosen(kernel)[1] and not odd_heads(kernel)

    def within_attention(self, key: str, engine: str) -> bool:
        """True if this engine's attention was measured with the write of the cache, which then has no launch."""
        family = key.partition("/")[0]
        if family != "kv_append" or self.engine.partition(" ")[0] != engine:
            return False
        fit = self.families.get(key, self.families[family])
        free = isinstance(fit.form, PlainTime) and fit.form.launch == 0.0
        return free and not fit.rows and not fit.source.startswith(BORROWED)

    def fit(self, kernel: Kernel) -> FamilyFit:
        """The fit for this kernel: its own, or the nearest of its family."""
        return self._chosen(kernel)[0]

    def _chosen(self, kernel: Kernel) -> tuple[FamilyFit, bool]:
        """The fit, and whether it is the kernel's own."""
        kind = kernel.family, kernel.dtype, kernel.variant
        if kind not in self._choices:
            label, plain = f"{kernel.family}/{kernel.dtype.value}", self.families[kernel.family]
            own = self.families.get(f"{label}/{kernel.variant}") or self.families.get(label)
            own = own or (None if kernel.family in self.defaults else plain)
            other = self.families.get(f"{kernel.family}/bf16/{kernel.variant}") or plain
            measured = own is not None and kernel.variant not in (LORA, ASSUMED) and label not in self.untuned
            if kernel.dequantised and kernel.family == "gemm":  # products of wide weights stand in
                measured = f"{label}/{kernel.variant}" in self.families
            self._choices[kind] = own or other, measured
        return self._choices[kind]

    @cached_property
    def _choices(self) -> dict[tuple[str, Dtype, str], tuple[FamilyFit, bool]]:
        return {}

    def nearest_label(self, family: str, dtype: str, label: str) -> str:
        """The longest beginning of a variant, by words, that has a fit; the variant itself where none has."""
        words = label.split("_")
        shorter = ("_".join(words[:count]) for count in range(len(words), 0, -1))
        return next((each for each in shorter if f"{family}/{dtype}/{each}" in self.families), label)

"""Questions beside an estimate: parameters, cache size, longest context, and the time of one engine step."""

from __future__ import annotations

from functools import cached_property, lru_cache
from os import PathLike
from typing import TYPE_CHECKING

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.load.table import StepTable, build_table
from rooflinekit.model.cache import model_cache_law
from rooflinekit.model.parameter_count import ParameterCount, count_parameters
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.types.batch import Batch, Sequences, whole_number
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.late import np
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs import load_model

if TYPE_CHECKING:
    from rooflinekit.model.types.numeric import Numeric


STEP_INTERFACE = 1
"""Version of `predict_step` and `StepTable.__call__`: it changes when a call that worked means something else."""

_SIZE = _MOST, _LONGEST = 512, 131_072  # sequences and tokens in the table; larger batches are worked out


def step_table(
    model: str | PathLike[str],
    gpu: str | PathLike[str] = "h100-sxm",
    deployment: Deployment | None = None,
    calibration: str | None = None,
    size: tuple[int, int] = _SIZE,
) -> StepTable:
    """Tabulate the steps of a deployment, for simulators: a call of the result takes a microsecond or two.

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        deployment: the split, formats and engine.
        calibration: a name, a path, or "none" for the datasheet bound; by default as `estimate` chooses.
        size: most sequences that decode in one step, and longest context or prompt [tokens].

    Raises:
        InputError: (and its kinds) as `estimate` does.

    >>> table = step_table("llama-3-8b", "h100-sxm", size=(64, 8192))
    >>> 0.007 < table(32, 2048) < 0.012  # seconds of a decode step: 32 sequences at 2,048 keys
    True
    """
    return _deployed(str(model), str(gpu), deployment or Deployment(), calibration, size)[1]


class PredictedStep:
    """Time of one engine step [s]: `time` at once, the rest of a `StepTime` on demand."""

    def __init__(self, resolved: Resolved, batch: Batch, table: StepTable) -> None:
        self._resolved, self._batch, self._table = resolved, batch, table

    @cached_property
    def time(self) -> Numeric:
        """Expected time [s]; from the table where the batch is plain numbers within it."""
        quick = _quick(self._batch, self._table)
        return self.exact.expected if quick is None else quick

    @cached_property
    def exact(self) -> StepTime:
        """The step worked out kernel by kernel."""
        return self._resolved.plan.time(self._batch)

    @property
    def bound(self) -> Numeric:
        """Datasheet bound [s]."""
        return self.exact.bound

    @property
    def low(self) -> Numeric:
        """Lower end of the 90 % interval [s]."""
        return self.exact.low

    @property
    def high(self) -> Numeric:
        """Upper end of the 90 % interval [s]."""
        return self.exact.high

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        """Every kernel with its time."""
        return self.exact.kernels


def predict_step(
    model: str | PathLike[str],
    gpu: str | PathLike[str],
    deployment: Deployment,
    batch: Batch,
    *,
    calibration: str | None = None,
) -> PredictedStep:
    """Time of one engine step by names, for simulators of others: version 1 of a stable interface.

    Model, accelerator and calibration are read once a process and deployment. `time` comes from the step table of the
    deployment, which is built once, so that a call costs tens of microseconds; who needs one or two takes the table
    itself (`step_table`).

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        deployment: the split, formats and engine.
        batch: the sequences of one attention replica.
        calibration: a name, a path, or "none" for the datasheet bound; by default as `estimate` chooses.

    Returns:
        A step: `time`, `bound`, `low`, `high` [s] and the kernels.

    Raises:
        InputError: (and its kinds) as `estimate` does, and for a batch without sequences or with a number out of range.

    >>> step = predict_step("llama-3-8b", "h100-sxm", Deployment(), Batch.decode(32.0, 2048.0))
    >>> 0.007 < step.bound < step.time < 0.012
    True
    """
    if not isinstance(model, (str, PathLike)) or not isinstance(gpu, (str, PathLike)):
        resolve(model, gpu, deployment, calibration)  # says what is wrong
    resolved, table = _deployed(str(model), str(gpu), deployment, calibration, _SIZE)
    return PredictedStep(resolved, checked(batch), table)


_ABOVE_ZERO = 1e-9
_HIGHEST = 1e9  # no step has more sequences or tokens
_WITHIN = {
    "count": (_ABOVE_ZERO, _HIGHEST),
    "new": (_ABOVE_ZERO, _HIGHEST),
    "past": (0.0, _HIGHEST),
    "sampled": (0.0, _HIGHEST),
    "span": (1.0, _HIGHEST),
}
_BESIDES = {"filled": (_ABOVE_ZERO, 1.0), "varying": (0.0, _HIGHEST), "padding": (0.0, _HIGHEST)}


def checked(batch: Batch) -> Batch:
    """A batch whose numbers an engine step can have, scalars or arrays.

    >>> checked(Batch.decode(1.0, 0.0))
    Traceback (most recent call last):
        ...
    rooflinekit.model.types.errors.WorkloadError: batch: past is -1.0, not from 0 to 1e+09
    """
    if not isinstance(batch, Batch):
        raise WorkloadError(f"batch is {type(batch).__name__}, not a Batch; make one with Batch.decode(32, 2048)")
    if not batch.phases:
        raise WorkloadError("batch: has no sequences; make one with Batch.decode(32, 2048)")
    for part, limits in (*((phase, _WITHIN) for phase in batch.phases), (batch, _BESIDES)):
        for name, (low, high) in limits.items():
            value = getattr(part, name)
            if not (low <= value <= high if isinstance(value, (int, float)) else _all_within(value, low, high)):
                shown = "above 0" if low == _ABOVE_ZERO else f"from {low:g}"
                raise WorkloadError(f"batch: {name} is {str(value)[:40]}, not {shown} to {high:g}")
    return batch


def _all_within(value: object, low: float, high: float) -> bool:
    """True if an array holds numbers from `low` to `high`, and some."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "iuf" or not value.size:
        return False
    each = np.asarray(value, float)
    return bool(np.all((each >= low) & (each <= high)))


@lru_cache(maxsize=32)
def _deployed(
    model: str, gpu: str, deployment: Deployment, calibration: str | None, size: tuple[int, int]
) -> tuple[Resolved, StepTable]:
    resolved = resolve(model, gpu, deployment, calibration)
    return resolved, build_table(resolved.plan, *size)


def _quick(batch: Batch, table: StepTable) -> float | None:
    """From the table: whole numbers of sequences with one new token each, and at most one chunk."""
    decoding, chunk = batch.decoding, batch.prefilling
    count = context = new = past = firsts = 0
    if not isinstance(batch.filled, (int, float)) or batch.filled != 1.0:
        return None
    if decoding is not None:
        if not _plain(decoding) or decoding.new != 1 or decoding.sampled != 1 or not decoding.count <= _MOST:
            return None
        count, context = int(decoding.count), int(decoding.past)
    if chunk is not None:
        if not _plain(chunk) or chunk.count != 1 or chunk.sampled not in (0, 1):
            return None
        new, past, firsts = int(chunk.new), int(chunk.past), int(chunk.sampled)
    if max(context, new, past) >= _LONGEST:
        return None
    every = table.replicas  # all attention replicas hold the same
    return table.step(every * count, every * count * context, ((new, past),) * every if new else (), every * firsts)


def _plain(phase: Sequences) -> bool:
    numbers = (phase.count, phase.new, phase.past, phase.sampled, phase.span)
    if phase.ragged or not all(isinstance(number, (int, float)) for number in numbers):
        return False
    return phase.span == 1.0 and all(float(number).is_integer() for number in numbers)


def parameters(model: str | PathLike[str]) -> ParameterCount:
    """Weights of a model by module, and active ones by three conventions.

    Raises UnknownNameError, SpecError or ArchitectureError as `load_model` does.

    >>> parameters("llama-3-70b").total
    70553706496
    """
    return count_parameters(load_model(model).value)


def kv_cache_bytes(
    model: str | PathLike[str], context: int, dtype: str | Dtype | None = None, *, tp: int = 1, block: int = 1
) -> float:
    """Cache of one sequence at `context` tokens, on all `tp` accelerators together [B].

    Replicas count: KV heads are copied once tp exceeds them, and MLA's latent on every rank. Windows stop growing,
    recurrent layers add their fixed state. `block` rounds the context up to whole pages.

    Raises WorkloadError for a context, tp or block below 1, DtypeError for an unknown format.

    >>> kv_cache_bytes("llama-2-7b", 4096) / 1e9
    2.147
    >>> kv_cache_bytes("deepseek-v3", 1)
    70272.0
    """
    kv = None if dtype is None else parse_dtype(dtype)
    ranks = whole_number(tp, "tp")
    law = model_cache_law(load_model(model).value, kv, ranks, whole_number(block, "block"))
    return float(law.bytes(float(whole_number(context, "context")))) * ranks


def max_context(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", batch: int = 1, **deployment: object
) -> int | None:
    """Longest context at which `batch` sequences fit [tokens], at most the model's own maximum; None if unlimited.

    Raises what `estimate` raises for names and deployments.

    >>> max_context("llama-3-8b", "h100-sxm", batch=64) < max_context("llama-3-8b", "h100-sxm")
    True
    """
    predictor = resolve(model, gpu, read_deployment(deployment), "none").predictor
    longest = predictor.memory.evaluate(float(whole_number(batch, "batch")), 1.0, 1.0).max_context
    return None if longest == float("inf") else int(longest)

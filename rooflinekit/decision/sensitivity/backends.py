"""Measured kernels that would serve a deployment best: attention, experts, matrix products, collectives.

Every calibration of the same accelerator holds the kernels that another engine runs, and of some engines a kernel that
was measured and is not served. Each is timed on the shapes of this deployment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.timing.calibrated import BORROWED, FamilyFit
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.calibration.choose import for_serving
from rooflinekit.specs.calibration.evidence import measured_here
from rooflinekit.specs.calibration.load import calibration_names, kernel_entry, load_calibration

_ROLES = {
    "gemm": "matrix products", "moe": "experts", "attention_prefill": "prompt attention",
    "attention_decode": "decode attention", "mla_prefill": "latent prefill", "mla_decode": "latent decode",
    "collective": "collectives",
}  # fmt: skip
_STAND_IN = "its own, which nobody measured here"
_LEAST = 0.03  # share of a step: what takes less is not worth a choice

#: What chooses a kernel, by engine and family: vLLM 0.24 (config/attention.py, kernel.py), SGLang 0.5.14
#: (server_args.py), TensorRT-LLM 1.3 (llmapi/llm_args.py); an engine need not have the other's kernel.
_CHOOSERS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "attention_prefill": "--attention-backend", "attention_decode": "--attention-backend",
        "mla_decode": "--attention-backend", "mla_prefill": "--attention-config.mla_prefill_backend",
        "moe": "--moe-backend", "gemm": "--linear-backend",
    },
    "sglang": {
        "attention_prefill": "--prefill-attention-backend", "attention_decode": "--decode-attention-backend",
        "mla_prefill": "--prefill-attention-backend", "mla_decode": "--decode-attention-backend",
        "moe": "--moe-runner-backend", "gemm": "--fp8-gemm-backend",
    },
    "trtllm": {"attention_prefill": "attn_backend", "attention_decode": "attn_backend", "moe": "moe_config.backend"},
}  # fmt: skip


@dataclass(frozen=True)
class Backend:
    """A measured kernel for one role: whose, what it is called, and its time over that of the present one.

    key: of the calibration; faster: whether the 90 % intervals of both times are apart; served: whether its engine
    picks it; flag: what chooses kernels of that role under the present engine, "" where nothing does.
    """

    role: str
    key: str
    engine: str
    kernel: str
    present: str
    fit: FamilyFit
    ratio: float
    faster: bool
    served: bool
    flag: str
    slow: str  #: why the present one is known to be slow; "" where nobody says

    @property
    def name(self) -> str:
        """Name of its move."""
        return f"{self.engine}'s {self.role}" if self.served else f"other {self.role}"

    def __str__(self) -> str:
        """The backend beside the present one, in words."""
        why = f" ({self.slow})" if self.slow else ""
        how = f"; chosen by {self.flag}, where the engine has it" if self.flag else ""
        pick = "" if self.served else ", which the engine does not pick"
        return f"{self.name}: {self.kernel}{pick}, at {self.ratio:.2g} of the time of {self.present}{why}{how}"


def backends(predictor: Predictor, work: Workload) -> tuple[list[Backend], list[str]]:
    """Kernels that are clearly faster than the present ones, and those of the present engine that it does not pick.

    And the roles for which no measured kernel of another engine is clearly faster.
    """
    plan, found, best = predictor.plan, list[Backend](), dict[str, None]()
    chip, engine, calibration = plan.system.accelerator.name, plan.deployment.engine, plan.calibration
    if calibration is None or calibration.widening or calibration.accelerator != chip:
        return [], []
    for kernels in _worth(predictor, work):
        first = kernels[0]
        family, key = first.family, f"{first.family}/{first.dtype.value}/{first.variant}"
        own = calibration.fit(first)
        now, near, _ = _time(kernels, own, predictor)
        present = _STAND_IN if own.source.startswith(BORROWED) else _named(engine, chip, key)
        others = list(_others(chip, engine, first, own))
        for other, fit, served in others:
            time, _, far = _time(kernels, fit, predictor)
            better = far < near
            if better or (other == engine and not served):
                flag = _CHOOSERS.get(engine, {}).get(family, "")
                named = _named(other, chip, key)
                slow = str((kernel_entry(engine, chip, key) or {}).get("slow", "")) if present is not _STAND_IN else ""
                found.append(Backend(
                    _ROLES[family], key, other, named, present, fit, time / now, better, served, flag, slow,
                ))  # fmt: skip
        if others and not any(each.faster and each.key == key for each in found):
            best.setdefault(_ROLES[family])
    return found, [role for role in best if not any(each.faster and each.role == role for each in found)]


def _worth(predictor: Predictor, work: Workload) -> Iterator[Sequence[Kernel]]:
    """Kernels of one kind, of a prompt or of a decode step, where they take their share of its time."""
    plan, context = predictor.plan, float(work.decode_context)
    for batch in (Batch.prefill(1.0, float(work.isl), float(work.cached)), predictor.decode_batch(work, context)):
        kinds: dict[tuple[str, ...], list[Kernel]] = {}
        for kernel in plan.kernels(batch):
            if kernel.family in _ROLES:
                kinds.setdefault((kernel.family, kernel.dtype.value, kernel.variant), []).append(kernel)
        whole = float(plan.time(batch).expected)
        assert plan.calibration is not None
        for kernels in kinds.values():
            if _time(kernels, plan.calibration.fit(kernels[0]), predictor)[0] >= _LEAST * whole:
                yield kernels


def _others(chip: str, engine: str, kernel: Kernel, own: FamilyFit) -> Iterator[tuple[str, FamilyFit, bool]]:
    """Measured kernels of the same kind on this accelerator: whose, its fit, and whether that engine picks it."""
    for name in calibration_names():
        if name.partition("--")[0] != chip:
            continue
        whose, measured = name.partition("--")[2], load_calibration(name)
        served = for_serving(measured)
        if measured_here(measured, kernel):
            fit = measured.fit(kernel)
            picked = fit is served.fit(kernel)
            if fit is not own and (picked or whose == engine):
                yield whose, fit, picked


def _time(kernels: Sequence[Kernel], fit: FamilyFit, predictor: Predictor) -> tuple[float, float, float]:
    """Time of the kernels by one fit, and the ends of its 90 % interval [s]."""
    total = low = high = 0.0
    for kernel in kernels:
        each = kernel.count * float(fit.time(kernel, predictor.plan.system).total)
        above, below = fit.regimes.factors(kernel)
        total, low, high = total + each, low + each / float(below), high + each * float(above)
    return total, low, high


def _named(engine: str, chip: str, key: str) -> str:
    """Name of the kernel behind a fit."""
    entry: Mapping[str, Any] = kernel_entry(engine, chip, key) or {}
    return str(entry.get("kernel", f"{engine}'s own"))

"""Energy of a token: rated power over tokens a second, an upper limit whatever the load."""

from __future__ import annotations

from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.numeric import Numeric

__all__ = ["POWER_ASSUMPTION", "deployment_watts", "joules_per_token"]

POWER_ASSUMPTION = "power: rated power (TDP) of every accelerator at all times, an upper limit; hosts are not counted"


def deployment_watts(
    accelerator: Accelerator, gpus: Numeric, pue: Numeric = 1.0, cap_w: float | None = None
) -> Numeric:
    """Power of a deployment: accelerators · TDP · PUE [W]; a power cap takes the place of the TDP.

    Raises InputError where the accelerator's file has no rated power.

    >>> from rooflinekit.specs import load_accelerator
    >>> deployment_watts(load_accelerator("h100-sxm").value, 8, pue=1.25)  # 8 x 700 W x 1.25
    7000.0
    """
    if not accelerator.tdp_w:
        raise InputError(f"{accelerator.name} has no rated power (power.tdp) in its file")
    return gpus * (accelerator.tdp_w if cap_w is None else cap_w) * pue


def joules_per_token(watts: Numeric, seconds_per_token: Numeric) -> Numeric:
    """Energy of one token: power of the replica times the seconds of it that the token takes [J].

    >>> joules_per_token(7000.0, 0.001)
    7.0
    """
    return watts * seconds_per_token

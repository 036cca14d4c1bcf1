"""What a user says about costs, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from rooflinekit.decision.economics.dialogue import Dialogue
from rooflinekit.decision.economics.price import positive
from rooflinekit.estimation.estimator import estimate
from rooflinekit.estimation.lengths import Length, parse_length
from rooflinekit.estimation.options import options_of, part_of
from rooflinekit.estimation.scenario import WORKLOAD_KEYS, Layout
from rooflinekit.estimation.scenario import Cost as CostOptions
from rooflinekit.model.types.errors import DoesNotFitError, WorkloadError

__all__ = ["CostQuestion", "refuse_misfit"]

_LONG = 131_072


@dataclass(frozen=True)
class CostQuestion:
    """Lengths of requests, what runs at once, and the dialogues to price; counts in tokens."""

    isl: Length
    osl: Length
    cached: int
    concurrency: int | None
    utilisation: float
    pue: float
    conversation: Dialogue
    agent: Dialogue
    long_context: int
    long_given: bool
    reserve: int | None

    @property
    def prompt(self) -> float:
        """Mean prompt, in whole tokens."""
        return float(max(round(self.isl.mean), 1))

    @property
    def output(self) -> float:
        """Mean output, in whole tokens."""
        return float(max(round(self.osl.mean), 1))

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> CostQuestion:
        """Read keywords that `Cost` has checked; those of the deployment and of prices are left alone.

        Raises WorkloadError for numbers that make no sense together.
        """
        usual = {name: option.default for name, option in options_of(CostOptions).items()} | {"long_context": _LONG}
        said = usual | dict(given)
        isl, osl = (parse_length(str(said[key])) for key in ("isl", "osl"))
        answer, shared = max(round(osl.mean), 1), said["shared_prompt"]
        asked = cls(
            isl, osl, said["cached"], said["concurrency"],
            positive(said["utilisation"], "utilisation"),
            positive(1.0 if said["pue"] is None else said["pue"], "pue"),
            Dialogue(said["turns"], said["system_prompt"], said["question"], answer, shared),
            Dialogue(said["calls"], said["agent_prompt"], said["tool_result"], said["tool_call"], shared),
            said["long_context"], "long_context" in given, said["reserve"],
        )  # fmt: skip
        asked._check()
        return asked

    def _check(self) -> None:
        if self.utilisation > 1.0:
            raise WorkloadError(f"utilisation is a share of the time, above 0 and at most 1, not {self.utilisation:g}")
        if self.pue < 1.0:
            raise WorkloadError(
                f"pue is power of the building over power of the machines, at least 1, not {self.pue:g}"
            )
        if self.reserve is not None and self.reserve < self.prompt + self.output:
            raise WorkloadError(
                f"reserve={self.reserve} holds no mean request of {self.prompt + self.output:.0f} tokens"
            )
        if self.cached >= self.prompt:
            raise WorkloadError(f"cached={self.cached} leaves nothing of isl={self.prompt:.0f} to compute; use less")


def refuse_misfit(model: str | PathLike[str], gpu: str | PathLike[str], given: Mapping[str, Any], misfit: str) -> None:
    """Say what `estimate` says of such a batch, or else `misfit`. Raises DoesNotFitError."""
    asked = part_of(given, (*WORKLOAD_KEYS, *options_of(Layout)))
    try:
        estimate(model, gpu, **asked)
    except DoesNotFitError as error:
        raise DoesNotFitError(str(error).partition(" (--allow-oom")[0]) from None  # an option of estimate alone
    raise DoesNotFitError(misfit)

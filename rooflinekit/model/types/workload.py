"""Workload of a deployment at one operating point."""

from __future__ import annotations

from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, maximum


@dataclass(frozen=True)
class Workload:
    """A static batch: `batch` prompts of `isl` tokens (of which `cached` are in the cache), `osl` tokens out each.

    `context` fixes the context of the decode step; None takes the mean over the output. Fields are whole numbers, or
    arrays that broadcast; `Workload.checked` is the way in for numbers that a user typed.
    """

    batch: Numeric = 1.0
    isl: Numeric = 1024.0
    osl: Numeric = 256.0
    cached: Numeric = 0.0
    context: Numeric | None = None

    @classmethod
    def checked(cls, batch: object, isl: object, osl: object, cached: object = 0, context: object = None) -> Workload:
        """Read user input.

        >>> Workload.checked(32, 1024, 256).decode_context
        1152.0
        """
        work = cls(
            float(whole_number(batch, "batch")),
            float(whole_number(isl, "isl")),
            float(whole_number(osl, "osl")),
            float(whole_number(cached, "cached", 0)),
            None if context is None else float(whole_number(context, "context")),
        )
        if work.cached >= work.isl:
            raise WorkloadError(f"cached={cached} leaves nothing of isl={isl} to compute; use cached < isl")
        return work

    @property
    def decode_steps(self) -> Numeric:
        """Decode steps after the first token, at least one (with osl 1: the step that would follow)."""
        return maximum(self.osl - 1.0, 1.0)

    @property
    def decode_context(self) -> Numeric:
        """Keys of the reported decode step: the given context, or the mean over output tokens 2..n.

        Token i is computed from token i − 1 and sees isl + i − 1 keys, so the mean is isl + osl / 2.
        """
        return self.isl + (self.decode_steps + 1.0) / 2 if self.context is None else self.context

    @property
    def longest_context(self) -> Numeric:
        """Tokens of one sequence that must fit in the cache."""
        whole = self.isl + self.osl
        return whole if self.context is None else maximum(self.context, whole)

"""Every error a user can meet, as one tree.

::

    RooflinekitError
    ├── InputError                  exit code 2: one line says what, where, and the nearest valid input
    │   ├── UnknownNameError        a model, GPU, engine or calibration nobody knows
    │   ├── SpecError               a spec file or config.json that cannot be trusted
    │   ├── ArchitectureError       a model that is understood well enough to be refused
    │   ├── DtypeError              a number format that is unknown, or that the accelerator lacks
    │   ├── DeploymentError         a split over GPUs that does not exist
    │   ├── WorkloadError           a batch, length or context that makes no sense
    │   └── MissingExtraError       an optional dependency is not installed
    ├── DoesNotFitError             exit code 3: the deployment needs more memory than there is
    ├── InfeasibleError             exit code 3: no deployment that was tried does what is asked; how near one comes
    └── InterruptedRunError         exit code 130: stopped half-way; says what is kept and where
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_FEW = 8  # known names that are all listed when none is like the one given


class RooflinekitError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class InputError(RooflinekitError, ValueError):
    """The input cannot be answered; the message is one line."""

    exit_code = 2


class UnknownNameError(InputError):
    """No model, accelerator, engine or calibration has this name."""

    def __init__(self, kind: str, name: str, known: Iterable[str], more: str = "") -> None:
        everything = list(known)
        self.kind, self.name = kind, name
        self.suggestions = nearest(name, everything) or (everything if len(everything) <= _FEW else [])
        hint = f"; nearest: {', '.join(self.suggestions)}{more}" if self.suggestions else ""
        super().__init__(f"unknown {kind} {name!r}{hint}")


class SpecError(InputError):
    """A spec file holds something that cannot be trusted: names file, key and value."""


class ArchitectureError(InputError):
    """The model is not a decoder that this library can cost."""


class DtypeError(InputError):
    """Unknown number format, or one that the accelerator has no units for."""


class DeploymentError(InputError):
    """A parallel split that the model or the system does not allow."""


class WorkloadError(InputError):
    """A batch, prompt length, output length or context that makes no sense."""


class MissingExtraError(InputError):
    """An optional dependency is missing; the message is its install line."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'rooflinekit[{extra}]'")


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """While an optional dependency is imported: raises MissingExtraError where it is not installed."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(what, extra) from None


class DoesNotFitError(RooflinekitError):
    """The deployment needs more memory than the accelerators have."""

    exit_code = 3


class InfeasibleError(RooflinekitError):
    """No deployment that was tried does what is asked."""

    exit_code = 3


class InterruptedRunError(RooflinekitError):
    """A long run was stopped; what was finished is kept."""

    exit_code = 130


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most like `name`, best first.

    >>> nearest("h10-sxm", ["h100-sxm", "l4", "h100-pcie"])
    ['h100-sxm', 'h100-pcie']
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only a slip pays for it

    by_folded = {candidate.lower(): candidate for candidate in known}
    return [by_folded[hit] for hit in get_close_matches(name.lower(), by_folded, n=count, cutoff=0.45)]


_LISTED = 20  # names of a message at most


def nearest_of(name: str, known: Iterable[str]) -> str:
    """The known names most like `name`, as a message lists them; where none is like it all of them, or the first few.

    >>> nearest_of("h10-sxm", ["h100-sxm", "l4"]), nearest_of("x", ["h100-sxm", "l4"])
    ('h100-sxm', 'h100-sxm, l4')
    """
    names = list(known)
    listed = names if len(names) <= _LISTED else [*names[:_LISTED], f"{len(names) - _LISTED} more"]
    return ", ".join(nearest(name, names) or listed)

"""How a benchmark was run, as options: what its files leave out, for every command that reads such files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rooflinekit.cli.options import Count

if TYPE_CHECKING:
    from rooflinekit.evidence.benchmark_runs import Given

__all__ = [
    "Concurrency",
    "InputLength",
    "MaybeTensorParallel",
    "OutputLength",
    "OutputVariation",
    "Rate",
    "Replicas",
    "ServedBy",
    "ServedModel",
    "ServedOn",
    "given_of",
]

ServedModel: TypeAlias = Annotated[str | None, typer.Option(help="Model that was served (default: the file's).")]
ServedOn: TypeAlias = Annotated[str | None, typer.Option(help="Accelerator: a name, or a path to its file.")]
ServedBy: TypeAlias = Annotated[str | None, typer.Option(help="Engine (default: the file's, else vllm).")]
MaybeTensorParallel: TypeAlias = Annotated[int | None, Count("Tensor parallel degree.")]
Replicas: TypeAlias = Annotated[int, Count("Copies of the deployment that shared the load.")]
InputLength: TypeAlias = Annotated[int | None, Count("Mean prompt length in tokens.")]
OutputLength: TypeAlias = Annotated[int | None, Count("Mean output length in tokens.")]
OutputVariation: TypeAlias = Annotated[float | None, typer.Option(help="Deviation of output lengths over their mean.")]
Concurrency: TypeAlias = Annotated[int | None, Count("Requests that the client kept in flight.")]
Rate: TypeAlias = Annotated[float | None, typer.Option(help="Requests a second that the client offered.")]

_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "osl_cv")
_SPLIT = ("pp", "ep", "dp", "weights", "activations", "kv")


def given_of(said: dict[str, Any]) -> Given:
    """What the options of a command say; raises WorkloadError and InputError for what makes no sense."""
    from rooflinekit.evidence.benchmark_runs import Given, checked_facts
    from rooflinekit.model.types.batch import whole_number

    facts = checked_facts(**{name: said[name] for name in _FACTS})
    split = {name: said[name] for name in _SPLIT}
    return Given(facts, split, said["calibration"], whole_number(said["replicas"], "replicas"))

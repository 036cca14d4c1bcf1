"""`rooflinekit compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.output import emit, rendered
from rooflinekit.cli.progress import counting
from rooflinekit.estimation.options import options_of, part_of
from rooflinekit.estimation.scenario import Served, Written

if TYPE_CHECKING:
    from rooflinekit.evidence.benchmark_runs import Given

__all__ = ["compare", "given_of"]

_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "osl_cv")
_SPLIT = ("pp", "ep", "dp", "weights", "activations", "kv")


@command(
    Served, Written,
    arguments={"files": Argument("Results of benchmark clients, and vLLM start-up logs.", many=True)},
    examples=(
        "rooflinekit compare result.json --gpu h100",
        "rooflinekit compare run1.json run2.json --gpu h100 --tp 2 --format csv",
    ),
)  # fmt: skip
def compare(
    files: list[str], *, format: str = "table", out: Path | None = None, force: bool = False, **said: Any
) -> int:
    """Set measured benchmark files beside the prediction, and say what the gap is made of."""
    given = given_of(said)
    from rooflinekit.evidence.compare import compare as compared
    from rooflinekit.report.compare import compare_rows, compare_text

    with counting("comparing", len(files)) as progress:
        found = compared([Path(file) for file in files], given, progress=progress)
    emit(rendered(found, format, lambda: compare_rows(found), compare_text), out, force)
    return 4 if found.failed else 0


def given_of(said: dict[str, Any]) -> Given:
    """What the options of a command say; raises WorkloadError and InputError for what makes no sense."""
    from rooflinekit.evidence.benchmark_runs import Given, checked_facts
    from rooflinekit.model.types.batch import whole_number

    known = {name: option.default for name, option in options_of(Served).items()} | said
    split = part_of(known, _SPLIT)
    return Given(
        checked_facts(**part_of(known, _FACTS)),
        split,
        known["calibration"],
        whole_number(known["replicas"], "replicas"),
    )

"""`rooflinekit compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.options import Count
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.cli.progress import counting

if TYPE_CHECKING:
    from rooflinekit.compare import Comparison

__all__ = ["compare"]


def compare(
    files: Annotated[list[Path], typer.Argument(help="Results of benchmark clients, and vLLM start-up logs.")],
    model: Annotated[str | None, typer.Option(help="Model that was served (default: the file's).")] = None,
    gpu: Annotated[str | None, typer.Option(help="Accelerator: a name, or a path to its file.")] = None,
    tp: Annotated[int | None, Count("Tensor parallel degree.")] = None,
    pp: Annotated[int, Count("Pipeline parallel degree.")] = 1,
    ep: Annotated[int, Count("Expert parallel degree.")] = 1,
    dp: Annotated[int, Count("Attention data parallel degree.")] = 1,
    replicas: Annotated[int, Count("Copies of the deployment that shared the load.")] = 1,
    isl: Annotated[int | None, Count("Mean prompt length in tokens.")] = None,
    osl: Annotated[int | None, Count("Mean output length in tokens.")] = None,
    concurrency: Annotated[int | None, Count("Requests that the client kept in flight.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second that the client offered.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight format (default: the checkpoint's).")] = None,
    activations: Annotated[str | None, typer.Option(help="Activation format (default: the checkpoint's).")] = None,
    kv: Annotated[str | None, typer.Option(help="KV cache format (default: as activations).")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine (default: the file's, else vllm).")] = None,
    calibration: Annotated[str | None, typer.Option(help="A calibration, or 'none' for the datasheet bound.")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Set measured benchmark files beside the prediction, and say what the gap is made of."""
    from rooflinekit.compare import Given, checked_facts
    from rooflinekit.compare import compare as compared
    from rooflinekit.types.batch import whole_number

    facts = checked_facts(
        model=model, gpu=gpu, engine=engine, tp=tp, isl=isl, osl=osl, concurrency=concurrency, rate=rate
    )
    split = {"pp": pp, "ep": ep, "dp": dp, "weights": weights, "activations": activations, "kv": kv}
    with counting("comparing", len(files)) as progress:
        found = compared(files, Given(facts, split, calibration, whole_number(replicas, "replicas")), progress=progress)
    emit(_render(found, format), out, force)
    if found.failed:
        raise typer.Exit(4)


def _render(found: Comparison, format: Format) -> str:
    from rooflinekit.report.compare import compare_rows, compare_text

    if format is Format.json:
        return to_json(found.to_dict())
    if format is Format.csv:
        return to_csv(compare_rows(found))
    return compare_text(found, markdown_style=format is Format.md)

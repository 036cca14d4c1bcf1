"""`rooflinekit estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.options import Count
from rooflinekit.cli.output import Format, emit, to_csv, to_json

if TYPE_CHECKING:
    from rooflinekit.results import Estimate

__all__ = ["estimate"]


def estimate(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")] = "h100-sxm",
    batch: Annotated[int, Count("Sequences in the batch.")] = 1,
    isl: Annotated[int, Count("Prompt length in tokens.")] = 1024,
    osl: Annotated[int, Count("Output length in tokens.")] = 256,
    cached: Annotated[int, Count("Prompt tokens that are already in the cache.")] = 0,
    context: Annotated[int | None, Count("Decode at this context, not the mean over the output.")] = None,
    tp: Annotated[int, Count("Tensor parallel degree.")] = 1,
    pp: Annotated[int, Count("Pipeline parallel degree.")] = 1,
    ep: Annotated[int, Count("Expert parallel degree.")] = 1,
    dp: Annotated[int, Count("Attention data parallel degree.")] = 1,
    weights: Annotated[str | None, typer.Option(help="Weight format (default: the checkpoint's).")] = None,
    activations: Annotated[str | None, typer.Option(help="Activation format (default: the checkpoint's).")] = None,
    kv: Annotated[str | None, typer.Option(help="KV cache format (default: as activations).")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, gpt-fast or ideal.")] = "vllm",
    calibration: Annotated[str | None, typer.Option(help="A calibration, or 'none' for the datasheet bound.")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Answer even if it does not fit in memory.")] = False,
) -> None:
    """Predict TTFT, TPOT, throughput and memory of a static batch, kernel by kernel."""
    from rooflinekit.estimator import estimate as predict

    answer = predict(
        model, gpu, batch=batch, isl=isl, osl=osl, cached=cached, context=context, tp=tp, pp=pp, ep=ep, dp=dp,
        weights=weights, activations=activations, kv=kv, engine=engine, calibration=calibration, allow_oom=allow_oom,
    )  # fmt: skip
    emit(_render(answer, format), out, force)


def _render(answer: Estimate, format: Format) -> str:
    from rooflinekit.report.terminal import estimate_markdown, estimate_text

    match format:
        case Format.json:
            return to_json(answer.to_dict())
        case Format.csv:
            return to_csv([answer.to_row()])
        case Format.md:
            return estimate_markdown(answer)
        case _:
            return estimate_text(answer)

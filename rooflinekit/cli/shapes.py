"""`rooflinekit shapes`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.options import (
    Activations,
    AttentionWeights,
    Cache,
    Count,
    DataParallel,
    ExpertParallel,
    LmHead,
    PipelineParallel,
    System,
    TensorParallel,
    Weights,
)
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.explanation.walk.result import Walk

__all__ = ["shapes"]


def shapes(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    tokens: Annotated[str | None, typer.Option(help="Prompt length, or several to pack: 6,3,9.")] = None,
    prompt: Annotated[str | None, typer.Option(help="A text; its words and marks stand in for tokens.")] = None,
    batch: Annotated[int, Count("Prompts of that length, side by side.")] = 1,
    cached: Annotated[int, Count("Prompt tokens that are already in the cache.")] = 0,
    gpu: Annotated[str, typer.Option(help="Accelerator: which formats there are.")] = "h100-sxm",
    tp: TensorParallel = 1,
    pp: PipelineParallel = 1,
    ep: ExpertParallel = 1,
    dp: DataParallel = 1,
    system: System = None,
    weights: Weights = None,
    attention_weights: AttentionWeights = None,
    lm_head: LmHead = None,
    activations: Activations = None,
    kv: Cache = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file; one that ends in .html is a page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Walk every tensor of a prefill and a decode step through a model: shapes, FLOP and bytes of each step."""
    from rooflinekit.explanation.walk.front import shapes as walk_through

    page = out is not None and out.suffix.lower() == ".html"
    if page and format is not Format.table:
        raise InputError(f"{out} would be a page, and --format {format.value} is another format; leave one of them out")
    if out is not None:
        check_target(out, force)
    walk = walk_through(
        model, gpu, tokens=tokens, prompt=prompt, batch=batch, cached=cached, tp=tp, pp=pp, ep=ep, dp=dp, system=system,
        weights=weights, attention_weights=attention_weights, lm_head=lm_head, activations=activations, kv=kv,
    )  # fmt: skip
    emit(_page(walk) if page else _render(walk, format), out, force)


def _page(walk: Walk) -> str:
    from rooflinekit.report.walk_page import walk_page

    return walk_page(walk)


def _render(walk: Walk, format: Format) -> str:
    from rooflinekit.report.walk import walk_markdown, walk_text

    match format:
        case Format.json:
            return to_json(walk.to_dict())
        case Format.csv:
            return to_csv(walk.to_rows())
        case Format.md:
            return walk_markdown(walk)
        case _:
            return walk_text(walk)

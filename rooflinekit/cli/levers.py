"""`rooflinekit levers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.options import (
    Activations,
    AllReduce,
    AttentionWeights,
    Cache,
    CachePolicy,
    Calibration,
    ContextParallel,
    Count,
    DataParallel,
    Dispatch,
    Engine,
    ExpertParallel,
    LmHead,
    MemoryFraction,
    Microbatches,
    PipelineParallel,
    Plots,
    PowerCap,
    PowerPrice,
    Price,
    Pue,
    Purchase,
    RedundantExperts,
    SequenceParallel,
    Skew,
    System,
    TensorParallel,
    Weights,
    Years,
)
from rooflinekit.cli.output import Format, check_free, emit, to_csv, to_json
from rooflinekit.cli.pictures import check_pictures, write_pictures

if TYPE_CHECKING:
    from rooflinekit.sensitivity.results import Levers

__all__ = ["levers"]


def levers(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")] = "h100-sxm",
    batch: Annotated[int, Count("Sequences in the batch.")] = 1,
    concurrency: Annotated[int | None, Count("Users in a closed loop; excludes --batch.")] = None,
    isl: Annotated[int, Count("Prompt length in tokens.")] = 1024,
    osl: Annotated[int, Count("Output length in tokens.")] = 256,
    cached: Annotated[int, Count("Prompt tokens that are already in the cache.")] = 0,
    context: Annotated[int | None, Count("Decode at this context, not the mean over the output.")] = None,
    by: Annotated[str, typer.Option(help="Ranks the moves: cost, tpot, ttft or throughput.")] = "cost",
    price: Price = None,
    purchase: Purchase = None,
    years: Years = None,
    power_price: PowerPrice = None,
    pue: Pue = None,
    gpus: Annotated[str | None, typer.Option(help="Others to try: a,b=USD; default: those with a price.")] = None,
    models: Annotated[str | None, typer.Option(help="Other models to compare: a,b.")] = None,
    prefix: Annotated[float | None, typer.Option(help="Share of each prompt that a prefix cache would hold.")] = None,
    draft: Annotated[str | None, typer.Option(help="A draft to try: a model, medusa, eagle, mtp or ngram.")] = None,
    draft_tokens: Annotated[int | None, Count("Tokens drafted in a row.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Share of drafted tokens accepted; a,b,c by place.")] = None,
    tp: TensorParallel = 1,
    pp: PipelineParallel = 1,
    ep: ExpertParallel = 1,
    dp: DataParallel = 1,
    cp: ContextParallel = 1,
    microbatches: Microbatches = 1,
    sequence_parallel: SequenceParallel = False,
    all_reduce: AllReduce = "auto",
    system: System = None,
    dispatch: Dispatch = None,
    redundant_experts: RedundantExperts = 0,
    skew: Skew = 0.0,
    power_cap: PowerCap = None,
    weights: Weights = None,
    attention_weights: AttentionWeights = None,
    lm_head: LmHead = None,
    activations: Activations = None,
    kv: Cache = None,
    kv_policy: CachePolicy = "full",
    engine: Engine = "vllm",
    memory_fraction: MemoryFraction = None,
    token_budget: Annotated[int | None, Count("Tokens of one prefill step.")] = None,
    max_num_seqs: Annotated[int | None, Count("Sequences that the engine runs at once.")] = None,
    max_model_len: Annotated[int | None, Count("Longest sequence that the engine admits.")] = None,
    block_size: Annotated[int | None, Count("Tokens of one block of the cache.")] = None,
    eager: Annotated[bool, typer.Option("--eager", help="Without CUDA graphs.")] = False,
    calibration: Calibration = None,
    plots: Plots = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Say what would help a deployment most: elasticities, weights or cache, and moves ranked by gain."""
    from rooflinekit.sensitivity.front import levers as found_levers

    if out is not None:
        check_free(out, force)
    if plots is not None:
        check_pictures(plots, "levers", force)
    found = found_levers(
        model, gpu, batch=batch, concurrency=concurrency, isl=isl, osl=osl, cached=cached, context=context, by=by,
        price=price, purchase=purchase, years=years, power_price=power_price, pue=pue, gpus=gpus, models=models,
        prefix=prefix, draft=draft, draft_tokens=draft_tokens, acceptance=acceptance,
        tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, microbatches=microbatches, sequence_parallel=sequence_parallel,
        all_reduce=all_reduce, system=system, dispatch=dispatch, redundant_experts=redundant_experts, skew=skew,
        power_cap=power_cap, weights=weights, attention_weights=attention_weights, lm_head=lm_head,
        activations=activations, kv=kv, kv_policy=kv_policy, engine=engine, memory_fraction=memory_fraction,
        token_budget=token_budget, max_num_seqs=max_num_seqs, max_model_len=max_model_len, block_size=block_size,
        eager=eager, calibration=calibration,
    )  # fmt: skip
    if plots is not None:
        write_pictures(found, plots, force)
    emit(_render(found, format), out, force)


def _render(found: Levers, format: Format) -> str:
    from rooflinekit.report.levers import levers_text

    if format is Format.json:
        return to_json(found.to_dict())
    if format is Format.csv:
        return to_csv(found.to_rows())
    return levers_text(found, markdown_style=format is Format.md)

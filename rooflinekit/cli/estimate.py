"""`rooflinekit estimate`."""

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
    RedundantExperts,
    SequenceParallel,
    Skew,
    System,
    TensorParallel,
    Weights,
)
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.cli.pictures import check_pictures, write_pictures

if TYPE_CHECKING:
    from rooflinekit.estimation.results import Estimate

__all__ = ["estimate"]


def estimate(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")] = "h100-sxm",
    batch: Annotated[int, Count("Sequences in the batch.")] = 1,
    isl: Annotated[int, Count("Prompt length in tokens.")] = 1024,
    osl: Annotated[int, Count("Output length in tokens.")] = 256,
    cached: Annotated[int, Count("Prompt tokens that are already in the cache.")] = 0,
    context: Annotated[int | None, Count("Decode at this context, not the mean over the output.")] = None,
    concurrency: Annotated[int | None, Count("Users in a closed loop; excludes --batch.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second that arrive; excludes --batch.")] = None,
    requests: Annotated[int | None, Count("Requests in all that the users of a closed loop send.")] = None,
    burstiness: Annotated[float | None, typer.Option(help="Variation of the gaps between arrivals: 1 Poisson.")] = None,
    isl_cv: Annotated[float | None, typer.Option(help="Variation of prompt lengths: deviation over mean.")] = None,
    osl_cv: Annotated[float | None, typer.Option(help="Variation of output lengths.")] = None,
    ttft: Annotated[float | None, typer.Option(help="Objective under load, in ms.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Objective under load, in ms.")] = None,
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
    draft: Annotated[str | None, typer.Option(help="Draft: a model, medusa, eagle, eagle3, mtp or ngram.")] = None,
    draft_tokens: Annotated[int | None, Count("Tokens drafted in a row.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Share of drafted tokens accepted; a,b,c by place.")] = None,
    draft_tree: Annotated[int | None, Count("Drafted tokens verified at once, if more than in a row.")] = None,
    draft_tp: Annotated[int | None, Count("Tensor parallel degree of the draft model.")] = None,
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
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Answer even if it does not fit in memory.")] = False,
) -> None:
    """Predict TTFT, TPOT, throughput and memory of a static batch, or under load, kernel by kernel."""
    from rooflinekit.estimation.estimator import estimate as predict

    if plots is not None:
        check_pictures(plots, "estimate", force)
    answer = predict(
        model, gpu, batch=batch, isl=isl, osl=osl, cached=cached, context=context, concurrency=concurrency, rate=rate,
        requests=requests, burstiness=burstiness, isl_cv=isl_cv, osl_cv=osl_cv, ttft=ttft, tpot=tpot,
        tp=tp, pp=pp, ep=ep, dp=dp,
        cp=cp, microbatches=microbatches, sequence_parallel=sequence_parallel, all_reduce=all_reduce, system=system,
        dispatch=dispatch, redundant_experts=redundant_experts, skew=skew, power_cap=power_cap,
        weights=weights, attention_weights=attention_weights, lm_head=lm_head, activations=activations, kv=kv,
        kv_policy=kv_policy, draft=draft, draft_tokens=draft_tokens,
        acceptance=acceptance, draft_tree=draft_tree, draft_tp=draft_tp, engine=engine,
        memory_fraction=memory_fraction, token_budget=token_budget, max_num_seqs=max_num_seqs,
        max_model_len=max_model_len, block_size=block_size, eager=eager, calibration=calibration, allow_oom=allow_oom,
    )  # fmt: skip
    if plots is not None:
        write_pictures(answer, plots, force)
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

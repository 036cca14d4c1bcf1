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
    concurrency: Annotated[int | None, Count("Users in a closed loop; excludes --batch.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second that arrive; excludes --batch.")] = None,
    requests: Annotated[int | None, Count("Requests in all that the users of a closed loop send.")] = None,
    burstiness: Annotated[float | None, typer.Option(help="Variation of the gaps between arrivals: 1 Poisson.")] = None,
    isl_cv: Annotated[float | None, typer.Option(help="Variation of prompt lengths: deviation over mean.")] = None,
    osl_cv: Annotated[float | None, typer.Option(help="Variation of output lengths.")] = None,
    ttft: Annotated[float | None, typer.Option(help="Objective under load, in ms.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Objective under load, in ms.")] = None,
    tp: Annotated[int, Count("Tensor parallel degree.")] = 1,
    pp: Annotated[int, Count("Pipeline parallel degree.")] = 1,
    ep: Annotated[int, Count("Expert parallel degree.")] = 1,
    dp: Annotated[int, Count("Attention data parallel degree.")] = 1,
    cp: Annotated[int, Count("Context parallel degree.")] = 1,
    microbatches: Annotated[int, Count("Parts of a batch that follow each other through the stages.")] = 1,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split tokens between blocks.")
    ] = False,
    all_reduce: Annotated[str, typer.Option(help="auto, one_shot, two_shot, ring or in_switch.")] = "auto",
    system: Annotated[str | None, typer.Option(help="What the accelerators are built into, such as hgx-h100.")] = None,
    dispatch: Annotated[str | None, typer.Option(help="Format in which tokens travel to their experts.")] = None,
    redundant_experts: Annotated[int, Count("Copies of popular experts, over all ranks.")] = 0,
    skew: Annotated[float, typer.Option(help="Routing: popularity falls as rank^-skew; 0 is uniform.")] = 0.0,
    power_cap: Annotated[float | None, typer.Option(help="Limit of each accelerator's power [W].")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight format (default: the checkpoint's).")] = None,
    attention_weights: Annotated[str | None, typer.Option(help="Format of attention's matrices, if another.")] = None,
    lm_head: Annotated[str | None, typer.Option(help="Format of the LM head (default: the checkpoint's).")] = None,
    activations: Annotated[str | None, typer.Option(help="Activation format (default: the checkpoint's).")] = None,
    kv: Annotated[str | None, typer.Option(help="KV cache format (default: as activations).")] = None,
    kv_policy: Annotated[str, typer.Option(help="full, window:N, sink:N+M, topk:N or evict:N.")] = "full",
    draft: Annotated[str | None, typer.Option(help="Draft: a model, medusa, eagle, eagle3, mtp or ngram.")] = None,
    draft_tokens: Annotated[int | None, Count("Tokens drafted in a row.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Share of drafted tokens accepted; a,b,c by place.")] = None,
    draft_tree: Annotated[int | None, Count("Drafted tokens verified at once, if more than in a row.")] = None,
    draft_tp: Annotated[int | None, Count("Tensor parallel degree of the draft model.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, gpt-fast or ideal; or vllm@0.8.5.")] = "vllm",
    memory_fraction: Annotated[float | None, typer.Option(help="Share of memory the engine may use.")] = None,
    token_budget: Annotated[int | None, Count("Tokens of one prefill step.")] = None,
    max_num_seqs: Annotated[int | None, Count("Sequences that the engine runs at once.")] = None,
    max_model_len: Annotated[int | None, Count("Longest sequence that the engine admits.")] = None,
    block_size: Annotated[int | None, Count("Tokens of one block of the cache.")] = None,
    eager: Annotated[bool, typer.Option("--eager", help="Without CUDA graphs.")] = False,
    calibration: Annotated[str | None, typer.Option(help="A calibration, or 'none' for the datasheet bound.")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    allow_oom: Annotated[bool, typer.Option("--allow-oom", help="Answer even if it does not fit in memory.")] = False,
) -> None:
    """Predict TTFT, TPOT, throughput and memory of a static batch, or under load, kernel by kernel."""
    from rooflinekit.estimator import estimate as predict

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

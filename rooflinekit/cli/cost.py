"""`rooflinekit cost`."""

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

if TYPE_CHECKING:
    from rooflinekit.economics.results import Cost

__all__ = ["cost"]


def cost(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")] = "h100-sxm",
    isl: Annotated[str, typer.Option(help="Prompt length: 1024, uniform:100-200, lognormal:mean=900,cv=1.")] = "1024",
    osl: Annotated[str, typer.Option(help="Output length, likewise.")] = "256",
    cached: Annotated[int, Count("Prompt tokens that are already in the cache.")] = 0,
    concurrency: Annotated[int | None, Count("Sequences that run at once (default: as many as fit).")] = None,
    utilisation: Annotated[float, typer.Option(help="Share of the paid time that the replica works.")] = 1.0,
    price: Price = None,
    purchase: Purchase = None,
    years: Years = None,
    power_price: PowerPrice = None,
    pue: Pue = None,
    turns: Annotated[int, Count("Turns of a conversation.")] = 10,
    question: Annotated[int, Count("Tokens that each turn of it asks; --osl answer.")] = 100,
    system_prompt: Annotated[int, Count("Tokens before its first turn.")] = 500,
    calls: Annotated[int, Count("Calls of an agent's run.")] = 20,
    agent_prompt: Annotated[int, Count("Tokens before its first call: instructions, tools.")] = 4000,
    tool_result: Annotated[int, Count("Tokens that each call of it reads.")] = 800,
    tool_call: Annotated[int, Count("Tokens that each call of it writes.")] = 100,
    shared_prompt: Annotated[
        bool, typer.Option("--shared-prompt", help="Both prompts are in the cache already: others use them too.")
    ] = False,
    long_context: Annotated[int | None, Count("Tokens of a long context (default: 131072, or the model's).")] = None,
    reserve: Annotated[int | None, Count("Tokens that a static layout sets aside (default: the longest).")] = None,
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
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Price cached, input and output tokens, dialogues and long contexts, and say why output costs more."""
    from rooflinekit.economics.front import cost as found_cost

    if out is not None:
        check_free(out, force)
    found = found_cost(
        model, gpu, isl=isl, osl=osl, cached=cached, concurrency=concurrency, utilisation=utilisation,
        price=price, purchase=purchase, years=years, power_price=power_price, pue=pue,
        turns=turns, question=question, system_prompt=system_prompt, calls=calls, agent_prompt=agent_prompt,
        tool_result=tool_result, tool_call=tool_call, shared_prompt=shared_prompt, long_context=long_context,
        reserve=reserve,
        tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, microbatches=microbatches, sequence_parallel=sequence_parallel,
        all_reduce=all_reduce, system=system, dispatch=dispatch, redundant_experts=redundant_experts, skew=skew,
        power_cap=power_cap, weights=weights, attention_weights=attention_weights, lm_head=lm_head,
        activations=activations, kv=kv, kv_policy=kv_policy, engine=engine, memory_fraction=memory_fraction,
        token_budget=token_budget, max_num_seqs=max_num_seqs, max_model_len=max_model_len, block_size=block_size,
        eager=eager, calibration=calibration,
    )  # fmt: skip
    emit(_render(found, format), out, force)


def _render(found: Cost, format: Format) -> str:
    from rooflinekit.report.cost import cost_text

    if format is Format.json:
        return to_json(found.to_dict())
    if format is Format.csv:
        return to_csv(found.to_rows())
    return cost_text(found, markdown_style=format is Format.md)

"""`rooflinekit report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from rooflinekit.cli.output import check_free
from rooflinekit.cli.pictures import check_pictures, write_pictures
from rooflinekit.types.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.serving.outcome import Outcome

__all__ = ["report"]


def report(
    model: Annotated[str | None, typer.Argument(help="Name, Hugging Face id, or path to a config.json.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Report on what plan --format json wrote, not on MODEL.")] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="Report on rows of a sweep (.csv, .parquet), not on MODEL.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Compare with another GPU, or with tp=4,weights=fp8.")] = None,
    simulate: Annotated[int | None, Count("Simulate so many requests of --rate or --concurrency too.")] = None,
    models: Annotated[str | None, typer.Option(help="Models that the sliders offer besides, comma between.")] = None,
    gpus: Annotated[str | None, typer.Option(help="Accelerators that the sliders offer besides.")] = None,
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")] = "h100-sxm",
    batch: Annotated[int | None, Count("Sequences in the batch (default: 1).")] = None,
    isl: Annotated[int | None, Count("Prompt length in tokens (default: 1024).")] = None,
    osl: Annotated[int | None, Count("Output length in tokens (default: 256).")] = None,
    cached: Annotated[int | None, Count("Prompt tokens that are already in the cache.")] = None,
    context: Annotated[int | None, Count("Decode at this context, not the mean over the output.")] = None,
    concurrency: Annotated[int | None, Count("Users in a closed loop; excludes --batch.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second that arrive; excludes --batch.")] = None,
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
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write one self-contained HTML page on a deployment, a comparison, a plan or a sweep, with live sliders."""
    from rooflinekit.estimator import estimate as predict
    from rooflinekit.report.page import write_report

    check_free(out, force)
    if plots is not None:
        check_pictures(plots, "estimate", force)
    offered = (("models", models), ("gpus", gpus))
    told: dict[str, Any] = {name: None if text is None else _names(text) for name, text in offered}
    if plan is not None or sweep is not None:
        _alone(model, against, simulate, plots)
        made = write_report(out, plan=plan, sweep=sweep, force=force, **told)
    elif model is None:
        raise InputError("say what the report is on: MODEL, --plan FILE or --sweep FILE")
    else:
        work = {"batch": batch, "isl": isl, "osl": osl, "cached": cached, "context": context}
        load = {"concurrency": concurrency, "rate": rate}
        deployment = {
            "tp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": cp, "microbatches": microbatches, "sequence_parallel":
            sequence_parallel, "all_reduce": all_reduce, "system": system, "dispatch": dispatch,
            "redundant_experts": redundant_experts, "skew": skew, "power_cap": power_cap, "weights": weights,
            "attention_weights": attention_weights, "lm_head": lm_head, "activations": activations, "kv": kv,
            "kv_policy": kv_policy, "engine": engine, "memory_fraction": memory_fraction, "token_budget":
            token_budget, "max_num_seqs": max_num_seqs, "max_model_len": max_model_len, "block_size": block_size,
            "eager": eager, "calibration": calibration,
        }  # fmt: skip
        outcome = _simulated(model, gpu, simulate, load | {"isl": isl, "osl": osl} | deployment)
        made = write_report(out, model, gpu, against=against, simulation=outcome, force=force, **told, **work, **load,
                            **deployment)  # fmt: skip
        if plots is not None:
            asked = {key: value for key, value in (work | load | deployment).items() if value is not None}
            drawn = predict(model, gpu, allow_oom=True, **asked)
            write_pictures(drawn if outcome is None else [drawn, outcome], plots, force)
    typer.echo(f"{made.path}: {made.title}, {made.bytes / 1e6:.2f} MB")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _alone(model: str | None, against: str | None, simulate: int | None, plots: Path | None) -> None:
    for name, value in (("MODEL", model), ("--against", against), ("--simulate", simulate), ("--plots", plots)):
        if value is not None:
            raise InputError(f"{name} belongs to a report on a model; leave it out beside --plan or --sweep")


def _simulated(model: str, gpu: str, requests: int | None, scenario: dict[str, Any]) -> Outcome | None:
    from rooflinekit.serving.front import simulate as run

    if requests is None:
        return None
    if scenario["rate"] is None and scenario["concurrency"] is None:
        raise InputError("--simulate needs a load: add --rate or --concurrency")
    lengths: dict[str, Any] = {key: str(scenario[key]) for key in ("isl", "osl") if scenario[key] is not None}
    return run(model, gpu, requests=requests, **{"isl": "1024", "osl": "256", **scenario, **lengths})

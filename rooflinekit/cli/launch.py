"""`rooflinekit launch`."""

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
    RedundantExperts,
    SequenceParallel,
    Skew,
    System,
    TensorParallel,
    Weights,
)
from rooflinekit.cli.output import Format, check_free, emit, to_csv, to_json
from rooflinekit.types.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.launching.result import Launch

__all__ = ["launch"]

_SCRIPT = "launch.sh"


def launch(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Name, Hugging Face id, or path; or use --plan.")] = None,
    plan: Annotated[Path | None, typer.Option(help="What `rooflinekit plan --format json` wrote.")] = None,
    candidate: Annotated[int | None, Count("Which candidate of the plan, from 1 (default: its best).")] = None,
    replicas: Annotated[int, Count("Copies of the deployment.")] = 1,
    host_gpus: Annotated[int, Count("Accelerators of one host.")] = 8,
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")] = "h100-sxm",
    batch: Annotated[int | None, Count("Sequences in the batch of the prediction.")] = None,
    isl: Annotated[int | None, Count("Prompt length in tokens (default: 1024).")] = None,
    osl: Annotated[int | None, Count("Output length in tokens (default: 256).")] = None,
    cached: Annotated[int | None, Count("Prompt tokens that are already in the cache.")] = None,
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
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file, or the files into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a deployment or a plan as commands and configuration of vLLM, SGLang or TensorRT-LLM."""
    from rooflinekit.launching.front import launch as export

    scenario = {key: value for key, value in context.params.items() if key not in _NO_SCENARIO and _said(context, key)}
    if plan is not None and _said(context, "gpu"):
        raise InputError("a plan has its own accelerators; leave --gpu out")
    made = export(model, gpu, plan=plan, candidate=candidate, replicas=replicas, host_gpus=host_gpus, **scenario)
    if out is not None and _is_folder(out):
        _write(made, out, format, force)
    else:
        emit(_render(made, format), out, force)


_NO_SCENARIO = ("model", "plan", "candidate", "replicas", "host_gpus", "gpu", "format", "out", "force")


def _said(context: typer.Context, key: str) -> bool:
    """Whether the user gave an option, or it is the default."""
    source = context.get_parameter_source(key)
    return source is not None and source.name != "DEFAULT"


def _is_folder(out: Path) -> bool:
    return out.is_dir() or str(out).endswith("/") or (not out.exists() and not out.suffix)


def _render(made: Launch, format: Format) -> str:
    from rooflinekit.launching.shell import launch_script
    from rooflinekit.report.launch import launch_markdown, launch_rows

    match format:
        case Format.json:
            return to_json(made.to_dict())
        case Format.csv:
            return to_csv(launch_rows(made))
        case Format.md:
            return launch_markdown(made)
        case _:
            return launch_script(made)


def _write(made: Launch, folder: Path, format: Format, force: bool) -> None:
    """The script and its configuration files into a folder; nothing if one of them is there already."""
    from rooflinekit.launching.shell import launch_script

    if format is not Format.table:
        raise InputError(f"--format {format.value} is one file; give --out a file's name, not a folder")
    files = {_SCRIPT: launch_script(made, with_files=False), **made.files}
    if folder.is_dir():
        for name in files:
            check_free(folder / name, force)
    elif not folder.parent.is_dir():
        raise InputError(f"{folder.parent} is not a folder; make it first")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        emit(text, folder / name, force=True)
    (folder / _SCRIPT).chmod(0o755)
    emit("\n".join(f"wrote {folder / name}" for name in files))

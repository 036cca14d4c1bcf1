"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer

__all__ = [
    "Activations",
    "AllReduce",
    "AttentionWeights",
    "Cache",
    "CachePolicy",
    "Calibration",
    "ContextParallel",
    "Count",
    "DataParallel",
    "Dispatch",
    "Engine",
    "ExpertParallel",
    "Folder",
    "LmHead",
    "MemoryFraction",
    "Microbatches",
    "PipelineParallel",
    "Plots",
    "PowerCap",
    "PowerPrice",
    "Price",
    "Pue",
    "Purchase",
    "RedundantExperts",
    "SequenceParallel",
    "Skew",
    "System",
    "TensorParallel",
    "Weights",
    "Years",
    "said",
    "with_options_of",
]


def Count(help: str, *names: str) -> Any:
    """An option that takes a whole number, and says so in words when it gets something else."""
    return typer.Option(*names, help=help, parser=_whole, metavar="N")


def _whole(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def Folder(help: str, metavar: str = "PATH") -> Any:
    """An option for a folder to write into; an empty name, as of an unset variable, is not the current one."""
    return typer.Option(help=help, parser=_folder, metavar=metavar)


def _folder(text: str) -> Path:
    if not text.strip():
        raise typer.BadParameter("the name is empty; write . for the current folder")
    return Path(text)


# What describes a deployment, for every command that takes one.
TensorParallel: TypeAlias = Annotated[int, Count("Tensor parallel degree.")]
PipelineParallel: TypeAlias = Annotated[int, Count("Pipeline parallel degree.")]
ExpertParallel: TypeAlias = Annotated[int, Count("Expert parallel degree.")]
DataParallel: TypeAlias = Annotated[int, Count("Attention data parallel degree.")]
ContextParallel: TypeAlias = Annotated[int, Count("Context parallel degree.")]
Microbatches: TypeAlias = Annotated[int, Count("Parts of a batch that follow each other through the stages.")]
SequenceParallel: TypeAlias = Annotated[bool, typer.Option("--sequence-parallel", help="Split tokens between blocks.")]
AllReduce: TypeAlias = Annotated[str, typer.Option(help="auto, one_shot, two_shot, ring or in_switch.")]
System: TypeAlias = Annotated[str | None, typer.Option(help="What the accelerators are built into, such as hgx-h100.")]
Dispatch: TypeAlias = Annotated[str | None, typer.Option(help="Format in which tokens travel to their experts.")]
RedundantExperts: TypeAlias = Annotated[int, Count("Copies of popular experts, over all ranks.")]
Skew: TypeAlias = Annotated[float, typer.Option(help="Routing: popularity falls as rank^-skew; 0 is uniform.")]
PowerCap: TypeAlias = Annotated[float | None, typer.Option(help="Limit of each accelerator's power, in W.")]
Weights: TypeAlias = Annotated[str | None, typer.Option(help="Weight format (default: the checkpoint's).")]
AttentionWeights: TypeAlias = Annotated[str | None, typer.Option(help="Format of attention's matrices, if another.")]
LmHead: TypeAlias = Annotated[str | None, typer.Option(help="Format of the LM head (default: the checkpoint's).")]
Activations: TypeAlias = Annotated[str | None, typer.Option(help="Activation format (default: the checkpoint's).")]
Cache: TypeAlias = Annotated[str | None, typer.Option(help="KV cache format (default: as activations).")]
CachePolicy: TypeAlias = Annotated[str, typer.Option(help="full, window:N, sink:N+M, topk:N or evict:N.")]
Engine: TypeAlias = Annotated[str, typer.Option(help="vllm, sglang, trtllm, gpt-fast or ideal; or vllm@0.8.5.")]
MemoryFraction: TypeAlias = Annotated[float | None, typer.Option(help="Share of memory the engine may use.")]
Calibration: TypeAlias = Annotated[str | None, typer.Option(help="A calibration, or 'none' for the datasheet bound.")]

# Pictures of what a command answers.
Plots: TypeAlias = Annotated[Path | None, Folder("Write pictures into this folder, as SVG and PNG.", "DIR")]

# What an accelerator hour costs, for every command that speaks of money.
Price: TypeAlias = Annotated[float | None, typer.Option(help="USD of one GPU hour (default: the GPU file's quote).")]
Purchase: TypeAlias = Annotated[float | None, typer.Option(help="USD of one GPU with its share of the host, bought.")]
Years: TypeAlias = Annotated[float | None, typer.Option(help="Years over which a purchase is spread.")]
PowerPrice: TypeAlias = Annotated[float | None, typer.Option(help="USD of one kWh, beside a purchase.")]
Pue: TypeAlias = Annotated[float | None, typer.Option(help="Power of the building over power of the GPUs.")]


def with_options_of(other: Callable[..., Any], *leave: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command that ends in `**scenario` the options of another, but those in `leave`, as keywords."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {parameter.name for parameter in own} | set(leave)
        shared = [p for p in inspect.signature(other).parameters.values() if p.name not in taken]
        kinds = get_type_hints(other, include_extras=True) | get_type_hints(command, include_extras=True)
        merged = [p.replace(annotation=kinds[p.name]) for p in (*own, *shared)]
        command.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: kinds[p.name] for p in merged} | {"return": None}
        return command

    return decorated


def said(context: typer.Context, key: str) -> bool:
    """Whether the user gave an option, or it is the default."""
    source = context.get_parameter_source(key)
    return source is not None and source.name != "DEFAULT"

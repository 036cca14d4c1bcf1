"""`rooflinekit launch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.options import Count, Folder, said, with_options_of
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.decision.launching.launch import Launch

__all__ = ["launch"]

_SCRIPT = "launch.sh"
_WITHOUT = ("requests", "burstiness", "isl_cv", "osl_cv", "context", "ttft", "tpot", "allow_oom", "plots")


@with_options_of(estimate, *_WITHOUT)
def launch(
    call: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Name, Hugging Face id, or path; or use --plan.")] = None,
    plan: Annotated[Path | None, typer.Option(help="What `rooflinekit plan --format json` wrote.")] = None,
    candidate: Annotated[int | None, Count("Which candidate of the plan, from 1 (default: its best).")] = None,
    replicas: Annotated[int, Count("Copies of the deployment.")] = 1,
    host_gpus: Annotated[int, Count("Accelerators of one host.")] = 8,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, Folder("Write to this file, or the files into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    **scenario: Any,
) -> None:
    """Write a deployment or a plan as commands and configuration of vLLM, SGLang or TensorRT-LLM."""
    from rooflinekit.decision.launching.launch import launch as export

    given = {key: value for key, value in scenario.items() if said(call, key)}
    if plan is not None and "gpu" in given:
        raise InputError("a plan has its own accelerators; leave --gpu out")
    made = export(model, plan=plan, candidate=candidate, replicas=replicas, host_gpus=host_gpus, **given)
    if out is not None and _is_folder(out):
        _write(made, out, format, force)
    else:
        emit(_render(made, format), out, force)


def _is_folder(out: Path) -> bool:
    return out.is_dir() or str(out).endswith("/") or (not out.exists() and not out.suffix)


def _render(made: Launch, format: Format) -> str:
    from rooflinekit.decision.launching.launch import launch_script
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
    from rooflinekit.decision.launching.launch import launch_script

    if format is not Format.table:
        raise InputError(f"--format {format.value} is one file; give --out a file's name, not a folder")
    files = {_SCRIPT: launch_script(made, with_files=False), **made.files}
    if folder.is_dir():
        for name in files:
            check_target(folder / name, force)
    elif not folder.parent.is_dir():
        raise InputError(f"{folder.parent} is not a folder; make it first")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        emit(text, folder / name, force=True)
    (folder / _SCRIPT).chmod(0o755)
    emit("\n".join(f"wrote {folder / name}" for name in files))

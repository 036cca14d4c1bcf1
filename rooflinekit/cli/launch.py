"""`rooflinekit launch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import MAYBE_MODEL, command
from rooflinekit.cli.output import emit, rendered
from rooflinekit.estimation.scenario import Accelerator, Launching, Scenario, Written
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.decision.launching.launch import Launch

__all__ = ["launch"]

_SCRIPT = "launch.sh"


@command(
    Accelerator, Scenario, Written, Launching,
    arguments={"model": MAYBE_MODEL}, leave=("allow_oom",),
    examples=(
        "rooflinekit launch llama3-8b --tp 2 --engine vllm@0.8.5",
        "rooflinekit launch --plan plan.json --out deploy/",
    ),
)  # fmt: skip
def launch(
    model: str | None, *, format: str = "table", out: Path | None = None, force: bool = False, **scenario: Any
) -> None:
    """Write a deployment or a plan as commands and configuration of vLLM, SGLang or TensorRT-LLM."""
    from rooflinekit.decision.launching.launch import launch as export
    from rooflinekit.decision.launching.launch import launch_script
    from rooflinekit.report.launch import launch_markdown, launch_rows

    if "plan" in scenario and "gpu" in scenario:
        raise InputError("a plan has its own accelerators; leave --gpu out")
    made = export(model, **scenario)
    if out is not None and _is_folder(out):
        _write(made, out, format, force)
    else:
        emit(rendered(made, format, lambda: launch_rows(made), launch_script, launch_markdown), out, force)


def _is_folder(out: Path) -> bool:
    return out.is_dir() or str(out).endswith("/") or (not out.exists() and not out.suffix)


def _write(made: Launch, folder: Path, format: str, force: bool) -> None:
    """The script and its configuration files into a folder; nothing if one of them is there already."""
    from rooflinekit.decision.launching.launch import launch_script

    if format != "table":
        raise InputError(f"--format {format} is one file; give --out a file's name, not a folder")
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

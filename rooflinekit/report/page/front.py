"""The front door of reports: names and keywords, a plan or a table in, one HTML file out."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.errors import InputError
from rooflinekit.report.page.assemble import deployment_page, plan_page, table_page
from rooflinekit.report.page.render import LIMIT_BYTES
from rooflinekit.specs.writing import check_target, write_whole

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["Report", "read_against", "write_report"]


@dataclass(frozen=True)
class Report:
    """What was written."""

    path: Path
    title: str
    bytes: int


def write_report(
    out: str | PathLike[str],
    model: str | PathLike[str] | None = None,
    gpu: str | PathLike[str] = "h100-sxm",
    **more: Any,
) -> Report:
    """Write a report as one self-contained HTML file.

    Args:
        out: the file to write; its folder must exist.
        model: a model's name or path, for a report on one deployment.
        gpu: an accelerator's name or path.
        **more: the scenario as `estimate` takes it, and against (an accelerator, or keywords that differ, as a dict or
            as "gpu=b200-sxm,tp=4"); simulation (what `simulate` returned); models, gpus (names that the sliders offer
            besides); walk (False leaves the shapes out). Or in place of a model: plan (what `plan` returned, its JSON
            as a dict, or the path of a file with it), or sweep (what `sweep` returned, or the path of a CSV or Parquet
            file). force: overwrite a file.

    Returns:
        A `Report`: path, title and size in bytes.

    Raises:
        InputError: (and its kinds) for anything that makes no sense, and a file that exists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = write_report(f"{folder}/report.html", "llama-3-8b", batch=8, models=(), gpus=(), walk=False)
    >>> made.title
    'llama-3-8b on h100-sxm, vllm'
    """
    path, force = Path(out), bool(more.pop("force", False))
    check_target(path, force)
    collecting = gc.isenabled()
    gc.disable()  # what a page is made of stays until it is written: there is nothing to collect
    try:
        title, html = _page(model, gpu, more)
    finally:
        if collecting:
            gc.enable()
    content = html.encode()
    if len(content) > LIMIT_BYTES:
        raise InputError(f"the page would have {len(content) / 1e6:.1f} MB, more than 2.5; offer fewer models and GPUs")
    return Report(write_whole(path, content, force), title, len(content))


def _page(model: str | PathLike[str] | None, gpu: str | PathLike[str], more: dict[str, Any]) -> tuple[str, str]:
    subjects = {"model": model, "plan": more.pop("plan", None), "sweep": more.pop("sweep", None)}
    given = [name for name, value in subjects.items() if value is not None]
    if len(given) != 1:
        raise InputError(f"a report is on one of a model, a plan or a sweep, not on {' and '.join(given) or 'nothing'}")
    offered = more.pop("models", None), more.pop("gpus", None)
    if given == ["model"]:
        against, outcome = more.pop("against", None), more.pop("simulation", None)
        walk = bool(more.pop("walk", True))
        scenario = {key: value for key, value in more.items() if value is not None}
        return deployment_page(str(model), str(gpu), scenario, read_against(against), (outcome, walk, offered))
    for key in more:
        raise InputError(f"{key} belongs to a report on a model; a {given[0]} brings its own deployments")
    if given == ["plan"]:
        from rooflinekit.report.page.plan_file import read_plan  # noqa: PLC0415 - other pages do not wait for pydantic

        return plan_page(read_plan(subjects["plan"]), offered)
    return table_page(*_table(subjects["sweep"]))


def read_against(against: object) -> dict[str, Any] | None:
    """What a second deployment changes: {"gpu": name} for a name alone; numbers where they are.

    >>> read_against("b200-sxm"), read_against("tp=4,weights=fp8")
    ({'gpu': 'b200-sxm'}, {'tp': 4, 'weights': 'fp8'})
    """
    if against is None or isinstance(against, dict):
        return None if against is None else dict(against)
    parts = [part.strip() for part in str(against).split(",") if part.strip()]
    if not parts:
        raise InputError("against needs an accelerator, or what differs, as in tp=4,weights=fp8")
    if len(parts) == 1 and "=" not in parts[0]:
        return {"gpu": parts[0]}
    found: dict[str, Any] = {}
    for part in parts:
        key, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not key or not value:
            raise InputError(f"against: {part!r} is no key=value; write it like gpu=b200-sxm,tp=4")
        found[key.replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _table(sweep: Any) -> tuple[pd.DataFrame, str]:
    if hasattr(sweep, "columns"):
        return sweep, "the table"
    from rooflinekit.decision.sweeping.tables import read_answers  # noqa: PLC0415 - pandas takes longer than a page

    return read_answers(str(sweep)), Path(sweep).name

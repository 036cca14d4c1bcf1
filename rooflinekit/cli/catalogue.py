"""`rooflinekit models`, `gpus` and `show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.output import emit, to_csv, to_json
from rooflinekit.estimation.scenario import Shown, Written
from rooflinekit.model.types.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from rooflinekit.model.types.hardware import Accelerator
    from rooflinekit.model.types.model import Model
    from rooflinekit.specs.locate import Loaded

__all__ = ["gpus", "models", "show"]


@command(Written, arguments={}, examples=("rooflinekit models", "rooflinekit models --format csv --out models.csv"))
def models(*, format: str = "table", out: Path | None = None, force: bool = False) -> None:
    """List the models that are known."""
    from rooflinekit.report.catalogue import model_row
    from rooflinekit.specs import load_model, names

    emit(_list([model_row(load_model(name).value) for name in names("model")], format), out, force)


@command(Written, arguments={}, examples=("rooflinekit gpus", "rooflinekit gpus --format json"))
def gpus(*, format: str = "table", out: Path | None = None, force: bool = False) -> None:
    """List the accelerators that are known."""
    from rooflinekit.report.catalogue import accelerator_row
    from rooflinekit.specs import load_accelerator, names

    emit(_list([accelerator_row(load_accelerator(name).value) for name in names("accelerator")], format), out, force)


@command(
    Shown, arguments={"name": Argument("A model or an accelerator: name, id or path.", False, complete="model")},
    examples=(
        "rooflinekit show llama-3-8b",
        "rooflinekit show --template gpu --out my-chip.yaml",
    ),
)  # fmt: skip
def show(
    name: str | None,
    *,
    template: str | None = None,
    format: str = "table",
    out: Path | None = None,
    force: bool = False,
) -> None:
    """Show one model or accelerator with its sources, or print a template for a new one."""
    if template is not None:
        return emit(_template(template), out, force)
    if name is None:
        raise InputError("show needs the NAME of a model or accelerator, or --template gpu")
    entry, text, warnings = _find(name)
    body = to_json(entry) if format == "json" else _one(entry, format) if format != "table" else text
    if format == "table":
        from rooflinekit.report.catalogue import fitted

        body = "\n".join([body, *(line for warning in warnings for line in fitted(f"note     {warning}"))])
    return emit(body, out, force)


def _template(kind: str) -> str:
    from rooflinekit.specs import accelerator_template

    if kind not in ("gpu", "accelerator"):
        raise InputError(f"no template for {kind!r}; nearest: gpu")
    return accelerator_template()


def _find(name: str) -> tuple[dict[str, Any], str, Sequence[str]]:
    """A file by what it holds; a name among the models first, then among the accelerators."""
    from rooflinekit.specs import load_accelerator, load_model
    from rooflinekit.specs.locate import kind_of_file, unknown_name

    kind = kind_of_file(name)
    if kind is not None:
        return _accelerator(load_accelerator(name)) if kind == "accelerator" else _model(load_model(name))
    try:
        return _model(load_model(name))
    except UnknownNameError as unknown_model:
        try:
            return _accelerator(load_accelerator(name))
        except UnknownNameError as unknown_gpu:
            near = (*unknown_model.suggestions, *unknown_gpu.suggestions)
            raise unknown_name("model or accelerator", name, near) from None


def _model(loaded: Loaded[Model]) -> tuple[dict[str, Any], str, Sequence[str]]:
    from rooflinekit.report.catalogue import model_entry, model_text

    return model_entry(loaded.value), model_text(loaded.value), loaded.warnings


def _accelerator(loaded: Loaded[Accelerator]) -> tuple[dict[str, Any], str, Sequence[str]]:
    from rooflinekit.report.catalogue import accelerator_entry, accelerator_text

    return accelerator_entry(loaded.value), accelerator_text(loaded.value), loaded.warnings


def _list(rows: Sequence[dict[str, Any]], format: str) -> str:
    from rooflinekit.report.table import aligned, markdown

    if format == "json":
        return to_json(list(rows))
    if format == "csv":
        return to_csv(rows)
    if format == "table":
        rows = [{key: row[key] for key in row if key in _HEADINGS} for row in rows]
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows]
    header = [_HEADINGS.get(key, key) for key in rows[0]]
    left = [column for column, value in enumerate(rows[0].values()) if isinstance(value, str)]
    return "\n".join((markdown if format == "md" else aligned)(header, cells, left))


_HEADINGS = {  # the columns that a terminal shows; the other formats have all
    "name": "name", "params_total": "params", "params_active": "active", "mixers": "mixers",
    "kv_bytes_per_token": "KV/token", "max_context": "context", "bf16_tflops": "bf16 TF", "fp8_tflops": "fp8 TF",
    "memory_gb": "GB", "bandwidth_gb_s": "GB/s", "link_gb_s": "link GB/s", "domain_size": "joined",
    "usd_per_hour": "USD/h",
}  # fmt: skip


def _cell(key: str, value: Any) -> str:
    from rooflinekit.model.types.units import format_bytes, format_count

    if value is None:
        return "-"
    if key.startswith("params"):
        return format_count(value)
    if key == "kv_bytes_per_token":
        return format_bytes(value)
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _one(entry: dict[str, Any], format: str) -> str:
    flat = {key: value for key, value in entry.items() if not isinstance(value, (dict, list))}
    if format == "csv":
        return to_csv([flat])
    from rooflinekit.report.table import markdown

    return "\n".join(
        markdown(
            ["fact", "value"], [[key, "-" if value is None else str(value)] for key, value in flat.items()], left=(0, 1)
        )
    )

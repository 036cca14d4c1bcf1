"""Kernel tables as groups of rows of one kernel: one accelerator, engine, number format and variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rooflinekit.calibration.tables import OPERATIONS, VARIANT, Measured, measured_rows
from rooflinekit.types.dtype import parse_dtype
from rooflinekit.types.errors import MissingExtraError, SpecError
from rooflinekit.types.kernel import Family

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KEY", "Group", "fit_key", "kernel_groups", "read_kernel_tables"]

KEY = ("gpu", "engine", "dtype", "kv_dtype", "routing", "collective", "mode")
"""Columns that make a group of a kernel table, where the table has them."""

_COLLECTIVES = {"custom_all_reduce": "all_reduce", "alltoall": "all_to_all"}
_NEEDED = {
    "gemm": ("dtype", "m", "n", "k"),
    "attention_decode": ("dtype", "kv_dtype", "batch", "seq_len", "heads", "kv_heads", "head_dim"),
    "attention_prefill": ("dtype", "kv_dtype", "batch", "seq_len", "heads", "kv_heads", "head_dim"),
    "mla_decode": ("dtype", "kv_dtype", "batch", "seq_len", "heads"),
    "mla_prefill": ("dtype", "kv_dtype", "batch", "seq_len", "heads"),
    "moe": ("dtype", "routing", "ffn_matrices", "tokens", "hidden", "expert_intermediate", "top_k",
            "experts", "tp", "ep"),
    "comm": ("dtype", "collective", "mode", "gpus", "bytes"),
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Rows of one kernel: the columns that tell it apart, and what a calibration calls it."""

    operation: str
    named: dict[str, str]
    table: pd.DataFrame

    @property
    def gpu(self) -> str:
        """Accelerator, as the table names it."""
        return self.named["gpu"]

    @property
    def engine(self) -> str:
        """Engine, as the table names it."""
        return self.named["engine"]

    @property
    def family(self) -> Family:
        """Kernel family of the operation."""
        return OPERATIONS[self.operation][0]

    @property
    def key(self) -> str:
        """Key of the fit, as calibration files write it."""
        return fit_key(self.operation, self.named)

    @property
    def source(self) -> str:
        """Where the rows are from, in words."""
        releases = (
            "/".join(sorted(map(str, self.table["engine_version"].unique()))) if "engine_version" in self.table else ""
        )
        return f"{len(self.table)} {self.operation} rows of {self.gpu} with {self.engine} {releases}".rstrip()

    def rows(self) -> Measured:
        """The rows as kernels with their measured times."""
        return measured_rows(self.table, self.operation)


def fit_key(operation: str, named: dict[str, str]) -> str:
    """The key of the fit for a group, as calibration files write it.

    >>> fit_key("attention_decode", {"dtype": "bfloat16", "kv_dtype": "fp8"})
    'attention_decode/bf16/fp8'
    >>> fit_key("comm", {"collective": "custom_all_reduce", "mode": "graph", "engine": "vllm"})
    'collective/bf16/all_reduce'
    """
    family = OPERATIONS[operation][0]
    if operation == "comm":  # bytes are bytes, so number formats of a collective are one kernel
        kind = _COLLECTIVES.get(named["collective"], named["collective"])
        nccl = "nccl_" if named["collective"] == "all_reduce" else ""
        eager = "/eager" if named["mode"] == "eager" and named["engine"] != "nccl" else ""
        return f"{family}/bf16/{nccl}{kind}{eager}"
    parts = [family, parse_dtype(named["dtype"]).value]
    if operation == "moe":
        parts += [] if named["routing"] == "balanced" else [named["routing"]]
    elif operation in VARIANT:
        parts.append(parse_dtype(named[VARIANT[operation]]).value)
    return "/".join(parts)


def read_kernel_tables(path: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """The operations of one file: named by the file, or by a column `op`.

    Raises SpecError for a file that is no kernel table, naming the missing column or the known operations;
    MissingExtraError for Parquet without pyarrow.
    """
    import pandas as pd  # noqa: PLC0415

    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError:
        raise MissingExtraError("reading Parquet", "accuracy") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: not a readable table: {' '.join(str(error).split())[:120]}") from None
    if "op" not in table and path.stem not in OPERATIONS:
        raise SpecError(f"{path}: no column 'op', and the file name is not one of {', '.join(OPERATIONS)}")
    for operation, rows in table.groupby("op") if "op" in table else [(path.stem, table)]:
        _check(path, str(operation), rows)
        yield str(operation), rows.reset_index(drop=True)


def _check(path: Path, operation: str, table: pd.DataFrame) -> None:
    if operation not in OPERATIONS:
        raise SpecError(f"{path}: op {operation!r} is not a kernel table; known: {', '.join(OPERATIONS)}")
    missing = [name for name in ("gpu", "engine", *_NEEDED[operation], "latency_us") if name not in table]
    if missing:
        raise SpecError(f"{path}: a {operation} table needs the column {', '.join(missing)}")


def kernel_groups(operation: str, table: pd.DataFrame) -> Iterator[Group]:
    """One group for every combination of the key columns that the table has."""
    columns = [name for name in KEY if name in table]
    for values, rows in table.groupby(columns, dropna=False):
        yield Group(operation, dict(zip(columns, map(str, values), strict=True)), rows.reset_index(drop=True))

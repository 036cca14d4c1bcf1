"""Kernel tables as groups of rows of one kernel: one accelerator, engine, number format and variant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rooflinekit.calibration.tables import OPERATIONS, VARIANT
from rooflinekit.specs import load_accelerator
from rooflinekit.types.dtype import parse_dtype
from rooflinekit.types.hardware import System

KEY = ["gpu", "engine", "dtype", "kv_dtype", "routing", "collective", "mode"]
COLLECTIVES = {"custom_all_reduce": "all_reduce", "alltoall": "all_to_all"}


@dataclass(frozen=True)
class Group:
    """Rows of one kernel: where they ran, and what a calibration calls them."""

    operation: str
    gpu: str
    engine: str
    key: str
    table: pd.DataFrame

    def __str__(self) -> str:
        return f"{self.operation}/{self.gpu}/{self.engine}/{self.key}"

    @property
    def system(self) -> System:
        return System.of(load_accelerator(self.gpu).value)

    @property
    def source(self) -> str:
        release = "/".join(sorted(self.table["engine_version"].unique()))
        return f"{len(self.table)} {self.operation} rows of {self.gpu} with {self.engine} {release}"


def groups(folder: Path) -> list[Group]:
    found = []
    for operation, (family, _) in OPERATIONS.items():
        table = pd.read_parquet(folder / f"{operation}.parquet")
        columns = [name for name in KEY if name in table]
        if operation == "comm":  # bytes are bytes: NCCL's two formats are one kernel
            table["dtype"] = "bfloat16"
        for values, rows in table.groupby(columns):
            named = dict(zip(columns, values, strict=True))
            if operation != "comm" and not System.of(load_accelerator(named["gpu"]).value).accelerator.supports(
                parse_dtype(named["dtype"])
            ):
                continue
            found.append(
                Group(
                    operation,
                    named["gpu"],
                    named["engine"],
                    key_of(family, named, operation),
                    rows.reset_index(drop=True),
                )
            )
    return found


def key_of(family: str, named: dict[str, str], operation: str) -> str:
    if operation == "comm":
        kind = COLLECTIVES.get(named["collective"], named["collective"])
        return f"{family}/bf16/{kind}" + ("/eager" if named["mode"] == "eager" and named["engine"] != "nccl" else "")
    variant = named[VARIANT[operation]] if operation in VARIANT else ""
    if operation not in ("moe", "gemm"):
        variant = parse_dtype(variant).value
    return "/".join(part for part in (family, parse_dtype(named["dtype"]).value, variant) if part)

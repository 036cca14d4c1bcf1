"""`docs/catalogue.md`: every model and accelerator of the library in two tables.

python -m rooflinekit.report.catalogue_page > docs/catalogue.md
"""

from __future__ import annotations

import sys

from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.model import Model
from rooflinekit.report.catalogue import accelerator_row, model_row
from rooflinekit.report.table import markdown
from rooflinekit.specs import load_accelerator, load_model, names

__all__ = ["catalogue_markdown"]

_MODEL_HEADER = ["model", "parameters", "active", "layers", "mixers", "weights", "KV bytes/token", "context", "source"]
_GPU_HEADER = [
    "accelerator", "bf16 TFLOP/s", "fp16", "fp8", "GB", "GB/s", "link GB/s", "joined", "USD/h", "confidence",
]  # fmt: skip


def catalogue_markdown() -> str:
    """Both tables, with what the columns mean."""
    models = [load_model(name).value for name in names("model")]
    gpus = [load_accelerator(name).value for name in names("accelerator")]
    return "\n".join(
        [
            "# Catalogue",
            "",
            "Generated from `model_specs/` and `hardware_specs/` by `make catalogue`; do not edit.",
            "",
            f"## {len(models)} models",
            "",
            "Parameters of the text decoder, without vision towers and multi-token-prediction layers; active ones per",
            "token with embedding and head. KV bytes a token in the model's own cache format, all layers, before any",
            "window is full.",
            "",
            *markdown(_MODEL_HEADER, [_model_cells(model) for model in models], left=(0, 4, 5, 8)),
            "",
            f"## {len(gpus)} accelerators",
            "",
            "Dense peaks; memory as the driver shows it; GB = 1e9; links in one direction to all peers of the scale-up",
            "domain, and how many it joins. Confidence of compute, memory, links: A two sources agree or a vendor",
            "document that was read, B one secondary source or sources that disagree, C derived or assumed.",
            "`rooflinekit show NAME` lists every number with its source.",
            "",
            *markdown(_GPU_HEADER, [_gpu_cells(gpu) for gpu in gpus]),
        ]
    )


def _model_cells(model: Model) -> list[str]:
    row = model_row(model)
    context = "-" if row["max_context"] is None else f"{row['max_context']:,}"
    return [
        row["name"], f"{row['params_total']:,}", f"{row['params_active']:,}", str(row["layers"]), row["mixers"],
        row["weights"], f"{row['kv_bytes_per_token']:,.0f}", context, f"[source]({model.source})",
    ]  # fmt: skip


def _gpu_cells(gpu: Accelerator) -> list[str]:
    row = accelerator_row(gpu)
    keys = ("bf16_tflops", "fp16_tflops", "fp8_tflops", "memory_gb", "bandwidth_gb_s", "link_gb_s", "domain_size")
    numbers = ["-" if row[key] is None else f"{row[key]:,.5g}" for key in keys]
    price = "-" if gpu.price is None else f"{gpu.price.usd_per_hour:.2f} ({gpu.price.date})"
    parts = ("compute", "memory", "links")
    worst = (max((p.confidence for p in gpu.provenance if p.quantity.startswith(part)), default="-") for part in parts)
    return [gpu.name, *numbers, price, "".join(worst)]


if __name__ == "__main__":
    sys.stdout.write(catalogue_markdown() + "\n")

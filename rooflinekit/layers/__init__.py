"""From a model and a deployment to the operations that one accelerator runs."""

from rooflinekit.layers.build import (
    entry_operations,
    exit_operations,
    layer_operations,
    model_operations,
    stage_operations,
)
from rooflinekit.layers.precision import Precision, resolve_precision
from rooflinekit.layers.shard import Shard
from rooflinekit.layers.splits import check_deployment

__all__ = [
    "Precision",
    "Shard",
    "check_deployment",
    "entry_operations",
    "exit_operations",
    "layer_operations",
    "model_operations",
    "resolve_precision",
    "stage_operations",
]

"""From a model and a deployment to the operations that one accelerator runs."""

from rooflinekit.model.layers.build import (
    entry_operations,
    exit_operations,
    layer_operations,
    model_operations,
    stage_operations,
)
from rooflinekit.model.layers.precision import Precision, resolve_precision
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.layers.splits import check_deployment

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

"""What fits on an accelerator: weights as an engine stores them, the activation peak, the cache and its blocks."""

from rooflinekit.model.memory.blocks import Layout, cache_layout
from rooflinekit.model.memory.footprint import Peak, activation_peak, allocated_bytes, resident_bytes

__all__ = ["Layout", "Peak", "activation_peak", "allocated_bytes", "cache_layout", "resident_bytes"]

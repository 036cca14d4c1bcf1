"""What one accelerator holds: weights as an engine stores them, the activation peak, and the blocks of the cache."""

from rooflinekit.footprint.activations import Peak, activation_peak
from rooflinekit.footprint.blocks import Layout, cache_layout
from rooflinekit.footprint.weights import allocated_bytes, resident_bytes

__all__ = ["Layout", "Peak", "activation_peak", "allocated_bytes", "cache_layout", "resident_bytes"]

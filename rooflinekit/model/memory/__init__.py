"""What fits on an accelerator: weights as an engine stores them, the activation peak, the cache and its blocks."""

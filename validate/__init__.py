"""The harness: runs real kernels and models on a device and measures them. It imports rooflinekit, never back."""

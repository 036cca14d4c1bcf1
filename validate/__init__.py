"""The harness that runs real kernels and models on a device and measures them; it imports rooflinekit, never the reverse."""

"""The types everything is built from: models, accelerators, deployments, batches, kernels; SI units, arrays welcome."""

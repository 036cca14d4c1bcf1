"""From a model and a deployment to the operations that one accelerator runs."""

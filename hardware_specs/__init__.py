"""Accelerator specs, one YAML file an accelerator; every number with its source."""

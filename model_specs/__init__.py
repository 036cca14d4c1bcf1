"""Model specs, one YAML file a model."""

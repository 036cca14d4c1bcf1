"""Systems, one YAML file each: accelerators, their links, and what joins several nodes."""

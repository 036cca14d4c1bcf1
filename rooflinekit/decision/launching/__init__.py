"""A deployment, or a whole plan, as what starts its servers: commands and configuration files."""

"""How long a test waits for another process [s]: long enough for a machine that is busy with other work."""

PATIENCE = 600.0

"""From load to latency: arrivals, the simulator of an engine's steps, and what users feel under load."""

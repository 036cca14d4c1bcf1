"""Engine profiles: one file an engine, one section a range of versions; read by `rooflinekit.specs.engines`."""

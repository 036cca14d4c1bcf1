"""Step tables as the loop reads them."""

from __future__ import annotations

from rooflinekit.load.arrays import Table


def constant_table(seconds: float, drafting: float = 0.0) -> Table:
    """A table of steps that all take the same time [s], for experiments and tests.

    >>> constant_table(0.5).dense
    [0.5]
    """
    flat = [0.0] * 4096
    return Table(
        dense=[seconds],
        counts=[1.0, 2.0],
        times=[seconds, seconds],
        pooled_dense=[],
        pooled_counts=[],
        pooled_times=[],
        sampled=flat,
        sequences=flat,
        grid=[0.0, float(1 << 40)],
        cells=[0],
        decode=[[0.0, 0.0]] * 4096,
        prefill=[[[0.0] * 4]],
        launch=0.0,
        width=1,
        replicas=1,
        floor=[0.0] * 3,
        graph_floor=[0.0] * 2,
        graph_tokens=0.0,
        sequence_floor=0.0,
        graphs=True,
        encoded=[],
        encoded_floor=0.0,
        budget=0,
        drafting=[drafting] * 4096 if drafting else [],
    )

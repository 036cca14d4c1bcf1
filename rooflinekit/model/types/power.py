"""What a board draws: idle, while kernels run, and for every FLOP and byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from rooflinekit.model.graph.symbol import about
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Power and energies of one accelerator's board, its memory included; watts and joules.

    flop: J/FLOP of matrix arithmetic by number format. padding: energy of a multiply that only fills a tile, over one
    that counts. limit: what the board may draw; held: the share of it that dense work draws in the end. widths: 90 %
    interval of a kernel's power, a factor either way, by its time between `edges` [s]; run_width: of a whole run's.
    """

    idle: float = field(metadata=about("P_idle", "board power between kernels", "W"))
    active: float = field(metadata=about("P_run", "board power while a kernel runs, besides its work", "W"))
    limit: float = field(metadata=about("P_max", "power limit of the board", "W"))
    held: float = field(metadata=about("held", "share of the limit that dense work draws"))
    flop: Mapping[Dtype, float]
    attention: float = field(metadata=about("e_a", "energy of attention arithmetic", "J/FLOP"))
    padding: float = field(metadata=about("z", "energy of a multiply that fills a tile, over one that counts"))
    memory: float = field(metadata=about("e_m", "energy of a byte from memory", "J/B"))
    cache: float = field(metadata=about("e_c", "energy of a byte from the last cache", "J/B"))
    link: float = field(metadata=about("e_n", "energy of a byte sent over a link", "J/B"))
    edges: tuple[float, ...]
    widths: tuple[float, ...]
    run_width: float
    source: str
    measured: bool  #: fitted to this accelerator's own kernels

    def at(self, clock: float) -> PowerLaw:
        """At a share of the clock, with the voltage that it needs: what the cores take falls with its square."""
        square = clock * clock
        return replace(
            self, active=self.idle + (self.active - self.idle) * square, cache=self.cache * square,
            attention=self.attention * square, flop={dtype: each * square for dtype, each in self.flop.items()},
        )  # fmt: skip

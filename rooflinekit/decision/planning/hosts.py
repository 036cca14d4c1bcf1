"""Replicas on hosts: how many machines a fleet takes, and what is left over on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rooflinekit.decision.planning.fleet import Part
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.answer import Plain


@dataclass(frozen=True)
class Hosts(Plain):
    """Machines of one accelerator.

    size: accelerators of each, the scale-up domain; count: machines; spare: accelerators that no replica has; packed:
    what stands on them, and how many stand so. watts_most: of a machine at the plug with its boards at their limit,
    None where that is not known; racks: of the stated power that hold all machines, None where none is stated, 0 where
    one holds no machine.
    """

    gpu: str
    size: int
    count: int
    spare: int
    packed: tuple[tuple[str, int], ...]
    watts_most: float | None = None
    racks: int | None = None

    def __str__(self) -> str:
        left = f", {self.spare} GPU{'s' if self.spare > 1 else ''} free" if self.spare else ""
        return f"{self.count:,} {self.kind}{'s' if self.count > 1 else ''} of {self.size} {self.gpu}{left}"

    @property
    def kind(self) -> str:
        """What a machine is called."""
        return "host" if self.size <= _HOST else "rack-scale domain"

    @property
    def power(self) -> str:
        """What each may draw, and the racks that hold them."""
        racks = "" if self.racks is None else f"; all fit in {self.racks:,} rack{'s' if self.racks > 1 else ''}"
        racks = "; a rack has no room for it" if self.racks == 0 else racks
        most = (self.watts_most or 0.0) / 1e3
        return f"a {self.kind} of {self.size} {self.gpu} draws {most:.3g} kW at most at the plug{racks}"

    @property
    def stands(self) -> str:
        """The same with what stands on them."""
        return f"{self}: {'; '.join(f'{count} x [{names}]' for names, count in self.packed)}"


_HOST = 16  # accelerators of one machine at most; a larger domain is a rack


def hosts_of(parts: Iterable[tuple[str, Part]], rack: float | None = None) -> tuple[Hosts, ...]:
    """Pack the named replicas of a fleet, the largest first, each onto the first host with room (first fit decreasing).

    Sizes that are powers of two leave no more hosts than any other packing. A replica larger than a host takes whole
    ones. Where hosts may fail, none holds more of a part than the spares of that part make up for. A rack of so many
    watts holds as many machines as draw that with their boards at their limit.
    """
    kinds: dict[str, list[tuple[int, str, Part]]] = {}
    for name, part in parts:
        kinds.setdefault(part.replica.gpu, []).append((part.replica.gpus, name, part))
    return tuple(_packed(gpu, several, rack) for gpu, several in kinds.items())


def _packed(gpu: str, several: list[tuple[int, str, Part]], rack: float | None) -> Hosts:
    system = several[0][2].replica.resolved.plan.system
    size, law = system.domain_size, system.accelerator.power
    hosts: Counter[tuple[int, _Names]] = Counter()  # how many have so much room left, and who stands there
    for gpus, name, part in sorted(several, key=lambda each: (-each[0], each[1])):
        left = part.replicas
        if gpus > size:
            whole = -(-gpus // size)
            hosts[0, ((f"1/{whole} of {name}", 1),)] += (whole - 1) * left
            hosts[whole * size - gpus, ((f"1/{whole} of {name}", 1),)] += left
            continue
        most = part.most_on_a_host
        for (room, names), there in [*hosts.items(), ((size, ()), left)]:
            count = there
            while left and count and (each := min(room // gpus, most, left)):
                many = min(count, left // each)
                hosts[room, names] -= many if names else 0
                hosts[room - each * gpus, (*names, (name, each))] += many
                left, count = left - many * each, count - many
    stands: Counter[str] = Counter()
    for (_, names), count in hosts.items():
        stands[", ".join(f"{many} x {name}" if many > 1 else name for name, many in dict(names).items())] += count
    spare = sum(room * count for (room, _), count in hosts.items())
    watts = None if law is None else float(plug_power(size * law.limit, law.host))
    held = int(rack / watts) if rack and watts else 0
    racks = -(-hosts.total() // held) if held else 0 if rack and watts else None
    return Hosts(gpu, size, hosts.total(), spare, tuple(each for each in stands.items() if each[1]), watts, racks)


_Names = tuple[tuple[str, int], ...]

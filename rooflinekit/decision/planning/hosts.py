"""Replicas on hosts: how many machines a fleet takes, and what is left over on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rooflinekit.decision.planning.fleet import Part
from rooflinekit.model.types.answer import Plain


@dataclass(frozen=True)
class Hosts(Plain):
    """Machines of one accelerator.

    size: accelerators of each, the scale-up domain; count: machines; spare: accelerators that no replica has; packed:
    what stands on them, and how many stand so.
    """

    gpu: str
    size: int
    count: int
    spare: int
    packed: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        what = "host" if self.size <= _HOST else "rack-scale domain"
        left = f", {self.spare} GPU{'s' if self.spare > 1 else ''} free" if self.spare else ""
        return f"{self.count:,} {what}{'s' if self.count > 1 else ''} of {self.size} {self.gpu}{left}"

    @property
    def stands(self) -> str:
        """The same with what stands on them."""
        return f"{self}: {'; '.join(f'{count} x [{names}]' for names, count in self.packed)}"


_HOST = 16  # accelerators of one machine at most; a larger domain is a rack


def hosts_of(parts: Iterable[tuple[str, Part]]) -> tuple[Hosts, ...]:
    """Pack the named replicas of a fleet, the largest first, each onto the first host with room (first fit decreasing).

    Sizes that are powers of two leave no more hosts than any other packing. A replica larger than a host takes whole
    ones. Where hosts may fail, none holds more of a part than the spares of that part make up for.
    """
    kinds: dict[str, list[tuple[int, str, Part]]] = {}
    for name, part in parts:
        kinds.setdefault(part.replica.gpu, []).append((part.replica.gpus, name, part))
    return tuple(_packed(gpu, several) for gpu, several in kinds.items())


def _packed(gpu: str, several: list[tuple[int, str, Part]]) -> Hosts:
    size = several[0][2].replica.resolved.plan.system.domain_size
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
        stands[_words(dict(names))] += count
    spare = sum(room * count for (room, _), count in hosts.items())
    return Hosts(gpu, size, hosts.total(), spare, tuple(each for each in stands.items() if each[1]))


_Names = tuple[tuple[str, int], ...]


def _words(names: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())

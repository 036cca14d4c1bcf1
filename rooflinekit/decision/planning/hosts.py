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
        left = f", {self.spare} GPU{'s' if self.spare > 1 else ''} spare" if self.spare else ""
        many = f"{self.count:,} {what}{'s' if self.count > 1 else ''} of {self.size} {self.gpu}{left}"
        stand = "; ".join(f"{count} x [{names}]" for names, count in self.packed)
        return f"{many}: {stand}"


_HOST = 16  # accelerators of one machine at most; a larger domain is a rack


def hosts_of(parts: Iterable[tuple[str, Part]]) -> tuple[Hosts, ...]:
    """Pack the named replicas of a fleet, the largest first, each onto the first host with room (first fit decreasing).

    Sizes that are powers of two leave no more hosts than any other packing. A replica larger than a host takes whole
    ones.
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    sizes: dict[str, int] = {}
    for name, part in parts:
        replica = part.replica
        sizes[replica.gpu] = replica.resolved.plan.system.domain_size
        kinds.setdefault(replica.gpu, []).extend([(replica.gpus, name)] * part.replicas)
    return tuple(_packed(gpu, sizes[gpu], replicas) for gpu, replicas in kinds.items())


def _packed(gpu: str, size: int, replicas: list[tuple[int, str]]) -> Hosts:
    hosts: list[tuple[int, Counter[str]]] = []  # room left, and who stands there
    open_at = 0
    for gpus, name in sorted(replicas, key=lambda each: (-each[0], each[1])):
        if gpus > size:
            whole = -(-gpus // size)
            hosts += [(0, Counter({f"1/{whole} of {name}": 1}))] * (whole - 1)
            hosts.append((whole * size - gpus, Counter({f"1/{whole} of {name}": 1})))
            continue
        place = next((at for at in range(open_at, len(hosts)) if hosts[at][0] >= gpus), None)
        if place is None:
            hosts.append((size, Counter()))
            place = len(hosts) - 1
        hosts[place] = hosts[place][0] - gpus, hosts[place][1] + Counter({name: 1})
        while open_at < len(hosts) and not hosts[open_at][0]:
            open_at += 1
    stands = Counter(_words(names) for _, names in hosts)
    return Hosts(gpu, size, len(hosts), sum(left for left, _ in hosts), tuple(stands.items()))


def _words(names: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())

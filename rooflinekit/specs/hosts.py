"""Hosts of accelerators by class: what the launch of one kernel takes (hosts.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.hardware import Provenance
from rooflinekit.specs.files import Parsed, kept
from rooflinekit.specs.section import Cites, FileLayout, FileSection

_OF_FITS = "h100-server"  # whose launch the costs of engines have
_LEAST, _MOST = 1.0, 1000.0  # us of a launch that make sense


class _Class(FileLayout):
    launch: Any
    spread: Any
    source: Cites
    note: str = ""


class _HostsFile(FileLayout):
    hosts: Mapping[str, object]
    usual: Mapping[str, tuple[str, ...]]
    sources: Parsed


@dataclass(frozen=True)
class HostClass:
    """A host: its time of one launch without a CUDA graph [s], one standard error, and where they come from.

    relative: the time over that of a host as engine costs were fitted with; 0 where it is told in microseconds.
    """

    launch: float
    spread: float
    provenance: Provenance
    relative: float = 0.0

    def of(self, launch: float) -> HostClass:
        """The host under an engine whose launch takes this long [s] on the host of the fits: all of it is slower.

        >>> round(host_of("a100-server", "h100-sxm").of(5e-6).launch * 1e6, 2)
        8.46
        """
        if not self.relative:
            return self
        own = launch * self.relative
        provenance = replace(self.provenance, value=own)
        return replace(self, launch=own, spread=self.spread * own / self.launch, provenance=provenance)


def host_of(text: str | None, accelerator: str) -> HostClass | None:
    """The host that is named, by its class or its launch in microseconds; else the usual one of an accelerator.

    None where that is the host of the fits.

    >>> host_of("40", "h100-sxm").launch, host_of(None, "a100-sxm-80gb").launch, host_of(None, "h200-sxm")
    (4e-05, 4.4e-05, None)
    """
    hosts, usual = kept(_read, Path(__file__).with_name("hosts.yaml"))
    if text is None:
        named = next((name for name, chips in usual.items() if accelerator in chips), None)
        return None if named is None else hosts[named]
    if text in hosts:
        return hosts[text]
    try:
        each = float(text.removesuffix("us"))
    except ValueError:
        raise UnknownNameError("host", text, [*hosts, "40 (us of a launch)"]) from None
    if not _LEAST <= each <= _MOST:
        raise InputError(f"host {text}: a launch of {each:g} us makes no sense; write {_LEAST:g} to {_MOST:g}")
    return HostClass(each * 1e-6, 0.0, Provenance("engine.launch", each * 1e-6, "s", "--host"))


def _read(path: Path) -> tuple[dict[str, HostClass], Mapping[str, tuple[str, ...]]]:
    root = FileSection.open(path)
    file, listed = root.read(_HostsFile), root.section("hosts")
    hosts = {}
    for name in file.hosts:
        part = listed.section(name)
        entry = part.read(_Class)
        launch, spread = (part.quantity_in(key, getattr(entry, key), "s") for key in ("launch", "spread"))
        said = Provenance(f"engine.launch ± {entry.spread}", launch, "s", part.titles(entry.source))
        hosts[str(name)] = HostClass(launch, spread, said)
    hosts = {name: replace(host, relative=host.launch / hosts[_OF_FITS].launch) for name, host in hosts.items()}
    for name in file.usual:
        if name not in hosts:
            root.refuse("usual", f"{name!r} is none of the hosts: {', '.join(hosts)}")
    return hosts, file.usual

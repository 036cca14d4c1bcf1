"""Law of a board's power: the law fitted to its own kernels, else that of the nearest chip, scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rooflinekit.model.types.hardware import Accelerator, HostPower, PowerLaw, Provenance
from rooflinekit.specs.files import kept, read_yaml
from rooflinekit.specs.places import spec_dir

_PICO = 1e-12
_US = 1e-6


def power_law(accelerator: Accelerator, memory: str, own: str | None) -> PowerLaw | None:
    """The law of an accelerator with this type of memory; None where its power limit is not known.

    `own`: the name under which it may have a law of its own. Else that of the nearest chip with measured kernels
    serves: idle and running power keep their share of the limit; a FLOP keeps its share of limit/peak, which holds
    process, voltage and format; a byte costs what its type of memory takes beside the other's. Where one package feeds
    GPU and CPU, what the CPU draws while the GPU works comes on top.
    """
    limit = accelerator.tdp_w
    if not limit:
        return None
    file = _file()
    rule, chips = file["transfer"], file["chips"]
    near = rule["architecture"].get(accelerator.architecture.partition(" ")[0])
    name = own if own in chips else near or rule["generic"]
    chip, pico = chips[name], rule["memory"]
    scale, byte = limit / chip["limit"], 1.0
    if near:  # the same chip under another limit: what it takes besides its work grows no further
        scale = min(scale, 1.0)
    wider, source = 1.0, chip["source"]
    if name != own:
        byte = pico.get(memory.partition("-")[0], pico["other"]) / pico[chip["memory_type"]]
        wider = rule["widening"]["architecture" if near else "generic"]
        source = f"{name} scaled by power limit, peak and type of memory ({rule['source']})"
    shares = {dtype: chip["arithmetic"].get(dtype.value, chip["arithmetic"]["bf16"])[0] for dtype in accelerator.peaks}
    width = chip["interval"]["width"]
    host = 0.0
    if own in file["packages"]:
        host = file["packages"][own]["host"][0]
        source += f"; CPU cores of the package: {file['packages'][own]['source']}"
    idle, running = chip["idle"][0] * scale, chip["active"][0] * scale
    return PowerLaw(
        idle=idle, active=running + host, limit=limit, held=chip["held"][0],
        waiting=idle + file["waiting"]["share"] * (running - idle),
        flop={dtype: share * limit / accelerator.peaks[dtype] for dtype, share in shares.items()},
        padding=chip["padding"][0], memory=chip["memory"][0] * byte * _PICO, cache=chip["cache"][0] * _PICO,
        link=rule["link"] * _PICO,
        edges=tuple(edge * _US for edge in chip["interval"]["edges"]), widths=tuple(each * wider for each in width),
        run_width=file["runs"]["width"], source=source, measured=name == own,
        host=_host(own), **_asking(accelerator, limit, own),
    )  # fmt: skip


def _asking(accelerator: Accelerator, limit: float, own: str | None) -> dict[str, Any]:
    """Power that a FLOP asks for at the clock of a burst, where bursts and sustained passes were compared."""
    known = _file()["asked"]
    if own not in known["accelerators"]:
        return {}
    each = {dtype: known["share"][0] * limit / peak for dtype, peak in accelerator.peaks.items()}
    return {"ask": each, "settled": known["settled"][0] * 1e-3}


def _host(own: str | None) -> HostPower:
    """The machine around an accelerator: as its kind was seen to draw, else as a fleet does."""
    known = _file()["hosts"]
    kinds = {name: each for name, each in known.items() if name != "supply"}
    kind = next((each for each in kinds.values() if own in each.get("accelerators", ())), kinds["other"])
    return HostPower(kind["cpu"], kind["rest"], known["supply"], kind["source"])


class PowerBench(NamedTuple):
    """Benchmark with a meter: what its board waits before a kernel, and what one replay of it is."""

    pause: float = 0.0  #: before any kernel [s]
    pause_per_byte: float = 0.0  #: more of it for a byte of weights and keys [s/B]
    launches: float = 1.0  #: of the kernel, in one replay
    call: float = 0.0  #: least time of a replay that the host launches itself [s]
    pause_per_token: float = 0.0  #: more of the pause for a token of the sequences [s]


def power_benches(name: str) -> Mapping[str, PowerBench]:
    """The benchmarks behind an accelerator's law by engine, operation and format."""
    known: Mapping[str, list[float]] = _file()["chips"].get(name, {}).get("bench", {})
    return {
        bench: PowerBench(least, each * 1e-9, launches, call * 1e-3, token * 1e-6)
        for bench, (least, each, launches, call, token) in known.items()
    }


def _file() -> dict[str, Any]:
    return kept(read_yaml, spec_dir("accelerator") / "calibrations" / "power.yaml")


def power_provenance(law: PowerLaw) -> list[Provenance]:
    """The law's numbers with their source."""
    units = dict.fromkeys(("idle", "waiting", "active"), "W") | {"held": "share"}
    units |= dict.fromkeys(("memory", "cache", "link"), "J/B") | {"padding": "share"}
    entries = [Provenance(f"power.{name}", float(getattr(law, name)), unit, law.source) for name, unit in units.items()]
    host = {name: float(getattr(law.host, name)) for name in ("cpu", "rest", "supply")}
    entries += [Provenance(f"host.{name}", each, "share", law.host.source) for name, each in host.items()]
    if law.ask:
        said = str(_file()["asked"]["source"])
        entries += [Provenance("power.settled", law.settled, "s", said)]
        entries += [Provenance(f"power.asked.{dtype.value}", each, "J/FLOP", said) for dtype, each in law.ask.items()]
    return entries + [
        Provenance(f"power.flop.{dtype.value}", each, "J/FLOP", law.source) for dtype, each in law.flop.items()
    ]

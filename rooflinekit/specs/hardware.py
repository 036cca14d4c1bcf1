"""Accelerator and system files: read strictly, checked against physics, each number with its source and confidence."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DeploymentError, RooflinekitError, SpecError
from rooflinekit.model.types.hardware import Accelerator, Price, Provenance, System
from rooflinekit.specs import sanity
from rooflinekit.specs.files import Parsed, kept, once, refuse_cut
from rooflinekit.specs.locate import Loaded, names, resolve, scanned_aliases
from rooflinekit.specs.places import spec_dir
from rooflinekit.specs.power import power_law
from rooflinekit.specs.section import EMPTY, Cites, Count, FileLayout, FileSection, described

_DATE = re.compile(r"\d{4}(?:-\d{2}){0,2}")
_DOMAINS = 1024
"""Domains that a network joins at most: above any deployment, as for a system without a file."""
_EXAMPLE = Path(__file__).with_name("accelerator_template.yaml")

_Bytes = Annotated[float, "B"]
_ByteRate = Annotated[float, "B/s"]
_Clock = Annotated[float, "Hz"]
_Price = Annotated[float, "USD/h"]


class _Cited(FileLayout):
    """Facts that share their sources and their confidence; `assumed` says why where no source gives a number."""

    confidence: Literal["A", "B", "C"]
    source: Cites
    assumed: Mapping[str, str] = EMPTY


class _Compute(_Cited):
    flops_per_clock_per_core: Mapping[Dtype, Annotated[float, "FLOP"]] = EMPTY
    dense: Mapping[Dtype, Annotated[float, "FLOP/s"]]
    unusual: Mapping[Dtype, str] = EMPTY


class _Memory(_Cited):
    label: _Bytes
    capacity: _Bytes
    visible: _Bytes = 0.0
    type: str
    bandwidth: _ByteRate


class _Cores(_Cited):
    kind: str
    tensor_clock: _Clock = 0.0
    shared_memory: _Bytes = 0.0
    l2: _Bytes = 0.0
    last_level_cache: _Bytes = 0.0
    max_clock: _Clock = 0.0
    base_clock: _Clock = 0.0
    count: Count
    tile_rows: Count = Accelerator.tile_rows


class _Links(_Cited):
    kind: str
    pcie: _ByteRate = 0.0
    pcie_generation: int = 0
    domain_size: Count
    bandwidth: _ByteRate = 0.0
    nic: _ByteRate = 0.0


class _Power(_Cited):
    tdp: Annotated[float, "W"] = 0.0


class _Quote(_Cited):
    usd_per_hour: _Price
    low: _Price | None = None
    high: _Price | None = None
    date: str
    basis: str = ""


class _File(FileLayout):
    """The keys of an accelerator file; sections keep their order in the provenance."""

    title: str
    vendor: str
    architecture: str
    release_year: Count
    compute_capability: str = ""
    aliases: tuple[str, ...] = ()
    ambiguous_aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: Parsed
    compute: _Compute
    memory: _Memory
    cores: _Cores
    links: _Links
    power: _Power | None = None
    price: _Quote | None = None


class _Domain(_Cited):
    kind: str
    size: Count
    bandwidth: _ByteRate = 0.0
    in_switch: bool = False


class _Network(_Cited):
    nic: _ByteRate


class _SystemFile(FileLayout):
    title: str
    accelerators: tuple[str, ...]
    sources: Parsed
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    domain: _Domain
    network: _Network | None = None


def accelerator_template() -> str:
    """A commented accelerator file with example values; it loads as it stands.

    >>> accelerator_template().splitlines()[0]
    '# An accelerator for rooflinekit. Replace every value; delete optional lines that you do not know.'
    """
    return _EXAMPLE.read_text(encoding="utf-8")


def load_accelerator(name: str | os.PathLike[str]) -> Loaded[Accelerator]:
    """The accelerator that a name, an alias or a path means, in SI units, with what the user should know about it.

    >>> load_accelerator("h100-sxm").value.memory_bandwidth
    3350000000000.0
    """
    found = resolve("accelerator", name)
    accelerator, findings = kept(_checked, found.value)
    return Loaded(accelerator, (*found.warnings, *findings))


def _checked(path: Path) -> tuple[Accelerator, tuple[str, ...]]:
    facts = read_facts(path)
    findings = sanity.findings(facts)
    for finding in findings:
        if finding.refused:
            raise SpecError(str(finding))
    refuse_cut(path)
    return facts.accelerator, tuple(map(str, findings))


def read_facts(path: Path) -> sanity.AcceleratorFacts:
    """Facts of an accelerator file, not yet checked against physics."""
    root = FileSection.open(path, "`rooflinekit show --template gpu` prints an example")
    file = root.read(_File)
    compute, memory, cores, links, price = file.compute, file.memory, file.cores, file.links, file.price
    if file.aliases != scanned_aliases(path):
        root.refuse("aliases", "cannot be searched; write them on one line near the top, like aliases: [a, b]")
    if not compute.dense:
        root.refuse("compute.dense", "is empty; give at least one dense peak, like bf16: 989.4 TFLOP/s")
    link_bandwidth = links.bandwidth or (links.pcie if links.kind == "pcie" else 0.0)
    if links.domain_size > 1 and not link_bandwidth:
        problem = "is missing; give it, or set kind to pcie and give pcie, or domain_size to 1"
        root.refuse("links.bandwidth", problem)
    accelerator = Accelerator(
        name=path.stem,
        title=file.title,
        vendor=file.vendor,
        architecture=file.architecture,
        peaks=compute.dense,
        memory_bytes=memory.capacity,
        reserved_bytes=memory.capacity - (memory.visible or memory.capacity),
        memory_bandwidth=memory.bandwidth,
        l2_bytes=cores.last_level_cache or cores.l2,
        cores=cores.count,
        link_bandwidth=link_bandwidth,
        domain_size=links.domain_size,
        nic_bandwidth=links.nic,
        pcie_bandwidth=links.pcie,
        clock_hz=cores.max_clock,
        tdp_w=file.power.tdp if file.power else 0.0,
        link_kind=links.kind,
        release_year=file.release_year,
        compute_capability=file.compute_capability,
        memory_type=memory.type,
        price=None if price is None else _price(root, price),
        tile_rows=cores.tile_rows,
        is_cpu=cores.kind == "core",
        noun=_NOUNS.get(cores.kind, "accelerator"),
        aliases=file.aliases,
        notes=file.notes,
        provenance=tuple(_provenance(root, file)),
        sources=tuple(root.sources.values()),
        origin=str(path),
    )
    own = path.stem if path.parent == spec_dir("accelerator") else None
    accelerator = replace(accelerator, power=power_law(accelerator, memory.type, own))
    return sanity.AcceleratorFacts(
        accelerator,
        label_bytes=memory.label,
        memory_type=memory.type,
        label_is_binary=root.section("memory").text("label").endswith("iB"),
        flops_per_clock=compute.flops_per_clock_per_core,
        tensor_clock_hz=cores.tensor_clock,
        pcie_generation=links.pcie_generation,
        unusual=compute.unusual,
    )


_NOUNS = {"core": "CPU", "CU": "GPU", "GPU core": "GPU", "SM": "GPU", "Xe core": "GPU"}  # by the kind of its cores


def counted_chips(count: int, *gpus: str) -> str:
    """So many accelerators in words; of several kinds, or of one that nobody knows, by the wide word.

    >>> counted_chips(2, "h100-sxm"), counted_chips(1, "cpu-xeon-8480-2s"), counted_chips(3, "h100-sxm", "tpu-v6e")
    ('2 GPUs', '1 CPU', '3 accelerators')
    """
    return f"{count:,} {noun_of(*gpus)}{'' if count == 1 else 's'}"


def noun_of(*gpus: str) -> str:
    """Word for accelerators by their names or paths.

    >>> noun_of("tpu-v6e"), noun_of("mi300x", "h100-sxm")
    ('accelerator', 'GPU')
    """
    nouns = set()
    for gpu in gpus:
        try:
            nouns.add(load_accelerator(gpu).value.noun)
        except RooflinekitError:
            nouns.add("accelerator")
    return nouns.pop() if len(nouns) == 1 else "accelerator"


def _price(root: FileSection, quote: _Quote) -> Price:
    if not _DATE.fullmatch(quote.date):
        root.refuse("price.date", f"value {quote.date!r} is not a date; write it like '2026-05' or '2026-05-20'")
    return Price(quote.usd_per_hour, quote.date, quote.basis or root.titles(quote.source), quote.low, quote.high)


def load_system(name: str | os.PathLike[str], accelerator: Accelerator) -> Loaded[System]:
    """The system that a name, an alias or a path means, built of `accelerator`.

    >>> from rooflinekit.specs import load_accelerator
    >>> load_system("gb200-nvl72", load_accelerator("gb200").value).value.domain_size
    72
    """
    found = resolve("system", name)
    file, provenance = kept(_read_system, found.value)
    if not _holds(file, accelerator):
        others = [f"--gpu {chip}" for chip in file.accelerators[:1] if chip != "cards"]
        others += [f"--system {other}" for other in systems_of(accelerator)]
        raise DeploymentError(
            f"{found.value.stem} is built of {' or '.join(file.accelerators)}, not {accelerator.name}; "
            + (f"use {', or '.join(others)}" if others else "leave --system out")
        )
    return Loaded(_system(file, provenance, found.value.stem, accelerator), found.warnings)


def systems_of(accelerator: Accelerator, several: bool = False) -> list[str]:
    """Names of the systems that are built of an accelerator; with `several`, of those that a network joins."""
    files = {name: kept(_read_system, resolve("system", name).value)[0] for name in names("system")}
    return [name for name, file in files.items() if _holds(file, accelerator) and (file.network or not several)]


def _holds(file: _SystemFile, accelerator: Accelerator) -> bool:
    """True if it is built of an accelerator; `cards` is every one in a slot, with or without a bridge."""
    card = accelerator.link_kind == "pcie" or accelerator.link_kind.endswith("bridge")
    return accelerator.name in file.accelerators or (card and "cards" in file.accelerators)


@once
def _system(file: _SystemFile, provenance: tuple[Provenance, ...], name: str, accelerator: Accelerator) -> System:
    domain, nic = file.domain, file.network.nic if file.network else 0.0
    reach = domain.size * _DOMAINS if nic else domain.size
    links = domain.bandwidth or (accelerator.pcie_bandwidth if domain.kind == "pcie" else 0.0)
    return System(accelerator, domain.size, reach, name, links, nic, domain.in_switch, provenance=provenance)


def _read_system(path: Path) -> tuple[_SystemFile, tuple[Provenance, ...]]:
    root = FileSection.open(path)
    file = root.read(_SystemFile)
    if not file.accelerators:
        root.refuse("accelerators", "is empty; name the accelerators that it is built of")
    if file.domain.size > 1 and file.domain.kind != "pcie" and not file.domain.bandwidth:
        root.refuse("domain.bandwidth", "is missing; only kind pcie has that of each accelerator's own slot")
    refuse_cut(path)
    return file, tuple(_provenance(root, file))


def _provenance(root: FileSection, file: object) -> Iterator[Provenance]:
    """Origin of each number of the cited sections, in the order of their types."""
    for part, cited in vars(file).items():
        if not isinstance(cited, _Cited):
            continue
        section, kind = root.section(part), type(cited)
        hints = {key: hint for key, hint in described(kind)[1].items() if key not in _Cited.__annotations__}
        section.section("assumed").expect((), hints)
        for key, hint in hints.items():
            kinds = (hint, *get_args(hint))  # the number's own, of one that may be absent, or of a mapping
            unit = next((each.__metadata__[0] for each in kinds if get_origin(each) is Annotated), None)
            if unit is None or not section.has(key):
                continue
            reason = cited.assumed.get(key)
            source = f"assumed: {reason}" if reason else section.titles(cited.source)
            value = getattr(cited, key)
            for name, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                label = section.path(f"{key}.{name}" if name else key)
                yield Provenance(label, number, unit, source, "C" if reason else cited.confidence)

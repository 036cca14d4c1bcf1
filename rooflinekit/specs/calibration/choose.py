"""Choice of the calibration that stands in where there is none; the rule is data, beside the calibrations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rooflinekit.model.timing.calibrated import Calibration, Fits
from rooflinekit.model.types.deployment import ENGINES
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import UnknownNameError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.specs.calibration.load import SERVED, calibration_names, carried, load_calibration, transfer_rule
from rooflinekit.specs.files import once
from rooflinekit.specs.hardware import load_accelerator
from rooflinekit.specs.places import spec_dir

_ALIKE = 0.15  # of the larger peak
REACH = {
    "engine": "another engine on the same accelerator",
    "sibling": "the same architecture at the same peak",
    "architecture": "the same architecture",
    "generation": "the nearest generation",
    "maker": "another architecture of the same maker",
    "generic": "an accelerator of another kind",
}


def choose_calibration(accelerator: Accelerator, engine: str) -> tuple[Calibration, str | None]:
    """The calibration shipped for this accelerator and engine, else the nearest one and a sentence that says so.

    Same accelerator with another engine first, then the same architecture, the nearest generation, the generic one
    (which of the same maker is a reach of its own); of an engine with kernels of its own its fits come before all;
    the interval is widened by what a transfer of that reach was measured to cost (calibrations/transfer.yaml).
    """
    known = calibration_names()
    own = f"{accelerator.name}--{engine}"
    if own in known and _is_shipped(accelerator):
        return load_calibration(own), None
    donor = next(name for name, _ in donors(accelerator, engine) if name in known)
    return stand_in(load_calibration(donor), accelerator, engine, home=_is_shipped(accelerator))


@once
def for_serving(calibration: Calibration) -> Calibration:
    """The calibration without fits of kernels that no server runs so.

    They ran untuned in the benchmark (calibrations/transfer.yaml), or by another algorithm than the engine's default:
    then the calibration has another fit under the same key, that ends in `SERVED`.
    """
    given = Fits.of(calibration.families).makers
    run = {given[key.removesuffix(SERVED)]: maker for key, maker in given.items() if key.endswith(SERVED)}
    families, untuned = {key: run.get(maker, maker) for key, maker in given.items()}, {}
    for entry in transfer_rule()["untuned"]:
        of = calibration.accelerator in entry["accelerators"] and calibration.engine.split()[0] in entry["engines"]
        for key in [key for key in families if of and key.startswith(entry["fit"])]:
            label = key.removeprefix(entry["fit"])
            if label[:1] in ("", "/") and entry["instead"] + label in families:
                families[key] = families[entry["instead"] + label]
                untuned[entry["fit"]] = entry["instead"]
    return replace(calibration, families=Fits(families), untuned=untuned) if untuned or run else calibration


@once
def stand_in(
    calibration: Calibration, accelerator: Accelerator, engine: str, *, home: bool = True
) -> tuple[Calibration, str | None]:
    """The calibration as it serves for this accelerator and engine: as it is at home, wider elsewhere, and says so.

    `home` False: an accelerator of the same name is another one (a user's file that is called like a known chip).
    """
    name = f"{calibration.accelerator}--{calibration.engine.split()[0]}"
    if home and name == f"{accelerator.name}--{engine}":
        return calibration, None
    rule, reach = transfer_rule(), reach_of(calibration, accelerator, engine)
    note = (
        f"no measurements of {accelerator.name} with {engine}: those of {name} are used ({REACH[reach]}). "
        f"Their wider intervals held {rule['tested'][reach]} of the kernels of accelerators left out"
    )
    families, wider = _carried(calibration, accelerator, reach).makers, widening(reach)
    if lender := _linked_alike(calibration, accelerator, engine):
        reach = reach_of(lender, accelerator, engine)
        own = _carried(lender, accelerator, reach).makers
        families = {key: maker for key, maker in families.items() if not key.startswith(_SENT)}
        families |= {key: maker for key, maker in own.items() if key.startswith(_SENT)}
        kin = _same_maker(accelerator, lender.accelerator)
        wider |= {_SENT: widening("architecture" if kin else reach)[_SENT]}  # over links alike, by one library
    return replace(calibration, families=Fits(families), widening=wider, power=None), note


def _carried(calibration: Calibration, accelerator: Accelerator, reach: str) -> Fits:
    """The fits of a calibration as they serve on another accelerator; one under two keys stays one."""
    return Fits.of(calibration.families).changed(lambda fit: carried(fit, calibration.accelerator, accelerator, reach))


_SENT = "collective"


def _linked_alike(calibration: Calibration, accelerator: Accelerator, engine: str) -> Calibration | None:
    """The calibration whose collectives ran over links of the accelerator's kind, where this one's did not."""
    kind = accelerator.link_kind
    chip = transfer_rule()["links"].get(kind)
    if chip is None or load_accelerator(calibration.accelerator).value.link_kind == kind:
        return None
    known = [name for name in calibration_names() if name.partition("--")[0] == chip]
    return load_calibration(f"{chip}--{engine}" if f"{chip}--{engine}" in known else known[0])


def widening(reach: str) -> dict[str, float]:
    """Factor on an interval by family, after a transfer of this reach."""
    return {key: float(each) for key, each in transfer_rule()["widening"][reach].items()}


def serving_engine(name: str) -> str:
    """The engine that runs a library's kernels (calibrations/transfer.yaml); an engine runs its own."""
    libraries = transfer_rule()["libraries"]
    if name not in libraries and name not in ENGINES:
        raise UnknownNameError("engine", name, [known for known in ENGINES if known != "ideal"])
    return str(libraries.get(name, name))


def reach_of(calibration: Calibration, accelerator: Accelerator, engine: str) -> str:
    """Reach of a calibration that serves here: one of `REACH`."""
    name = f"{calibration.accelerator}--{calibration.engine.split()[0]}"
    return next((reach for donor, reach in donors(accelerator, engine) if donor == name), "generic")


def _is_shipped(accelerator: Accelerator) -> bool:
    """True if it is the library's own, and not a file of the user's that happens to share a name."""
    return Path(accelerator.origin).parent == spec_dir("accelerator")


def _alike(accelerator: Accelerator, name: str) -> bool:
    """True if the peaks in 16 bit are alike: one chip with another memory, link or power."""
    peaks = [
        max((each.peak(dtype) for dtype in (Dtype.BF16, Dtype.FP16) if each.supports(dtype)), default=0.0)
        for each in (accelerator, load_accelerator(name).value)
    ]
    return min(peaks) > (1.0 - _ALIKE) * max(peaks)


def _stacked(accelerator: Accelerator, name: str) -> bool:
    """True if both have stacked memory on the package (HBM), or neither has."""
    stacked = (chip.memory_type.startswith("HBM") for chip in (accelerator, load_accelerator(name).value))
    return len({*stacked}) == 1


def _kin(accelerator: Accelerator, name: str) -> bool:
    """True if a chip of an architecture's name has its kind of memory and of matrix units too.

    RTX PRO 6000 (GDDR7, compute capability 12.0) is called Blackwell as B200 is (HBM3e, 10.0): its prefill attention
    was 51 % off by a B200's fit. GB300 was 6 to 9 % off by a B300's.
    """
    units = [each.compute_capability.partition(".")[0] for each in (accelerator, load_accelerator(name).value)]
    return _stacked(accelerator, name) and units[0] == units[1]


def _same_maker(accelerator: Accelerator, name: str) -> bool:
    """True if libraries of one maker run on both."""
    return accelerator.vendor == load_accelerator(name).value.vendor


def donors(accelerator: Accelerator, engine: str) -> Iterator[tuple[str, str]]:
    """Names of calibrations by growing distance, there or not, each with what it reaches across."""
    rule = transfer_rule()
    engines = [engine, *(each for each in rule["engines"] if each != engine)]
    family = accelerator.architecture.split()[0] if accelerator.architecture else ""
    near = rule["architecture"].get(accelerator.architecture, []) + rule["architecture"].get(family, [])
    own = rule["own_kernels"].get(engine, {})
    for name in next((own[key] for key in (accelerator.architecture, family, accelerator.vendor) if key in own), ()):
        alike = load_accelerator(name).value.architecture.split()[:1] == [family]
        yield f"{name}--{engine}", "architecture" if alike else "maker"
    places = [(accelerator.name, "engine")] if _is_shipped(accelerator) else []
    others = dict.fromkeys(name for name in near if name != accelerator.name)
    kin = [name for name in others if _kin(accelerator, name)]
    places += [(name, "sibling" if _alike(accelerator, name) else "architecture") for name in kin]
    further = dict.fromkeys([*rule["generation"].get(family, []), *(name for name in others if name not in kin)])
    places += [(name, "generation") for name in sorted(further, key=lambda name: not _stacked(accelerator, name))]
    places.append((rule["generic"], "maker" if _same_maker(accelerator, rule["generic"]) else "generic"))
    for name, reach in places:
        for each in engines:
            yield f"{name}--{each}", reach

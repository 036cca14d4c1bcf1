"""System files: which accelerators, how many share links, and what joins those; each number with its source."""

from __future__ import annotations

import os
from pathlib import Path

from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.hardware import Accelerator, System
from rooflinekit.specs.cited import Cited, read_sources
from rooflinekit.specs.locate import Loaded, names, read_yaml, resolve
from rooflinekit.specs.section import Section

__all__ = ["load_system"]

_TOP = (("title", "accelerators", "domain", "sources"), ("aliases", "network", "notes"))
_DOMAIN = (("kind", "size", "bandwidth"), ("in_switch",))
_DOMAINS = 1024
"""Domains that a network joins at most: above any deployment, as for a system without a file."""


def load_system(name: str | os.PathLike[str], accelerator: Accelerator) -> Loaded[System]:
    """The system that a name, an alias or a path means, built of `accelerator`.

    >>> from rooflinekit.specs import load_accelerator
    >>> load_system("gb200-nvl72", load_accelerator("gb200").value).value.domain_size
    72

    Raises UnknownNameError for an unknown name, SpecError for a file that cannot be trusted, DeploymentError where the
    system is built of another accelerator.
    """
    found = resolve("system", name)
    root = Section(found.path, "", read_yaml(found.path))
    root.expect(*_TOP)
    built_of = root.texts("accelerators")
    if accelerator.name not in built_of:
        others = [
            other for other in names("system")
            if accelerator.name in read_yaml(resolve("system", other).path).get("accelerators", ())
        ]  # fmt: skip
        raise DeploymentError(
            f"{found.path.stem} is built of {' or '.join(built_of)}, not {accelerator.name}; "
            f"use --gpu {built_of[0]}" + (f", or --system {' or '.join(others)}" if others else "")
        )
    return Loaded(_system(root, accelerator), found.warnings)


def _system(root: Section, accelerator: Accelerator) -> System:
    sources = read_sources(root.section("sources"))
    domain = Cited.of(root.section("domain"), sources, *_DOMAIN)
    size = domain.count("size")
    network = Cited.of(root.section("network"), sources, ("nic",)) if root.has("network") else None
    nic = network.quantity("nic", "B/s") if network else 0.0
    bandwidth = domain.quantity("bandwidth", "B/s")
    return System(
        accelerator,
        size,
        size * _DOMAINS if nic else size,
        Path(root.file).stem,
        bandwidth,
        nic,
        domain.section.flag("in_switch") if domain.section.has("in_switch") else False,
        (*domain.provenance, *(network.provenance if network else ())),
    )

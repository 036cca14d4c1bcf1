"""What became slower, one line each; then what the limits rest on. And the same as JUnit XML."""

from __future__ import annotations

import re
from statistics import median
from typing import Any
from xml.etree import ElementTree as ET

from rooflinekit.evidence.guard import Check, Guarded
from rooflinekit.model.types.units import format_time, percent
from rooflinekit.report.document import WIDTH, Document, Items, Section, footer, three

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SAID = {"baseline": "in the baseline", "prediction": "predicted"}


class _Lines(Items):
    """Items of which each is one line, however long: what reads them counts lines."""

    def text(self, width: int = WIDTH) -> list[str]:
        return [*self.lines]


def rows(found: Guarded) -> list[dict[str, Any]]:
    """One flat row for each check, the regressions first."""
    checks = sorted(found.to_dict()["checks"], key=lambda row: not row["regressed"])
    return [row | {"against": found.against, "version": found.version} for row in checks]


def line(row: Check, against: str) -> str:
    """A check in one line."""
    measured, expected = (three(value) if row.rate else format_time(value) for value in (row.measured, row.expected))
    share = f", {percent(row.share)} of the suite's time" if row.share is not None else ""
    change, limit = (percent(each, 1, signed=True) for each in (row.change, row.limit))
    told = f"{row.name}: {measured}, {expected} {_SAID[against]} ({change} time, limit {limit}{share})"
    return f"{told}; {row.cause}" if row.cause else told


def document(found: Guarded) -> Document:
    """The answer: how many, which, and why one may believe it."""
    slow = [line(row, found.against) for row in found.regressions]
    title = f"{len(slow)} of {len(found.checks)} rows regressed against the {found.against}"
    faster = sum(row.change < -row.limit for row in found.checks) if found.against == "baseline" else 0
    more = [f"{faster} rows are faster by more than their limit; a new baseline would hold them"] if faster else []
    half, every = (percent(each(row.detectable for row in found.checks), 1) for each in (median, max))
    found_in = "any row" if half == every else f"half of the rows, one of {every} in all"
    limits = f"noise: {found.noise}" if found.against == "baseline" else f"limit: {found.noise}"
    limits += f"; a slow-down of {half} is found in {found_in}"
    return [Section(title, [_Lines(*slow)]), footer(limits, (*more, *found.notes), found.version)]


def junit_xml(found: Guarded) -> str:
    """JUnit XML: a test for every row, and a failure for every regression.

    >>> from rooflinekit.evidence.guard import Check, Guarded
    >>> print(junit_xml(Guarded("baseline", (Check("gemm", 1e-3, 1e-3, False, 0.0, 0.1, 0.2, 1.0),), "")))
    <testsuite name="rooflinekit guard" tests="1" failures="0">
      <testcase classname="baseline" name="gemm" />
    </testsuite>
    """
    suite = ET.Element("testsuite", name="rooflinekit guard", tests=str(len(found.checks)),
                       failures=str(len(found.regressions)))  # fmt: skip
    for row in found.checks:
        case = ET.SubElement(suite, "testcase", classname=found.against, name=_NO_XML.sub("?", row.name))
        if row.regressed:
            ET.SubElement(case, "failure", message=_NO_XML.sub("?", line(row, found.against)))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode")

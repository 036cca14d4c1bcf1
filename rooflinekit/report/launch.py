"""A launch as a table of its settings, and as its script."""

from __future__ import annotations

from rooflinekit.decision.launching.launch import Launch, launch_script
from rooflinekit.model.types.answer import Json
from rooflinekit.report.document import CellTable, Document, FixedLines, Section


def rows(launch: Launch) -> list[Json]:
    """One row a setting: server, flag, value, why, where it was read."""
    rows = list[Json]()
    for server in launch.servers:
        engine = {key: getattr(server.prediction, key) for key in ("engine", "version")}
        for each in server.settings:
            value = "" if each.value is None else each.value
            why = {"flag": each.flag, "value": value, "because": each.because, "source": each.source}
            rows.append({"server": server.role, **engine, **why})
    return rows


def document(launch: Launch) -> Document:
    """The script, and a table that says why each flag is what it is."""
    cells = [[str(row[key]) for key in ("server", "flag", "value", "because")] for row in rows(launch)]
    table = CellTable(["server", "flag", "value", "because"], cells, left=range(4))
    return [Section("", [FixedLines(launch_script(launch).splitlines(), "sh"), table])]

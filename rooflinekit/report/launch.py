"""A launch as a table of its settings, and as its script."""

from __future__ import annotations

from rooflinekit.decision.launching.launch import Launch, launch_script
from rooflinekit.model.types.answer import Json
from rooflinekit.report.document import CellTable, Document, FixedLines, Section


def rows(launch: Launch) -> list[Json]:
    """One row a setting: server, flag, value, why, where it was read."""
    return [
        {
            "server": server.role,
            "engine": server.prediction.engine,
            "version": server.prediction.version,
            "flag": setting.flag,
            "value": "" if setting.value is None else setting.value,
            "because": setting.because,
            "source": setting.source,
        }
        for server in launch.servers
        for setting in server.settings
    ]


def document(launch: Launch) -> Document:
    """The script, and a table that says why each flag is what it is."""
    cells = [[str(row[key]) for key in ("server", "flag", "value", "because")] for row in rows(launch)]
    table = CellTable(["server", "flag", "value", "because"], cells, left=range(4))
    return [Section("", [FixedLines(launch_script(launch).splitlines(), "sh"), table])]

"""A launch as a table of its settings, and as Markdown."""

from __future__ import annotations

from typing import Any

from rooflinekit.decision.launching.launch import Launch, launch_script

__all__ = ["launch_markdown", "launch_rows"]


def launch_rows(launch: Launch) -> list[dict[str, Any]]:
    """One row a setting: server, flag, value, why, where it was read."""
    return [
        {
            "server": server.role, "engine": server.prediction.engine, "version": server.prediction.version,
            "flag": setting.flag, "value": "" if setting.value is None else setting.value,
            "because": setting.because, "source": setting.source,
        }
        for server in launch.servers
        for setting in server.settings
    ]  # fmt: skip


def launch_markdown(launch: Launch) -> str:
    """The script as a block, and a table that says why each flag is what it is."""
    rows = [f"| {_cell(r['server'])} | `{r['flag']}` | {_cell(r['value'])} | {_cell(r['because'])} |"
            for r in launch_rows(launch)]  # fmt: skip
    table = ["| server | flag | value | because |", "|:--|:--|:--|:--|", *rows]
    return "\n".join(("```sh", launch_script(launch).rstrip(), "```", "", *table)) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("`", "'")

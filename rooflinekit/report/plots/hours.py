"""A picture of a plan over time: accelerators by the hour, the fleet for the peak above them, the load below."""

from __future__ import annotations

from matplotlib.ticker import MaxNLocator

from rooflinekit.decision.planning.over_time import OverTime
from rooflinekit.decision.planning.plan import PlanAnswer
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.plots.picture import Picture
from rooflinekit.report.plots.style import Frame, Theme, legend
from rooflinekit.version import __version__


def hours(answer: PlanAnswer | OverTime, theme: Theme) -> Picture:
    """The first month's fleet by the hour, and the requests that it carries."""
    made = answer.over_time if isinstance(answer, PlanAnswer) else answer
    if made is None:
        raise InputError("nothing to draw: the plan has one peak; give profile, or growth")
    rows = [row for row in made.intervals if row.month == 1]
    ends = [row.hour for row in rows] + [made.span_h]
    frame = Frame("The fleet by the hour", f"{made.deployment}, {made.profile}", f"rooflinekit {__version__}", theme)
    figure, (fleet, load) = frame.panels(7.2, 3.6, 2, ncols=1, height_ratios=[2, 1])
    fleet.stairs([row.gpus for row in rows], ends, fill=True, color=theme.tint("weights"), alpha=0.6, gid="gpus",
                 label="by the hour")  # fmt: skip
    peak = max(row.gpus for row in rows)
    fleet.axhline(peak, color=theme.ink, lw=1.0, ls="--", label="for the peak")
    load.stairs([row.rate for row in rows], ends, color=theme.ink, gid="rate", baseline=None)
    for panel, name, top in ((fleet, "GPUs", peak), (load, "requests/s", max(row.rate for row in rows))):
        panel.set(ylabel=name, xlim=(0.0, made.span_h), ylim=(0.0, top * 1.08))
        panel.yaxis.set_major_locator(MaxNLocator(4, integer=panel is fleet))
    load.set_xlabel("hour")
    fleet.tick_params(labelbottom=False)
    legend(fleet)
    return Picture("hours", frame.title, made.answer, figure, theme)

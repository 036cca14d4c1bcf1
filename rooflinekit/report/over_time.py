"""A plan over time: replicas by the hour with bars, months, terms, and when to buy."""

from __future__ import annotations

from rooflinekit.decision.planning.over_time import OverTime
from rooflinekit.report.document import Document, Facts, Section, Table, Words, amount, notes, three

_ROWS, _BAR = 24, 24  # rows of a table at most, and letters of a bar


def document(made: OverTime) -> Document:
    """The answer, then hours, months and terms."""
    return [
        Section(f"over time: {made.profile}", [Words(made.answer)]),
        Section("", [_hours(made)]),
        Section("", [_months(made)]),
        Section("", [_terms(made)]),
        Section("", [_policies(made)]),
        Section("", [_tco(made)]),
        Section("", [notes(made.warnings)]),
    ]


def _tco(made: OverTime) -> Facts:
    """One accelerator a month."""
    if made.tco is None:
        return Facts()
    each, said = made.tco, made.tco.inputs
    owned = f"${each.capital_usd:,.2f} capital + ${each.running_usd:,.2f} power, racks and staff = "
    owned += f"${each.capital_usd + each.running_usd:,.2f} a GPU and month"
    terms = f"${said.purchase:,.0f} a GPU over {said.years:g} years at {said.interest:.1%}, {said.residual:.0%} left"
    given = f"{terms}, ${said.power_price:g}/kWh, PUE {said.pue:g}"
    return Facts(("owning", owned), ("", given))


def _policies(made: OverTime) -> Table:
    """The cheapest setting of each policy for each cold start, the best with a star."""
    if made.autoscaling is None:
        return Table([], [])
    head = ["cold start", "policy", "target", "within", "GPU-hours", "$ a month", "changes/h", "back/h", "holds"]
    return Table(head, [
        [f"{each.cold_start_s:.0f} s", f"{each.policy}{'*' if each is made.autoscaling.best else ''}",
         f"{each.target:.0%}", f"{min(each.attained.values()):.2%}", f"{each.gpu_hours_per_month:,.0f}",
         amount(each.usd_per_month, 0), f"{each.changes_per_hour:.2f}", f"{each.reversals_per_hour:.2f}",
         "yes" if each.meets else "no"]
        for each in made.autoscaling.policies
    ], left=(1,), gap=1, drop=(4,))  # fmt: skip


def _hours(made: OverTime) -> Table:
    """The first month: of more than 24 intervals the largest fleet of each of 24 parts."""
    rows = [row for row in made.intervals if row.month == 1]
    if len(rows) == 1:
        return Table([], [])
    size = -(-len(rows) // _ROWS)
    shown = [max(rows[start : start + size], key=lambda row: row.gpus) for start in range(0, len(rows), size)]
    starts = [rows[start].hour for start in range(0, len(rows), size)]
    most = max(row.gpus for row in shown)
    head = ["hour", "req/s", "replicas", "GPUs", "$/h", ""]
    cells = [[f"{start:g}", three(row.rate), f"{row.replicas:,}", f"{row.gpus:,}", amount(row.usd_per_hour),
              "█" * max(round(_BAR * row.gpus / most), 1)]
             for start, row in zip(starts, shown, strict=True)]  # fmt: skip
    return Table(head, cells, left=(5,))


def _months(made: OverTime) -> Table:
    if len(made.months) == 1:
        return Table([], [])
    bought = {month: more for month, more, _ in made.buy}
    head = ["month", "peak req/s", "GPUs", "buy", "GPU-hours", "$ by the hour", "$ for the peak"]
    return Table(head, [
        [str(row.month), three(row.peak_rate), f"{row.gpus:,}", f"{bought.get(row.month, 0) or ''}",
         f"{row.gpu_hours:,.0f}", amount(row.usd, 0), amount(row.peak_usd, 0)]
        for row in made.months
    ])  # fmt: skip


def _terms(made: OverTime) -> Table:
    if not made.saved_usd:
        return Table([], [])
    head = ["paid as", "$/GPU-hour", "GPUs at most", "GPU-hours", "$"]
    return Table(head, [
        [each.term, f"{each.usd_per_gpu_hour:.2f}", f"{each.gpus:,.0f}", f"{each.gpu_hours:,.0f}", amount(each.usd, 0)]
        for each in made.paid
    ])  # fmt: skip

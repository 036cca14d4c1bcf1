"""Pages of one deployment, of a plan, of a sweep: sections in order, and the data behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias

from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS
from rooflinekit.explanation.walk.front import shapes
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.report.page.deployment import Deployed, accountant, foot_notes, kernel_tables, lead, slider_data
from rooflinekit.report.page.derivation import derivation_card
from rooflinekit.report.page.offers import make_offers
from rooflinekit.report.page.plan import chosen_replica, plan_cards, plan_data, plan_lead
from rooflinekit.report.page.render import Page, card, paragraphs, render
from rooflinekit.report.page.rows import rows_card, rows_data, rows_lead
from rooflinekit.report.page.sections import (
    accuracy_card,
    provenance_card,
    simulation_card,
    simulation_data,
    walk_card,
)
from rooflinekit.report.page.words import title
from rooflinekit.report.walk_page import walk_page
from rooflinekit.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.simulation.outcome import Outcome

__all__ = ["deployment_page", "plan_page", "table_page"]

Offered: TypeAlias = tuple[Sequence[str] | None, Sequence[str] | None]
"""Models and accelerators that the sliders offer besides; None: the usual ones."""

_NOTHING: Offered = (None, None)
_TOKENS = 6  # of the walk's prompt


def deployment_page(
    model: str,
    gpu: str,
    scenario: dict[str, Any],
    against: dict[str, Any] | None = None,
    extras: tuple[Outcome | None, bool, Offered] = (None, True, _NOTHING),
) -> tuple[str, str]:
    """Title and page of one deployment; extras: a simulation, whether the walk is in it, what sliders offer."""
    outcome, walk, offered = extras
    deployed, other = Deployed.of(model, gpu, scenario), None
    if against is not None:
        changed = scenario | against
        other = Deployed.of(str(changed.pop("model", model)), str(changed.pop("gpu", gpu)), changed)
    framed, card_of_walk = _walk(deployed) if walk else ("", "")
    data, functions = slider_data(make_offers(deployed.asked, *offered), deployed, other)
    data["walk"] = framed or None
    before = ""
    if outcome is not None:
        before, data["simulation"] = f'<div class="wrap">{simulation_card(outcome)}</div>', simulation_data(outcome)
    named = title(deployed.answer) + (f", against {title(other.answer)}" if other else "")
    page = Page(named, lead(deployed) + _other(other), before, accountant(deployed), _after(deployed, card_of_walk),
                foot_notes(deployed.answer), data, functions, (framed,) if framed else ())  # fmt: skip
    return named, render(page)


def plan_page(plan: Mapping[str, Any], offered: Offered = _NOTHING) -> tuple[str, str]:
    """Title and page of a plan (as `read_plan` gives it), with the accountant on the deployment that it chose."""
    named, data, parts, functions = f"Plan for {plan['model']}", {"plan": plan_data(plan)}, ("", "", ""), ""
    try:
        chosen = chosen_replica(plan)
        deployed = Deployed.of(chosen.model, chosen.gpu, chosen.scenario)
    except RooflinekitError as error:  # a model or a file that is not on this machine
        parts = "", paragraphs([f"The chosen deployment cannot be looked into here: {error}"]), _foot(plan["version"])
    else:
        more, functions = slider_data(make_offers(deployed.asked, *offered), deployed, None)
        data |= more
        heading = f"<h1>{chosen.heading}: {escape(title(deployed.answer))}</h1>"
        told_of = f'<div class="wrap">{heading}{lead(deployed, chosen.pool)}</div>'
        parts = told_of + accountant(deployed), _after(deployed, ""), foot_notes(deployed.answer)
    middle, after, foot = parts
    return named, render(Page(named, plan_lead(plan), plan_cards(plan), middle, after, foot, data, functions))


def table_page(table: pd.DataFrame, name: str) -> tuple[str, str]:
    """Title and page of a sweep's rows.

    Raises InputError where no column is an answer.
    """
    data = rows_data(table)
    named = f"Sweep of {data['total']:,} {'row' if data['total'] == 1 else 'rows'}"
    page = Page(
        named,
        paragraphs([rows_lead(data, name)], "answer"),
        rows_card(data),
        foot=_foot(__version__),
        data={"table": data},
    )
    return named, render(page)


def _foot(version: str) -> str:
    return paragraphs([f"rooflinekit {version}. This page loads and sends nothing."])


def _other(other: Deployed | None) -> str:
    if other is None:
        return ""
    return f"<h1>Against {escape(title(other.answer))}</h1>{lead(other)}"


def _after(deployed: Deployed, walk: str) -> str:
    tables = f"<details><summary>Both steps as tables</summary>{kernel_tables(deployed.answer)}</details>"
    parts = [walk, derivation_card(deployed), accuracy_card(deployed.asked.plan),
             card("Kernels", tables), provenance_card(deployed.answer)]  # fmt: skip
    return f'<div class="wrap">{"".join(parts)}</div>'


def _walk(deployed: Deployed) -> tuple[str, str]:
    """The step-through page of shapes, and the card it stands in, which says why it is absent."""
    given = {key: value for key, value in deployed.asked.scenario.items() if key in DEPLOYMENT_KEYS}
    try:
        page = walk_page(shapes(deployed.asked.model, deployed.asked.gpu, tokens=_TOKENS, **given))
    except RooflinekitError as error:
        return "", walk_card(f"The walk does not take this deployment: {error}.", stepped=False)
    return page, walk_card("Every tensor of a prompt of six tokens, through prefill and one decode step.")

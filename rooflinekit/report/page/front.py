"""The front door of reports: names and keywords in, one HTML file out."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rooflinekit.report.page.deployment import Deployed, accountant, foot_notes, kernel_tables, lead, slider_data
from rooflinekit.report.page.offers import make_offers
from rooflinekit.report.page.render import Page, card, render
from rooflinekit.report.page.words import title

__all__ = ["deployment_page"]


def deployment_page(model: str, gpu: str, scenario: dict[str, Any], against: dict[str, Any] | None = None,
                    offered: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)) -> str:  # fmt: skip
    """A page on one deployment."""
    deployed = Deployed.of(model, gpu, scenario)
    other = None if against is None else Deployed.of(against.pop("model", model), against.pop("gpu", gpu), scenario | against)
    offers = make_offers(deployed.asked, *offered)
    after = card("Kernels", f"<details><summary>Both steps as tables</summary>{kernel_tables(deployed.answer)}</details>")
    return render(Page(
        title(deployed.answer), lead(deployed), accountant=accountant(deployed), after=f'<div class="wrap">{after}</div>',
        foot=foot_notes(deployed.answer), data=slider_data(deployed, offers, other),
    ))  # fmt: skip

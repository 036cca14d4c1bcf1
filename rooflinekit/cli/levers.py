"""`rooflinekit levers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.options import Plots, PowerPrice, Price, Pue, Purchase, Years, with_options_of
from rooflinekit.cli.output import Format, emit, rendered
from rooflinekit.cli.pictures import check_pictures, write_pictures
from rooflinekit.specs.writing import check_target

__all__ = ["levers"]

_WITHOUT = ("rate", "requests", "burstiness", "isl_cv", "osl_cv", "ttft", "tpot", "draft_tree", "draft_tp", "allow_oom")


@with_options_of(estimate, *_WITHOUT)
def levers(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    by: Annotated[str, typer.Option(help="Ranks the moves: cost, tpot, ttft or throughput.")] = "cost",
    price: Price = None,
    purchase: Purchase = None,
    years: Years = None,
    power_price: PowerPrice = None,
    pue: Pue = None,
    gpus: Annotated[str | None, typer.Option(help="Others to try: a,b=USD; default: those with a price.")] = None,
    models: Annotated[str | None, typer.Option(help="Other models to compare: a,b.")] = None,
    prefix: Annotated[float | None, typer.Option(help="Share of each prompt that a prefix cache would hold.")] = None,
    draft: Annotated[str | None, typer.Option(help="A draft to try: a model, medusa, eagle, mtp or ngram.")] = None,
    plots: Plots = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    **scenario: Any,
) -> None:
    """Say what would help a deployment most: elasticities, weights or cache, and moves ranked by gain."""
    from rooflinekit.decision.sensitivity.levers import levers as found_levers
    from rooflinekit.report.levers import levers_text

    if out is not None:
        check_target(out, force)
    if plots is not None:
        check_pictures(plots, "levers", force)
    found = found_levers(
        model, by=by, price=price, purchase=purchase, years=years, power_price=power_price, pue=pue, gpus=gpus,
        models=models, prefix=prefix, draft=draft, **scenario,
    )  # fmt: skip
    if plots is not None:
        write_pictures(found, plots, force)
    emit(rendered(found, format, found.to_rows, levers_text), out, force)

"""`rooflinekit cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.options import Count, PowerPrice, Price, Pue, Purchase, Years, with_options_of
from rooflinekit.cli.output import Format, emit, rendered
from rooflinekit.specs.writing import check_target

__all__ = ["cost"]

_WITHOUT = (
    "batch", "context", "rate", "requests", "burstiness", "isl_cv", "osl_cv", "ttft", "tpot",
    "draft", "draft_tokens", "acceptance", "draft_tree", "draft_tp", "allow_oom", "plots",
)  # fmt: skip


@with_options_of(estimate, *_WITHOUT)
def cost(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, or path to a config.json or its folder.")],
    isl: Annotated[str, typer.Option(help="Prompt length: 1024, uniform:100-200, lognormal:mean=900,cv=1.")] = "1024",
    osl: Annotated[str, typer.Option(help="Output length, likewise.")] = "256",
    concurrency: Annotated[int | None, Count("Sequences that run at once (default: as many as fit).")] = None,
    utilisation: Annotated[float, typer.Option(help="Share of the paid time that the replica works.")] = 1.0,
    price: Price = None,
    purchase: Purchase = None,
    years: Years = None,
    power_price: PowerPrice = None,
    pue: Pue = None,
    turns: Annotated[int, Count("Turns of a conversation.")] = 10,
    question: Annotated[int, Count("Tokens that each turn of it asks; --osl answer.")] = 100,
    system_prompt: Annotated[int, Count("Tokens before its first turn.")] = 500,
    calls: Annotated[int, Count("Calls of an agent's run.")] = 20,
    agent_prompt: Annotated[int, Count("Tokens before its first call: instructions, tools.")] = 4000,
    tool_result: Annotated[int, Count("Tokens that each call of it reads.")] = 800,
    tool_call: Annotated[int, Count("Tokens that each call of it writes.")] = 100,
    shared_prompt: Annotated[
        bool, typer.Option("--shared-prompt", help="Both prompts are in the cache already: others use them too.")
    ] = False,
    long_context: Annotated[int | None, Count("Tokens of a long context (default: 131072, or the model's).")] = None,
    reserve: Annotated[int | None, Count("Tokens that a static layout sets aside (default: the longest).")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    **scenario: Any,
) -> None:
    """Price cached, input and output tokens, dialogues and long contexts, and say why output costs more."""
    from rooflinekit.decision.economics.cost import cost as found_cost
    from rooflinekit.report.cost import cost_text

    if out is not None:
        check_target(out, force)
    found = found_cost(
        model, isl=isl, osl=osl, concurrency=concurrency, utilisation=utilisation,
        price=price, purchase=purchase, years=years, power_price=power_price, pue=pue,
        turns=turns, question=question, system_prompt=system_prompt, calls=calls, agent_prompt=agent_prompt,
        tool_result=tool_result, tool_call=tool_call, shared_prompt=shared_prompt, long_context=long_context,
        reserve=reserve, **scenario,
    )  # fmt: skip
    emit(rendered(found, format, found.to_rows, cost_text), out, force)

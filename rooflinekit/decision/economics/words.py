"""Why an output token costs more than an input token, in a sentence."""

from __future__ import annotations

from rooflinekit.decision.economics.asymmetry import TokenWork
from rooflinekit.decision.economics.token_prices import TokenTimes

__all__ = ["why"]


def why(times: TokenTimes, given: TokenWork, made: TokenWork, experts: bool = False) -> str:
    """Set the FLOP of the two beside their bytes and their time; `experts`: not every token visits every weight."""
    load = times.load
    context = float(load.isl) + float(load.osl) / 2.0
    weights = f"{made.shared_by:.0f} tokens share one reading of the weights in a decode step, {given.shared_by:.0f}"
    fewer = " (an expert's only those that visit it)" if experts else ""
    return (
        f"An output token takes {made.flops / given.flops:.2f} x the FLOP of an input token and "
        f"{made.seconds / given.seconds:.1f} x its time: {weights} in a prompt{fewer}; and for each output token "
        f"a sequence reads its own cache of about {context:,.0f} tokens, which all tokens of a prompt share."
    )

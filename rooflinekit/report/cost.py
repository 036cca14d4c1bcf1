"""Costs: prices, why, dialogues, a long context, what caching saves; and of a trace, prefix reuse."""

from __future__ import annotations

from rooflinekit.decision.economics.cost import Cost, PriceResult
from rooflinekit.decision.economics.retention import Retained, TraceAnswer
from rooflinekit.model.types.units import format_bytes, format_count, format_time, percent, significant
from rooflinekit.report import document as blocks
from rooflinekit.report.document import CellTable, Document, Items, Section, Words, apart, ms, three


def document(found: Cost) -> Document:
    """The whole answer."""
    i, p = found.inputs, found.prices
    cached = f" ({i['cached']} cached)" if i["cached"] else ""
    at_once = f"{p.running:.0f} sequences at once" + ("" if i["concurrency"] else " (as many as fit)")
    if i["rate"]:
        at_once = f"{i['rate']:g} requests/s, {p.running:.0f} sequences in a step"
    asked = f"{i['isl']} tokens in{cached}, {i['osl']} out, {at_once}; weights {i['weights']}, kv {i['kv']}"
    busy = "busy all the time" if p.utilisation >= 1.0 else f"working {percent(p.utilisation)} of the time"
    each = f"{p.gpus} x ${significant(p.usd_per_gpu_hour)} ({p.source})"
    hour = f"${significant(p.replica_usd_per_hour)} an hour: {each}, {busy}"
    work = [
        [name, format_count(w.flops), format_bytes(w.weight_bytes), format_bytes(w.kv_bytes), format_time(w.seconds)]
        for name, w in (("input token", found.reason.input), ("output token", found.reason.output))
    ]
    costs = Words(f"{hour}. 1,000 requests cost ${significant(1e3 * p.request_usd)}.", indent="")
    power = (Words(words, indent="") for words in _power(p)) if p.watts is not None else ()
    return [
        Section(f"cost of {blocks.headed(found, p.gpus)}", [Words(asked)]),
        *apart(costs, _prices(p), *power),
        Section("why output costs more than input", [Words(found.reason.sentence, indent="")]),
        *apart(CellTable(["each GPU", "FLOP", "weights", "cache", "time of the replica"], work)),
        *_dialogues(found),
        *_contexts(found),
        Section("room for sequences", [_room(found)]),
        Section("memory and recomputing", [Items(*_memory(found))]),
        blocks.ended(found),
    ]


def _prices(p: PriceResult) -> CellTable:
    spans = p.interval or {}
    rows = []
    for kind in ("cached", "input", "output"):
        name = f"{kind}_usd_per_million"
        ends = " – ".join(significant(end) for end in spans[name]) if name in spans else "-"
        energy = three(getattr(p, f"joules_per_{kind}_token"))
        rows.append([f"{kind} token", significant(getattr(p, name)), ends, energy])
    return CellTable(["", "$/Mtok", "90 %", "J/token at the meter"], rows)


def _power(p: PriceResult) -> tuple[str, str]:
    """Power of the replica at the meter, and energy of its output, prompts included; power at the plug of a machine."""
    carbon = "" if p.co2_kg_per_million_output is None else f", {significant(p.co2_kg_per_million_output)} kg of CO2"
    board, node, most = p.board_watts or 0.0, p.node_watts or 0.0, p.node_watts_most or 0.0
    racked = f"; a rack holds {p.rack_nodes} of them: {significant((p.rack_watts or 0.0) / 1e3)} kW"
    racked = "" if p.rack_nodes is None else racked
    return (
        f"{significant((p.watts or 0.0) / 1e3)} kW at the meter; a million output tokens with their prompts take "
        f"{significant(p.kwh_per_million_output or 0.0)} kWh{carbon}; {p.output_tok_s_per_mw:,.0f} tok/s a MW",
        f"each GPU {board:.0f} W, {node / p.node_gpus:.0f} W at the plug with its share of the host. A node of "
        f"{p.node_gpus} draws {significant(node / 1e3)} kW, at most {significant(most / 1e3)} kW{racked}",
    )


def _dialogues(found: Cost) -> list[Section]:
    """Costs of dialogues with a cache and without, and the lengths that they have."""
    header = ["", "turns", "with cache", "without", "saved", "last turn", "without"]
    rows, lengths = [], []
    for name, cost in (("conversation", found.conversation), ("agent", found.agent)):
        if cost is None:
            continue
        usd = (cost.usd, cost.usd_without_cache, cost.last_turn_usd, cost.last_turn_usd_without_cache)
        whole, bare, last, last_bare = (significant(1e3 * value) for value in usd)
        rows.append([name, str(cost.turns), whole, bare, percent(cost.saving), last, last_bare])
        turn = f"{cost.asked_tokens} in and {cost.answered_tokens} out a turn"
        sent = f"{cost.sent_tokens:,.0f} prompt tokens are sent, {cost.computed_tokens:,.0f} computed with the cache"
        lengths.append(f"{name}: {cost.system_tokens} tokens of system prompt, {turn}; {sent}")
    return [Section("conversations and agents: $ per 1,000", [CellTable(header, rows)]), *apart(Items(*lengths))]


def _contexts(found: Cost) -> list[Section]:
    """An ordinary context beside a long one, which takes the place of several."""
    header = ["context", "TTFT alone", "$ per 1,000 prompts", "$/Mtok output", "fit", "KV per GPU"]
    far, near = found.long_context, found.ordinary_context
    rows, displaced = [], list[str]()
    for cost in filter(None, (near, far)):
        usd = [significant(1e3 * cost.prompt_usd), significant(cost.output_usd_per_million)]
        rows.append([f"{cost.context:,}", ms(cost.ttft_ms), *usd, str(cost.slots), format_bytes(cost.kv_bytes)])
    if far is not None:
        times = far.output_usd_per_million / near.output_usd_per_million
        place = f"a sequence of {far.context:,} tokens takes the place of {far.displaced:.0f} ordinary ones"
        displaced.append(f"{place}; its output tokens cost {times:.0f} x as much")
    return [Section("a long context", [CellTable(header, rows)]), *apart(Words(*displaced, indent=""))]


def _room(found: Cost) -> CellTable:
    """The share of the cache's room in use, and the sequences that fit, by how room is given away."""
    w = found.waste
    rows = [
        [f"reserved for {w.reserved_tokens:,.0f} tokens", percent(w.reserved_used, 1), f"{w.reserved_sequences:,}"],
        ["reserved for the final length", percent(w.final_used, 1), f"{w.final_sequences:,}"],
        [f"in blocks of {w.block}", percent(w.paged_used, 1), f"{w.paged_sequences:,}"],
    ]
    return CellTable(["", "in use", "sequences"], rows)


def _memory(found: Cost) -> list[str]:
    r, p, e = found.recompute, found.prices, found.eviction
    lines = [
        f"Without a KV cache one request takes {r.flops_ratio:,.0f} x the FLOP and {r.time_ratio:.1f} x the time "
        f"({ms(r.naive_ms)}, not {ms(r.cached_ms)}). Each token computes the sequence again.",
        f"In a full pool a million cached tokens cost ${significant(p.holding_usd_per_million_hours)} an hour. Keep a "
        f"token that is used again within {format_time(p.break_even_hold_s)}.",
    ]
    if e is None:
        return lines
    crossings = " and ".join(f"{tokens:,.0f}" for tokens in e.crossings)
    where = f"both take as long at {crossings} tokens" if e.crossings else f"and at every length up to {e.longest:,}"
    return [
        *lines,
        f"Evicting {e.length:,} tokens ({format_bytes(e.kv_bytes)} a GPU): to swap them out and in takes "
        f"{ms(e.swap_ms)}, to compute them again {ms(e.recompute_ms)}. {e.choice.capitalize()} is faster here, "
        f"{where}. Over a host link of {significant(e.break_even_link_gb_s)} GB/s both take as long.",
    ]


_MOST = 10  # sizes of a cache in the table


def trace_document(found: TraceAnswer) -> Document:
    """The whole answer."""
    rate = "all at once"
    if found.rate is not None:
        rate = f"{significant(found.rate)} a second, gaps with cv {significant(found.gap_cv or 0.0)}"
    asked = f"{found.requests:,} requests in {format_time(found.duration_s)}, {rate}"
    spreads = {"tokens in": found.isl, "tokens out": found.osl}
    lengths = [[name, *(f"{value:,.0f}" for value in spread.values())] for name, spread in spreads.items()]
    return [
        Section(f"{found.trace}, {found.format}", [Words(asked)]),
        *apart(CellTable(["", "mean", "p50", "p90", "p99", "max"], lengths)),
        *(() if found.hit_rate is None else _reused(found)),
        blocks.footer("", found.warnings, found.version),
    ]


def _reused(found: TraceAnswer) -> list[Section]:
    shared = f", of {found.replicas} replicas ({found.router})" if found.replicas > 1 else ""
    ages = ", ".join(f"{name} {format_time(value)}" for name, value in found.reuse_s.items())
    lines = [f"a prefix cache without end{shared} finds {percent(found.hit_rate or 0.0, 1)} of the prompt tokens"]
    lines += [f"time since the use before, of blocks of {found.block_tokens} that come back: {ages}"] if ages else []
    told = Words(*lines, indent="")
    if found.deployment is None:
        rows = [[format_count(tokens), percent(share, 1)] for tokens, share in found.curve[::-2][:_MOST][::-1]]
        return [Section("prefix reuse", [told, CellTable(["cache of a replica", "found"], rows)])]
    name = f"{found.deployment['model']} on {found.replicas} x {found.deployment['gpus']} {found.deployment['gpu']}"
    head = ["memory", "tokens", "found", "TTFT", "knee /s", "$/Mtok", "keep for", "load from"]
    table = CellTable(head, [_row(each) for each in found.memories], drop=(4,))
    return [Section("prefix reuse", [told]), Section(f"gain of each memory tier: {name}", [table])]


def _row(each: Retained) -> list[str]:
    keep = "-" if each.keep_s is None else format_time(each.keep_s)
    load = "-" if each.load_gb_s is None else f"{significant(each.load_gb_s)} GB/s"
    gained = [percent(each.hit_rate, 1), ms(each.ttft_ms, "piles up"), three(each.knee_rate)]
    return [each.memory, format_count(each.tokens), *gained, three(each.usd_per_million), keep, load]

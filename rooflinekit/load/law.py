"""The law of a full engine: what a deployment can sustain at most, from mean steps, without playing.

    λ = q/t(D, q)             an engine that mixes: q prompts begin in a step, D = q·n sequences decode in it
    λ = D/(n·t(D) + D·t_p)    prompts in steps of their own: a turn of D sequences, and t_p for each prompt
    λ = D/(n·t(D))            prompts that were computed elsewhere

An answer of N tokens takes n = (N − 1)/E decode steps; a step gives E tokens of a draft, 1 without one.

With lanes of pipeline stages each has its share of the places; all of them pass the busiest stage in turn. D fills the
places and the cache, and where it mixes, leaves room for the prompts in the token budget: D·w + q·S ≤ B.
A prompt comes whole, or in pieces that fill a step: where fewer than one begins in a step, a share of the steps holds
one. It is an approximation (lengths at their means; lanes whose steps differ in length leave stages idle, so that it is
an upper bound there), and an answer that rests on it alone says so.
"""

from __future__ import annotations

from typing import NamedTuple

from rooflinekit.load.arrays import Rules, Table
from rooflinekit.load.loop import run_time, saved_time, tokens_time
from rooflinekit.model.types.speculation import expected_tokens


class FullEngine(NamedTuple):
    """A turn of an engine whose places are taken: prompts that begin in it, its decode steps and its prompts [s]."""

    begun: float
    decode: float
    prompts: float

    @property
    def rate(self) -> float:
        """Requests a second [1/s]."""
        return self.begun / (self.decode + self.prompts)


def full_rate(tables: tuple[Table, Table], rules: Rules, isl: float, osl: float, cached: float = 0.0) -> float:
    """Requests a second that one replica sustains at most, at mean lengths [1/s].

    Args:
        tables: the step tables.
        rules: the engine's limits.
        isl: mean tokens of a prompt.
        osl: mean tokens of an answer.
        cached: of the prompt, already in the cache.

    >>> from rooflinekit.load.policies import Limits, rules_of
    >>> from rooflinekit.load.table import constant_table
    >>> rules = rules_of(Limits(max_num_seqs=4, token_budget=1024), blocks=1000, block=16)
    >>> full_rate(constant_table(0.01).arrays, rules, 8.0, 5.0)  # four sequences of five steps each
    80.0
    """
    return full_engine(tables, rules, isl, osl, cached).rate


def full_engine(tables: tuple[Table, Table], rules: Rules, isl: float, osl: float, cached: float = 0.0) -> FullEngine:
    """A turn at these mean lengths; arguments as of `full_rate`."""
    table, _ = tables
    new, replicas, width = max(isl - cached, 1.0), table.replicas, table.width
    places = max(_places(rules, isl, osl) / rules.lanes, 1.0)
    after = _decode_steps(rules, osl)
    budget = float(rules.budget * rules.engines)
    context = isl + osl / 2.0
    if rules.imports:
        decoding = max(min(places, budget / width), 1.0)
        decode = _decode_time(tables, decoding, context) if after > 0.0 else 0.0
        return FullEngine(rules.lanes * decoding, after * decode * _crowd(table.decode_stage, rules), 0.0)
    if not rules.mixes:
        together = max(min(budget // new, places), 1.0)
        prompts = _prompts_time(table, together / replicas, new, cached)
        decode = _decode_time(tables, places, context) if after > 0.0 else 0.0
        turns = places / together * prompts * _crowd(table.prompt_stage, rules)
        return FullEngine(rules.lanes * places, after * decode * _crowd(table.decode_stage, rules), turns)
    decoding = min(places * after / (after + 1.0), budget * after / (new + after * width)) if after > 0.0 else 0.0
    begun = decoding / after if after > 0.0 else min(places, budget / new)
    own = decoding / replicas
    time = _decode_time(tables, decoding, context) * min(decoding, 1.0) if decoding > 0.0 else 0.0
    alone = _shared(table, own * width) if decoding >= 1.0 else 0.0
    each = begun / replicas
    chunk = min(new, max(rules.budget - own * width, 1.0))  # prompts come whole, or in pieces that fill a step
    held = min(each * new / chunk, 1.0)
    added = _attention(table, new, cached) * each
    added += held * (_shared(table, own * width + max(chunk, each * new)) - alone)
    added += _images(table, 1) * each
    if table.pooled_dense:
        pooled = table.pooled_dense, table.pooled_counts, table.pooled_times
        added += tokens_time(round(decoding * width + begun * new), *pooled)
        added -= tokens_time(round(decoding * width), *pooled)
    crowds = _crowd(table.decode_stage, rules), _crowd(table.prompt_stage, rules)
    return FullEngine(rules.lanes * begun, time * crowds[0], added * crowds[1])


def in_flight(  # noqa: PLR0913, PLR0917 - those of `full_rate`, and the rate
    tables: tuple[Table, Table], rules: Rules, isl: float, osl: float, rate: float, cached: float = 0.0
) -> float:
    """Requests that run at once in one replica at a rate, no more than have a place: Little's law with mean steps.

        n = λ·(t_p + n_s·t(n))/(1 − λ·t_p)        t_p: time that a prompt adds; n_s: decode steps of an answer

    The number grows from one request by a fixed count of rounds, so that every program gets the same.

    >>> from rooflinekit.load.policies import Limits, rules_of
    >>> from rooflinekit.load.table import constant_table
    >>> rules = rules_of(Limits(max_num_seqs=64, token_budget=1024), blocks=1000, block=16)
    >>> in_flight(constant_table(0.01).arrays, rules, 8.0, 101.0, 20.0)  # each takes a second
    20.0
    """
    full = full_engine(tables, rules, isl, osl, cached)
    prompt = full.prompts / full.begun
    left, steps = max(1.0 - rate * prompt, _LEFT), _decode_steps(rules, osl)
    most, count = _places(rules, isl, osl), 1.0
    for _ in range(_ROUNDS):
        step = _decode_time(tables, count / rules.lanes, isl + osl / 2.0) * _crowd(tables[0].decode_stage, rules)
        count = min(rate * (prompt + steps * step) / left, most)
    return count


_LEFT = 0.02  # share of its time that an engine full of prompts is taken to have for others
_ROUNDS = 12  # after which the number of requests in flight moves by less than a request


def _places(rules: Rules, isl: float, osl: float) -> float:
    """Requests of these mean lengths that run at once at most."""
    held = isl + (osl if rules.reserves else osl / 2.0)
    return min(float(rules.most), max(rules.blocks * rules.block / held, 1.0))


def _decode_steps(rules: Rules, osl: float) -> float:
    """Decode steps of an answer; a draft saves some."""
    return (osl - 1.0) / expected_tokens([rules.acceptance[at] for at in range(rules.drafted)], rules.drafted)


def _crowd(stage: float, rules: Rules) -> float:
    """By how much the lanes of pipeline stages hold each other up: all pass the busiest stage one after the other."""
    return max(rules.lanes * stage, 1.0) if rules.lanes > 1 else 1.0


def _decode_time(tables: tuple[Table, Table], sequences: float, context: float) -> float:
    """Time of a decode step of so many sequences [s]."""
    count = max(round(sequences), 1)
    drafting = tables[0].drafting
    return run_time(*tables, count, count * context)[0] + (drafting[count] if len(drafting) else 0.0)


def _shared(table: Table, tokens: float) -> float:
    return tokens_time(round(tokens), table.dense, table.counts, table.times)


def _attention(table: Table, new: float, past: float) -> float:
    """Attention time of one chunk [s]."""
    last = len(table.cells) - 1
    fresh, before = round(new), round(past)
    plane = table.prefill[table.cells[min(fresh, last)]][table.cells[min(before, last)]]
    return plane[0] + plane[1] * fresh + before * (plane[2] + plane[3] * fresh)


def _prompts_time(table: Table, prompts: float, new: float, past: float) -> float:
    """Time of a step of whole prompts alone [s]."""
    rows = max(round(prompts), 1)
    time = table.sequences[rows] + table.sampled[rows] + _shared(table, prompts * new) + _images(table, rows)
    saved = saved_time(table, rows, [0] * rows, round(rows * new)) if len(table.saved_counts) else table.launch
    time += prompts * _attention(table, new, past) - saved * (rows - 1)
    return max(time, table.floor[0])


def _images(table: Table, prompts: int) -> float:
    """Time that prompts add at their end: of images in the model's steps or of a draft [s]."""
    return table.encoded[prompts] if len(table.encoded) else 0.0

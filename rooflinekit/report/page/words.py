"""The answer of a report in sentences, before anything is drawn."""

from __future__ import annotations

from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.units import format_bytes, format_time

__all__ = ["answer_sentence", "decode_sentence", "facts", "format_number", "title"]


def title(answer: Estimate) -> str:
    """What runs where."""
    inputs = answer.inputs
    split = " ".join(f"{key}{inputs[key]}" for key in ("tp", "pp", "ep", "dp", "cp") if inputs[key] > 1)
    machine = f"{inputs['gpus']} x {answer.gpu} ({split})" if inputs["gpus"] > 1 else answer.gpu
    return f"{answer.model} on {machine}, {answer.engine}"


def answer_sentence(answer: Estimate) -> str:
    """TTFT and TPOT with their intervals, throughput, and whether it fits."""
    each, gpu = format_number(answer.output_tok_s_per_user), format_number(answer.output_tok_s_per_gpu)
    speed = f"{_time(answer, 'tpot_ms')} a token: {each} tokens/s for each user, {gpu} for each GPU."
    if answer.ttft_ms is None:
        told = f"More comes than can be served, and the queue has no end; what is served takes {speed}"
    else:
        told = f"First token after {_time(answer, 'ttft_ms')}, then {speed}"
    return told if answer.memory.fits else f"It does not fit in memory. If it did: {told[0].lower()}{told[1:]}"


def decode_sentence(answer: Estimate) -> str:
    """The same of a replica that only decodes: no first token, and the throughput of its steps alone."""
    each, inputs = answer.output_tok_s_per_user, answer.inputs
    gpu = format_number(inputs["batch"] * each / inputs["gpus"])
    return f"{_time(answer, 'tpot_ms')} a token: {format_number(each)} tokens/s for each user, {gpu} for each GPU."


def format_number(value: float) -> str:
    """Three digits, or a whole number with commas.

    >>> format_number(2097.4), format_number(12.345)
    ('2,097', '12.3')
    """
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def facts(answer: Estimate) -> list[str]:
    """What was asked, which level the numbers are, and the memory."""
    inputs, memory = answer.inputs, answer.memory
    asked = answer.load.arrivals if answer.load else f"batch {inputs['batch']}"
    cached = f" ({inputs['cached']} of them cached)" if inputs["cached"] else ""
    formats = f"weights {inputs['weights']}, activations {inputs['activations']}, KV cache {inputs['kv']}"
    share = memory.total_bytes / memory.capacity_bytes
    room = f"room for a batch of {memory.max_batch}"
    if answer.load is not None:
        room = f"room for {memory.max_batch} sequences at their mean length under load"
    return [
        f"{asked}, {inputs['isl']} tokens in{cached}, {inputs['osl']} out; {formats}.",
        f"Memory: {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} on the busiest GPU "
        f"({100.0 * share:.0f} %); {room}. {_level(answer)}",
    ]


def _level(answer: Estimate) -> str:
    if answer.calibration is None:
        return "These are datasheet bounds: nothing can be faster, and no real system is as fast."
    ends = "; ".join(
        f"{name} {format_time(answer.bound[key] / 1e3)}" for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"))
    )
    return f"Times are expected values with 90 % intervals; the datasheet bound is {ends}."


def _time(answer: Estimate, key: str) -> str:
    value = format_time(getattr(answer, key) / 1e3)
    ends = (answer.interval or {}).get(key)
    if ends is None:
        return value
    low, high = (format_time(end / 1e3) for end in ends)
    number, unit = low.split(" ")
    return f"{value} ({number if high.endswith(f' {unit}') else low} to {high})"

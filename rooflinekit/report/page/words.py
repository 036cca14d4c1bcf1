"""The answer of a report in sentences, before anything is drawn; a page fills the same sentences for other states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.units import format_bytes
from rooflinekit.report.document import images_in, machine, ms, three
from rooflinekit.specs.files import read_yaml

SENTENCES: dict[str, str] = read_yaml(Path(__file__).with_name("sentences.yaml"))
"""With places to fill, by name."""


def title(answer: Estimate) -> str:
    """What runs where."""
    inputs = answer.inputs
    return f"{answer.model} on {machine(answer.gpu, inputs['gpus'], inputs)}, {answer.engine}"


def answer_sentence(answer: Estimate) -> str:
    """TTFT and TPOT with their intervals, throughput, and whether it fits."""
    told = _speed(answer, answer.output_tok_s_per_gpu)
    told = (
        _said("endless", speed=told)
        if answer.ttft_ms is None
        else _said("first", ttft=_time(answer, "ttft_ms"), speed=told)
    )
    return told if answer.memory.fits else _said("misfit", told=f"{told[0].lower()}{told[1:]}")


def decode_sentence(answer: Estimate) -> str:
    """The same of a replica that only decodes: no first token, and the throughput of its steps alone."""
    return _speed(answer, answer.inputs["batch"] * answer.output_tok_s_per_user / answer.inputs["gpus"])


def _speed(answer: Estimate, gpu: float) -> str:
    each = three(answer.output_tok_s_per_user)
    return _said("speed", tpot=_time(answer, "tpot_ms"), user=each, gpu=three(gpu))


def _said(name: str, **values: Any) -> str:
    return SENTENCES[name].format(**values)


def facts(answer: Estimate) -> list[str]:
    """What was asked, which level the numbers are, and the memory."""
    inputs, memory = answer.inputs, answer.memory
    keys = ("isl", "osl", "weights", "activations", "kv")
    cached = _said("cached", **inputs) if inputs["cached"] else ""
    load = answer.load.arrivals if answer.load else f"batch {inputs['batch']}"
    share = f"{100.0 * memory.total_bytes / memory.capacity_bytes:.0f}"
    ends = {name: ms(answer.bound[f"{name}_ms"]) for name in ("ttft", "tpot")}
    level = _said("bound" if answer.calibration is None else "expected", evidence=answer.evidence, **ends)
    total, capacity = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    room = _said("slots" if answer.load else "room", most=memory.max_batch)
    return [
        _said("asked", load=load, cached=cached, images=images_in(inputs), **{key: inputs[key] for key in keys}),
        _said("memory", total=total, capacity=capacity, share=share, room=room, level=level),
    ]


def filled_notes(answer: Estimate, batch: int, longest: int) -> list[str]:
    """What the charts of kernels, bytes and memory are of under load: a static batch of so many sequences."""
    if answer.load is None:
        return []
    running = answer.inputs["batch"]
    name = "fewer" if batch < running else "many" if batch > 1 else "one"
    return [_said("static", which=_said(name, batch=batch, longest=longest, running=running))]


def _time(answer: Estimate, key: str) -> str:
    value = ms(getattr(answer, key))
    ends = (answer.interval or {}).get(key)
    if ends is None:
        return value
    low, high = (ms(end, "no limit") for end in ends)
    number, unit = low.split(" ")
    return f"{value} ({number if high.endswith(f' {unit}') else low} to {high})"

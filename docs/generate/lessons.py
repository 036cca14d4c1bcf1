"""The sliders of docs/learn: `python -m docs.generate.lessons` writes the library's numbers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rooflinekit as rk
from rooflinekit import Batch
from rooflinekit.estimation.results import StepResult
from rooflinekit.report.look import PALETTES

DATA = Path(__file__).parents[1] / "_site" / "static" / "lessons.js"
_TIMES = {
    "weights": "weights",
    "kv_cache": "cache",
    "activations": "activations",
    "compute": "compute",
    "network": "network",
}
_DIGITS = 4
_CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_LENGTHS = (1130, 240, 2600, 870, 1900, 410, 3300, 620)  # tokens that eight sequences hold


def _lesson(
    slider: str,
    unit: str,
    parts: dict[str, str],
    stops: Iterable[tuple[str, dict[str, list[float]], str]],
    times: int = 1,
    **more: bool,
) -> Any:
    """A slider with its unit, colours by part, and at each stop bars by name and a sentence.

    times: how often the parts follow each other in a bar; follows: the scale is that of the stop; sums: False leaves
    the sums of bars out.
    """
    shown = [
        {"at": at, "said": said, "bars": {name: list(map(_short, values)) for name, values in bars.items()}}
        for at, bars, said in stops
    ]
    return {"slider": slider, "unit": unit, "parts": list(parts.items()) * times, "stops": shown, **more}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _times(step: StepResult) -> list[float]:
    return [step.time_parts_ms[part] for part in _TIMES]


def batch() -> Any:
    """Decode against the batch: weights are read once for all."""

    def stop(count: int) -> tuple[str, dict[str, list[float]], str]:
        found = rk.estimate("llama-3-8b", batch=count, isl=512, osl=256, calibration="none", allow_oom=True)
        times = _times(found.decode)
        made = f"{count} token{'' if count == 1 else 's'}"
        said = f"One step of {sum(times):.2f} ms makes {made}: {1e3 * count / sum(times):,.0f} tokens/s."
        return f"{count}", {"one decode step": times, "the same for each token": [time / count for time in times]}, said

    return _lesson("sequences in the batch", "ms", _titles(), map(stop, (1, 2, 4, 8, 16, 32, 64, 128)))


def without_cache() -> Any:
    """An answer with keys and values kept, and with all tokens computed anew for each."""
    deployment, prompt = rk.Deployment(), 512

    def seconds(batch: Batch) -> float:
        return float(rk.predict_step("llama-3-8b", "h100-sxm", deployment, batch, calibration="none").time)

    first = seconds(Batch.prefill(1.0, float(prompt)))

    def stop(tokens: int) -> tuple[str, dict[str, list[float]], str]:
        kept = first + sum(seconds(Batch.decode(1.0, float(prompt + each))) for each in range(1, tokens))
        anew = sum(seconds(Batch.prefill(1.0, float(prompt + each))) for each in range(tokens))
        bars = {"with a cache": [kept], "without": [anew]}
        return f"{tokens}", bars, f"{tokens} tokens: {kept:.2g} s with a cache, {anew:.2g} s without."

    return _lesson("tokens of the answer", "s", {"time": "compute"}, map(stop, (1, 8, 32, 128, 512)), follows=True)


def attention() -> Any:
    """The cache of one sequence of Llama-3-70B with four kinds of attention."""
    layers, heads, width, latent = 80, 64, 128, 512 + 64
    numbers = {"MHA": 2 * heads * width, "GQA, as it is": 2 * 8 * width, "MLA": latent, "MQA": 2 * width}

    def stop(context: int) -> tuple[str, dict[str, list[float]], str]:
        bars = {kind: [2.0 * layers * each * context / 1e9] for kind, each in numbers.items()}
        said = f"At {context:,} tokens: {bars['MHA'][0]:.3g} GB with MHA, {bars['GQA, as it is'][0]:.3g} GB with GQA, "
        return f"{context:,}", bars, f"{said}{bars['MLA'][0]:.3g} GB with MLA, {bars['MQA'][0]:.3g} GB with MQA."

    return _lesson("tokens of context", "GB", {"read for one token": "cache"}, map(stop, _CONTEXTS), follows=True)


def continuous_batching() -> Any:
    """Twelve answers on four places, in batches that end with their longest, and each as soon as a place is free."""
    lengths, places, mean = (40, 260, 90, 180, 30, 220, 120, 60, 300, 50, 150, 100), 4, 133

    def stop(spread: int) -> tuple[str, dict[str, list[float]], str]:
        answers = [round(mean + spread / 100 * (length - mean)) for length in lengths]
        fixed, lanes = [list[float]() for _ in range(places)], [list[float]() for _ in range(places)]
        for start in range(0, len(answers), places):
            group = answers[start : start + places]
            for lane, answer in zip(fixed, group, strict=True):
                lane.extend((answer, max(group) - answer))
        for answer in answers:
            min(lanes, key=sum).extend((answer, 0.0))
        ends = sum(fixed[0]), max(map(sum, lanes))
        for lane in lanes:
            lane[-1] = ends[1] - sum(lane)
        idle = [1.0 - sum(answers) / (places * end) for end in ends]
        said = (
            f"Static: {ends[0]:.0f} steps, {100 * idle[0]:.0f} % of the places idle. "
            f"Continuous: {ends[1]:.0f} steps, {100 * idle[1]:.0f} % idle."
        )
        rows = {"static": fixed, "continuous": lanes}
        return f"{spread} %", {f"{kind}, {at + 1}": lane for kind, own in rows.items()
                               for at, lane in enumerate(own)}, said  # fmt: skip

    parts = {"answers": "decode", "idle": "network"}
    return _lesson("spread of lengths", "steps", parts, map(stop, (0, 25, 50, 75, 100)), 6, sums=False)


def packing() -> Any:
    """Prompts of one step, padded to the longest and packed."""

    def stop(count: int) -> tuple[str, dict[str, list[float]], str]:
        lengths = _LENGTHS[:count]
        packed, padded = sum(lengths), count * max(lengths)
        ends = [0, *itertools.accumulate(lengths)]
        said = f"cu_seqlens = {ends}: {packed:,} tokens are computed, not {padded:,}."
        bars = {"padded": [float(packed), float(padded - packed)], "packed": [float(packed), 0.0]}
        return f"{count}", bars, said

    parts = {"tokens of prompts": "decode", "padding": "network"}
    return _lesson("prompts in the step", "tokens", parts, map(stop, range(1, 9)))


def samplers() -> Any:
    """Six tokens by temperature, and after top-k 4 and top-p 0.9."""
    logits = (5.0, 4.0, 3.5, 2.0, 1.0, 0.0)

    def stop(heat: float) -> tuple[str, dict[str, list[float]], str]:
        raised = [math.exp((logit - logits[0]) / heat) for logit in logits]
        shares = [each / sum(raised) for each in raised]
        before = itertools.accumulate([0.0, *(share / sum(shares[:4]) for share in shares[:3])])
        kept = [share if place < 4 and reached < 0.9 else 0.0
                for place, (share, reached) in enumerate(zip(shares, [*before, 1.0, 1.0], strict=True))]  # fmt: skip
        count = sum(each > 0.0 for each in kept)
        bars = {"temperature alone": shares, "then top-k, top-p": [each / sum(kept) for each in kept]}
        said = f"Temperature {heat:g}: the likeliest has {100 * shares[0]:.0f} %; {count} of six can be drawn."
        return f"{heat:g}", bars, said

    hues = ("weights", "decode", "activations", "network", "cache", "compute")
    parts = {f"token {place + 1}": hue for place, hue in enumerate(hues)}
    return _lesson("temperature", "", parts, map(stop, (0.2, 0.5, 0.8, 1.0, 1.5, 2.0)), sums=False)


def tensor_parallelism() -> Any:
    """A layer cut in two and more: each part is shorter, and sums have to be sent."""

    def step(tp: int) -> list[float]:
        found = rk.estimate("llama-3-70b", tp=tp, batch=8, isl=2048, weights="fp8", allow_oom=True)
        return list(found.decode.time_parts_ms.values())

    def stop(tp: int) -> tuple[str, dict[str, list[float]], str]:
        times, whole, alone = step(tp), sum(step(tp)), sum(step(1))
        said = f"{tp} GPUs: {whole:.1f} ms a step, {alone / whole:.1f} times as fast as one."
        said += " Sending, launches and the engine do not shrink."
        return (
            f"{tp}",
            {"one decode step": times},
            said if tp > 1 else f"One GPU: {whole:.1f} ms a step; nothing is sent.",
        )

    parts = _titles() | {"above the bound": "overhead", "engine": "engine"}
    return _lesson("GPUs that share each layer", "ms", parts, map(stop, (1, 2, 4, 8)))


def paged_cache() -> Any:
    """Eight sequences, each with room for the longest, or in blocks."""
    held = float(sum(_LENGTHS))

    def stop(block: int) -> tuple[str, dict[str, list[float]], str]:
        taken = float(sum(-(-length // block) * block for length in _LENGTHS))
        bars = {"in blocks": [held, taken - held], "8,192 reserved for each": [held, 8192.0 * len(_LENGTHS) - held]}
        empty = f"{100 * (taken - held) / taken:.1f} % of what is taken is empty"
        said = f"In blocks of {block:,}, {empty}. Of what is reserved it is {100 * (1 - held / 8192 / 8):.0f} %."
        return f"{block:,}", bars, said

    return _lesson(
        "tokens of a block", "tokens", {"held": "cache", "empty": "engine"}, map(stop, (1, 16, 64, 256, 1024, 4096))
    )


def chunked_prefill() -> Any:
    """A prompt of 8,192 tokens arrives while 64 sequences decode: the wait of the others, and of the prompt."""
    decoding, deployment = Batch.decode(64.0, 2048.0), rk.Deployment()

    def stop(chunk: int) -> tuple[str, dict[str, list[float]], str]:
        pieces = [
            Batch.chunk(1.0, float(chunk), float(past), past + chunk == 8192) | decoding
            for past in range(0, 8192, chunk)
        ]
        times = [
            1e3 * float(rk.predict_step("llama-3.1-8b", "h100-sxm", deployment, piece, calibration="none").time)
            for piece in pieces
        ]
        bars = {"longest gap between tokens": [max(times)], "the prompt's first token": [sum(times)]}
        return (
            f"{chunk:,}",
            bars,
            f"Chunks of {chunk:,}: others wait {max(times):.0f} ms at most, the prompt {sum(times):.0f} ms.",
        )

    return _lesson("tokens of a chunk", "ms", {"time": "compute"}, map(stop, (256, 512, 1024, 2048, 4096, 8192)))


def _titles() -> dict[str, str]:
    titles = {"kv_cache": "KV cache", "compute": "arithmetic"}
    return {titles.get(part, part): colour for part, colour in _TIMES.items()}


LESSONS: tuple[Callable[[], Any], ...] = (without_cache, batch, attention, continuous_batching, chunked_prefill,
                                           packing, paged_cache, tensor_parallelism, samplers)  # fmt: skip


def written() -> str:
    """The numbers and the colours as JavaScript."""
    lessons = {lesson.__name__.replace("_", "-"): lesson() for lesson in LESSONS}
    used = sorted({colour for lesson in lessons.values() for _, colour in lesson["parts"]})
    colours = {name: [PALETTES[theme][name] for theme in ("light", "dark")] for name in used}
    return f"const LESSONS = {json.dumps(lessons)};\nconst LESSON_COLOURS = {json.dumps(colours)};\n"


if __name__ == "__main__":
    DATA.write_text(written(), encoding="utf-8")

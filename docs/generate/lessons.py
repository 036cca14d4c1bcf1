"""The sliders of docs/lessons.md: `python -m docs.generate.lessons` writes the library's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rooflinekit as rk
from rooflinekit import Batch
from rooflinekit.estimation.results import StepResult
from rooflinekit.report.palette import PALETTES

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
    slider: str, unit: str, parts: dict[str, str], stops: Iterable[tuple[str, dict[str, list[float]], str]]
) -> Any:
    """A slider with its unit, colours by part, and at each stop bars by name and a sentence."""
    shown = [
        {"at": at, "said": said, "bars": {name: list(map(_short, values)) for name, values in bars.items()}}
        for at, bars, said in stops
    ]
    return {"slider": slider, "unit": unit, "parts": list(parts.items()), "stops": shown}


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


def attention() -> Any:
    """What a decode step reads of one sequence's cache, by kind of attention."""
    expanded = 61 * 128 * (192 + 128) * 2.0  # layers, heads, key and value numbers of a head, bytes of BF16

    def stop(context: int) -> tuple[str, dict[str, list[float]], str]:
        sizes = {title: rk.kv_cache_bytes(name, context) / 1e9 for title, name in
                 (("MHA: Llama-2-7B", "llama-2-7b"), ("GQA: Llama-3-70B", "llama-3-70b"),
                  ("MLA, absorbed: DeepSeek-V3", "deepseek-v3"))}  # fmt: skip
        sizes["MLA, not absorbed"] = expanded * context / 1e9
        bars = {title: [size] for title, size in sizes.items()}
        small = sizes["MLA, absorbed: DeepSeek-V3"]
        times = sizes["MLA, not absorbed"] / small
        said = f"At {context:,} tokens a step reads {small:.3g} GB of latents; all heads have {times:.0f} times that."
        return f"{context:,}", bars, said

    return _lesson("tokens of context", "GB", {"read for one token": "cache"}, map(stop, _CONTEXTS))


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


LESSONS: tuple[Callable[[], Any], ...] = (batch, attention, tensor_parallelism, paged_cache, chunked_prefill)


def written() -> str:
    """The numbers and the colours as JavaScript."""
    lessons = {lesson.__name__.replace("_", "-"): lesson() for lesson in LESSONS}
    used = sorted({colour for lesson in lessons.values() for _, colour in lesson["parts"]})
    colours = {name: [PALETTES[theme][name] for theme in ("light", "dark")] for name in used}
    return f"const LESSONS = {json.dumps(lessons)};\nconst LESSON_COLOURS = {json.dumps(colours)};\n"


if __name__ == "__main__":
    DATA.write_text(written(), encoding="utf-8")

"""The pictures of the docs, drawn from the library at the datasheet bound: `make figures` writes docs/figures/*.svg.

Equal inputs give equal files. Needs matplotlib (`pip install 'rooflinekit[docs]'`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import rooflinekit as rk
from rooflinekit import Batch
from rooflinekit.report.look import FIRST, PALETTES, STEP, TOKEN, TimePart

FOLDER = Path(__file__).parent / "figures"
REPORTED = Path(__file__).parent.parent / "reports" / "data" / "accuracy-serving.csv"
GREY = "#b8bec6"
BLUE, AMBER, GREEN, RED, VIOLET, CACHE = (
    PALETTES["light"][name] for name in ("decode", "network", "activations", "other", "compute", "cache")
)
PREFILL, DECODE = VIOLET, BLUE  # as on pages
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rooflinekit",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
}


def canvas(width: float = 7.0, height: float = 3.4, **kinds: Any) -> tuple[Any, Any]:
    """A figure and its axes."""
    return plt.subplots(figsize=(width, height), layout="constrained", **kinds)


def bound(model: str, **scenario: Any) -> rk.Estimate:
    """An answer at the datasheet bound."""
    return rk.estimate(model, calibration="none", **scenario)


def tpot_error() -> Any:
    """Median error of TPOT under load, of simple rules and of the package, on measured closed loops."""
    figure, axes = canvas(7.0, 2.5)
    groups = pd.read_csv(REPORTED)
    errors = groups[groups["kind"] == "closed loop, TPOT"].median(numeric_only=True)
    bars = {
        "datasheet bound": ("bound", GREY), "hand derates": ("derated", GREY), "textbook": ("textbook", GREY),
        "rooflinekit, source unseen": ("source_out", BLUE), "rooflinekit, model unseen": ("model_out", BLUE),
    }  # fmt: skip
    drawn = axes.barh(list(bars), [100 * errors[way] for way, _ in bars.values()], color=[c for _, c in bars.values()])
    axes.bar_label(drawn, fmt="%.0f %%", padding=3)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="median error of time per output token under load [%]")
    return figure


def roofline() -> Any:
    """Kernels of one prompt and of one decode step, on the roofline of an H100."""
    figure, axes = canvas(7.0, 3.9)
    chip = rk.load_accelerator("h100-sxm").value
    peak, width = 989.4e12, chip.memory_bandwidth
    x = np.geomspace(0.3, 4000, 200)
    axes.loglog(x, np.minimum(peak, x * width) / 1e12, color="#30363d", lw=1.6)
    answer = bound("llama3-8b", batch=1, isl=1024, context=1024)
    names = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj", "lm_head")
    for step, colour, label in ((answer.prefill, PREFILL, "prefill, 1,024 tokens"), (answer.decode, DECODE, "decode")):
        kernels = [kernel for kernel in step.kernels if kernel.name in names]
        spots = [(k.intensity, min(peak, k.intensity * width) / 1e12) for k in kernels]
        axes.scatter(*zip(*spots, strict=True), color=colour, s=46, zorder=3, label=label)
    axes.annotate("attention", (410, 989), (330, 260), arrowprops={"arrowstyle": "-", "color": PREFILL}, color=PREFILL)
    axes.annotate("matrices", (800, 989), (1100, 420), arrowprops={"arrowstyle": "-", "color": PREFILL}, color=PREFILL)
    axes.annotate(
        "attention: H/K = 4", (4, 13.4), (6, 5), arrowprops={"arrowstyle": "-", "color": DECODE}, color=DECODE
    )
    axes.annotate("matrices: 1", (1, 3.35), (1.4, 1.3), arrowprops={"arrowstyle": "-", "color": DECODE}, color=DECODE)
    axes.axvline(peak / width, color=GREY, lw=1, ls="--")
    axes.text(peak / width * 0.92, 1.3, "ridge 295", ha="right", color="#57606a")
    axes.set(xlabel="FLOP per byte", ylabel="TFLOP/s at most", ylim=(0.8, 2000))
    axes.legend(loc="upper left")
    return figure


def kv_cache() -> Any:
    """Bytes of one sequence against its length."""
    figure, axes = canvas(7.0, 3.9)
    tokens = np.geomspace(512, 131_072, 60).astype(int)
    models = {
        "llama-2-7b": ("Llama-2-7B, MHA", RED),
        "llama-3-70b": ("Llama-3-70B, GQA", AMBER),
        "gemma-3-27b": ("Gemma-3-27B, windows", GREEN),
        "deepseek-v3": ("DeepSeek-V3, MLA", BLUE),
        "qwen3-next-80b-a3b": ("Qwen3-Next-80B, recurrent", VIOLET),
        "falcon-7b": ("Falcon-7B, MQA", "#57606a"),
    }
    for name, (label, colour) in models.items():
        axes.loglog(tokens, [rk.kv_cache_bytes(name, int(t)) / 1e9 for t in tokens], color=colour, label=label, lw=1.8)
    axes.set(xlabel="tokens of the sequence", ylabel="cache [GB]")
    axes.set_xticks([512, 2048, 8192, 32_768, 131_072], ["512", "2,048", "8,192", "32,768", "131,072"])
    axes.minorticks_off()
    axes.legend(fontsize=9, ncols=2, loc="upper left")
    axes.set_ylim(top=2000)
    return figure


def paged_attention() -> Any:
    """Eight sequences, reserved and in blocks of 16."""
    figure, axes = canvas(7.0, 3.0)
    lengths = np.array([1130, 240, 2600, 870, 1900, 410, 3300, 620])
    rows = np.arange(len(lengths))
    axes.barh(rows, 8192, color="#f0f2f4", edgecolor=GREY, height=0.72, label="reserved: 8,192 each")
    axes.barh(rows, np.ceil(lengths / 16) * 16, color=CACHE, height=0.72, label="in blocks of 16")
    axes.set(yticks=rows, yticklabels=[f"sequence {row + 1}" for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    share = lengths.sum() / (8192 * len(lengths))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2)
    axes.set_xlabel(f"tokens; {share:.0%} of what is reserved holds content")
    return figure


def sliding_windows() -> Any:
    """Who sees whom, for 10 tokens."""
    figure, both = canvas(7.0, 3.3, ncols=2)
    n, w = 10, 4
    q, k = np.indices((n, n))
    masks = {
        f"full: {n * (n + 1) // 2} pairs": k <= q,
        f"window of {w}: {int(((k <= q) & (k > q - w)).sum())} pairs": (k <= q) & (k > q - w),
    }
    for axes, (title, seen) in zip(both, masks.items(), strict=True):
        axes.pcolormesh(
            seen.astype(float),
            cmap=matplotlib.colors.ListedColormap(["#f0f2f4", BLUE]),
            edgecolors="white",
            linewidth=0.8,
        )
        axes.set(title=title, xlabel="key", ylabel="query", xticks=[], yticks=[], aspect="equal")
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
    return figure


def quantisation() -> Any:
    """Gain of narrow weights in a decode step, against the batch."""
    figure, axes = canvas()
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    wide = [bound("llama-3-8b", batch=b, isl=256, osl=256, allow_oom=True).tpot_ms for b in batches]
    for fmt, colour in (("int4", AMBER), ("fp8", BLUE)):
        narrow = [bound("llama-3-8b", batch=b, isl=256, osl=256, weights=fmt, allow_oom=True).tpot_ms for b in batches]
        axes.semilogx(batches, np.divide(wide, narrow), color=colour, marker="o", ms=4, label=f"{fmt.upper()} weights")
    axes.axhline(1, color=GREY, lw=1)
    axes.set(xlabel="sequences", ylabel="times as fast as BF16", ylim=(0.8, 3.6))
    axes.set_xticks(batches[::2], [f"{b:,}" for b in batches[::2]])
    axes.minorticks_off()
    axes.legend()
    return figure


def flash_attention() -> Any:
    """One attention layer against the prompt, naive and flash."""
    figure, axes = canvas()
    prompts = [512, 1024, 2048, 4096, 8192, 16_384, 32_768]
    H, d, b = 32, 128, 2
    naive = [max(4 * H * S**2 * b / 3.35e12, 4 * H * d * S**2 / 989.4e12) * 1e3 for S in prompts]
    flash = []
    for S in prompts:
        kernels = bound("llama-3.1-8b", isl=S).prefill.kernels
        flash.append(next(k.bound_us for k in kernels if k.family == "attention_prefill") / 32e3)
    axes.loglog(prompts, naive, color=AMBER, marker="o", ms=4, label="naive: scores through the memory")
    axes.loglog(prompts, flash, color=BLUE, marker="o", ms=4, label="flash")
    axes.set(xlabel="tokens of the prompt", ylabel="one layer [ms]")
    axes.set_xticks(prompts, [f"{S:,}" for S in prompts])
    axes.minorticks_off()
    axes.legend()
    return figure


def flash_decoding() -> Any:
    """Share of the slots of an H100 at work, against the batch."""
    figure, axes = canvas()
    batches = range(1, 49)
    names: dict[str, Any] = {}
    page = (Path(__file__).parent / "techniques" / "flash-decoding.md").read_text(encoding="utf-8")
    exec(page.partition("```python\n")[2].partition("\nfor batch")[0], names)  # the functions of the page
    axes.plot(batches, [names["busy"](8 * b) for b in batches], color=AMBER, label="one tile a sequence and KV head")
    cut = [names["busy"](8 * b * names["parts"](8 * b)) for b in batches]
    axes.plot(batches, cut, color=BLUE, label="contexts cut into parts")
    axes.set(xlabel="sequences", ylabel="share of slots at work", ylim=(0, 1.05))
    axes.legend(loc="lower right")
    return figure


def chunked_prefill() -> Any:
    """Steps of 64 decoding sequences while a prompt of 8,192 tokens is computed."""
    figure, both = canvas(7.0, 2.9, nrows=2, sharex=True)
    decoding = Batch.decode(64.0, 2048.0)
    for axes, c in zip(both, (8192, 1024), strict=True):
        steps: list[tuple[Batch, bool]] = [(decoding, False)] * 4
        steps += [(Batch.chunk(1.0, float(c), float(p), p + c == 8192) | decoding, True) for p in range(0, 8192, c)]
        now = 0.0
        for batch, prompt in [*steps, *[(decoding, False)] * 8]:
            took = 1e3 * rk.predict_step("llama-3.1-8b", "h100-sxm", rk.Deployment(), batch, calibration="none").time
            axes.broken_barh([(now, took)], (0, 1), color=PREFILL if prompt else DECODE, edgecolor="white", lw=1)
            now += took
        axes.set(yticks=[], ylabel="whole" if c == 8192 else "chunks\nof 1,024", ylim=(0, 1))
        axes.grid(visible=False)
    both[1].set_xlabel("time [ms]; blue: 64 sequences decode; purple: the prompt of 8,192 tokens is in the step")
    return figure


def speculation() -> Any:
    """Speed-up of three drafted tokens against the batch."""
    figure, axes = canvas()
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for acceptance, colour in ((0.9, GREEN), (0.7, BLUE), (0.5, AMBER)):
        draft = {"draft": "eagle", "draft_tokens": 3, "acceptance": acceptance}
        gain = [bound("llama-3-8b", batch=b, **draft).speculation.speedup for b in batches]
        axes.semilogx(batches, gain, color=colour, marker="o", ms=4, label=f"acceptance {acceptance}")
    axes.axhline(1, color=GREY, lw=1)
    axes.set(xlabel="sequences", ylabel="times as fast as without", ylim=(0.8, 3.2))
    axes.set_xticks(batches, [str(b) for b in batches])
    axes.minorticks_off()
    axes.legend(ncols=3)
    return figure


def disaggregation() -> Any:
    """Gaps between tokens at quantiles, together and apart."""
    figure, axes = canvas()
    load = {"rate": 16.0, "isl": 2048, "osl": 256, "requests": 400, "calibration": "none"}
    runs = {
        "two replicas that do both": (rk.simulate("llama-3-8b", replicas=2, **load), AMBER),
        "one prefills, one decodes": (rk.simulate("llama-3-8b", replicas=1, prefill_replicas=1, **load), BLUE),
    }
    names = ("p50", "p90", "p99")
    for place, (label, (run, colour)) in enumerate(runs.items()):
        gaps = [getattr(run.itl_ms, name) for name in names]
        bars = axes.bar(np.arange(len(names)) + (place - 0.5) * 0.36, gaps, 0.34, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", fontsize=9, padding=2)
    axes.set_xticks(range(len(names)), [name.upper() for name in names])
    axes.set(ylabel="gap between tokens [ms]")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left")
    return figure


def latent_attention() -> Any:
    """Bytes of a token's cache on each GPU, against tensor parallelism."""
    figure, axes = canvas()
    cuts = np.array([1, 2, 4, 8, 16])
    heads = 61 * 128 * (192 + 128) * 2.0  # layers, heads, key and value numbers of a head, bytes of BF16
    lines = {
        "all heads of DeepSeek-V3": (heads / cuts, AMBER),
        "8 KV heads of Llama-3-70B": (rk.kv_cache_bytes("llama-3-70b", 1) / np.minimum(cuts, 8), VIOLET),
        "latents of DeepSeek-V3": (np.full(len(cuts), float(rk.kv_cache_bytes("deepseek-v3", 1))), BLUE),
    }
    for label, (sizes, colour) in lines.items():
        axes.loglog(cuts, sizes / 1e3, color=colour, marker="o", ms=4)
        axes.annotate(label, (cuts[-1], sizes[-1] / 1e3), (7, 0), textcoords="offset points", color=colour, va="center")
    axes.set(xlabel="GPUs of tensor parallelism", ylabel="cache of a token on each [kB]", xlim=(0.9, 60))
    axes.set_xticks(cuts, [str(cut) for cut in cuts])
    axes.minorticks_off()
    return figure


def experts() -> Any:
    """Share of the experts that a decode step reads, against the batch."""
    figure, axes = canvas()
    batches = 2.0 ** np.arange(11)
    kinds = {"Mixtral: 2 of 8": (8, 2, AMBER), "Qwen3-30B-A3B: 8 of 128": (128, 8, GREEN),
             "DeepSeek-V3: 8 of 256": (256, 8, BLUE)}  # fmt: skip
    for label, (count, chosen, colour) in kinds.items():
        axes.semilogx(batches, 1 - (1 - chosen / count) ** batches, color=colour, marker="o", ms=4, label=label)
    axes.set(xlabel="tokens in the step", ylabel="share of the experts that is read", ylim=(0, 1.05))
    axes.set_xticks(batches[::2], [f"{batch:,.0f}" for batch in batches[::2]])
    axes.minorticks_off()
    axes.legend(loc="lower right")
    return figure


def _drawn(table: Mapping[str, TimePart], *parts: str) -> dict[str, tuple[str, str]]:
    """Names and hues of some parts."""
    return {part: (table[part].name, PALETTES["light"][table[part].tint]) for part in parts}


def tensor_parallelism() -> Any:
    """Parts of a decode step of Llama-3-70B in FP8 on one to eight GPUs."""
    figure, axes = canvas(7.0, 2.9)
    parts = _drawn(STEP, "weights", "kv_cache", "network", "above_bound", "host")
    rows = [1, 2, 4, 8]
    load = {"batch": 32, "isl": 2048, "weights": "fp8", "allow_oom": True}
    steps = [rk.estimate("llama-3-70b", tp=cut, **load).decode.time_parts_ms for cut in rows]
    left = np.zeros(len(rows))
    for part, (label, colour) in parts.items():
        widths = np.array([step[part] for step in steps])
        axes.barh([f"{cut} GPU{'s' if cut > 1 else ''}" for cut in rows], widths, left=left, color=colour, label=label)
        left += widths
    for place, whole in enumerate(left):
        axes.text(whole + 0.4, place, f"{whole:.1f} ms", va="center")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="one decode step [ms]", xlim=(0, 42))
    axes.legend(loc="lower right", ncols=2)
    return figure


def one_request() -> Any:
    """The mean request of Llama-3-8B at 20 requests a second on one H100."""
    return rk.plot(rk.estimate("llama-3-8b", rate=20.0), "request").figure


def load_parts() -> Any:
    """What a token and a first token are made of, over the rate: Llama-3-8B on one H100."""
    figure, (tokens, firsts) = canvas(7.6, 3.8, ncols=2)
    rates = np.arange(1.0, 23.0, 1.5)
    answers = [rk.estimate("llama-3-8b", rate=rate).load for rate in rates]
    token, first = _drawn(TOKEN, "weights", "kv_cache", "above_bound", "engine", "prompts"), _drawn(FIRST, *FIRST)
    for axes, parts, key, unit in (
        (tokens, token, "tpot_parts_ms", "time per token [ms]"),
        (firsts, first, "ttft_parts_ms", "time to first token [ms]"),
    ):  # fmt: skip
        heights = [[getattr(load, key)[part] for load in answers] for part in parts]
        axes.stackplot(
            rates, heights, labels=[name for name, _ in parts.values()], colors=[c for _, c in parts.values()]
        )
        axes.axvline(answers[0].knee_rate, color=RED, ls="--", lw=1.0)
        axes.set(xlabel="requests a second (dashed: knee)", ylabel=unit, xlim=(1, 24), ylim=(0, None))
        axes.legend(loc="upper left", fontsize=8.5, reverse=True)
    return figure


FIGURES: tuple[Callable[[], Any], ...] = (
    tpot_error, roofline, kv_cache, paged_attention, sliding_windows, quantisation, flash_attention, flash_decoding,
    chunked_prefill, speculation, disaggregation, latent_attention, experts, tensor_parallelism,
    one_request, load_parts,
)  # fmt: skip


def draw(folder: Path) -> None:
    """Write every picture into a folder."""
    with matplotlib.rc_context(STYLE):
        for figure in FIGURES:
            path = folder / f"{figure.__name__.replace('_', '-')}.svg"
            drawn = figure()
            drawn.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
            plt.close(drawn)
            lines = path.read_text(encoding="utf-8").splitlines()
            path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def words(path: Path) -> list[str]:
    """All text of a picture: titles, labels, and the numbers that are written out."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


def stale() -> list[str]:
    """Pictures whose text is no longer what the library says; curves may still differ by less than a label."""
    with TemporaryDirectory() as scratch:
        draw(Path(scratch))
        return [new.name for new in sorted(Path(scratch).iterdir()) if words(new) != words(FOLDER / new.name)]


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"draw them again with `make figures`: {names}" if (names := ", ".join(stale())) else 0)
    draw(FOLDER)

"""What the numbers of the serving report do not say by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textbook import BANDWIDTH, LINKS, MBU, MFU, PEAK

METHOD = (
    "A group is one source, model, accelerator and metric; groups under 5 rows are merged by source and accelerator. "
    "Kernel times come from the shipped calibrations, which no row here was used for. What an engine adds to its "
    "kernels (host time of a step, waits of collectives, …) is fitted to static rows and to the latencies of closed "
    "loops, and here every row is predicted from a fit without its model, or without its source. \\*As shipped is the "
    "fit to all of them, in sample. Tier A rows have a fixed batch and fixed lengths and say how they were timed; tier "
    "B rows were driven by concurrency or saturation, or leave one setting open."
)

RULES = (
    f"Textbook: a prompt takes 2·P FLOP a token at MFU {100 * MFU:.0f} %, a step reads all weights and the cache at "
    f"MBU {100 * MBU:.0f} % ([the counts](https://kipp.ly/transformer-inference-arithmetic/), "
    "[MBU](https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices), "
    "[MFU](https://arxiv.org/abs/2204.02311)); no queue, collective or host. Hand derates: the datasheet roofline of "
    f"every kernel with compute x {PEAK:g}, memory x {BANDWIDTH:g}, links x {LINKS:g}, which are round assumptions."
)


def _of(**wanted: str) -> Callable[[Any], bool]:
    """A rule: these columns of a group begin so."""
    return lambda line: all(str(getattr(line, name)).startswith(text) for name, text in wanted.items())


EXPLAINED: list[tuple[Callable[[Any], bool], str]] = [
    (
        _of(gpu="l40s", model="llama-3.1-70b"),
        "Four and eight GPUs over PCIe. One L40S is within 20 % on the same source; the collectives that were measured "
        "on L40S (kernel report, note 3) come from another server, and are probably too slow for this one.",
    ),
    (
        _of(gpu="a100-pcie-80gb"),
        "On two GPUs 1.5 to 2.1 x, as on two A100 SXM: beside 141 GB of weights a few GB are left for the cache, and "
        "how the runs set that room is not stated. On eight 1.3 x: collectives over PCIe, measured on another server.",
    ),
    (
        _of(gpu="rtx-pro-6000"),
        "No calibration for this chip: another one's stands in. Most rows are of two to eight GPUs over PCIe, split "
        "into stages, or by attention DP that the source does not state.",
    ),
    (
        _of(source_key="trt12", model="deepseek-r1"),
        "Attention DP with experts over all GPUs. Too low for short answers, too high for long ones; the batch that "
        "the runs were limited to is not stated, and ours fills the memory.",
    ),
    (_of(source_key="trtdsr1"), "Attention DP with experts over all GPUs, up to 896 sequences a GPU; not explained."),
    (
        _of(kind="saturated", model="gpt-oss"),
        "Largest for short requests (on H200 1.8 x at 1,000 in and out, 1.2 x at 32,768 in): thousands of sequences in "
        "a step, and a host cost for each that is fitted to rows of tens; probably that cost is too low.",
    ),
    (
        _of(kind="saturated", model="qwen3-30b-a3b"),
        "As gpt-oss: few active parameters and thousands of sequences, where host costs probably decide.",
    ),
    (
        _of(source_key="argonneq", gpu="a100"),
        "FP8 and INT8 caches on a chip without FP8. The source measured 2 to 8 x the time of its own 16-bit cache, "
        "which reading half the bytes cannot explain.",
    ),
    (
        _of(kind="closed loop, TPOT", source_key="aicgap"),
        "A quarter of these rows lie below the datasheet bound of a steady closed loop: short answers to long prompts, "
        "probably sent as a burst.",
    ),
    (_of(kind="closed loop, TTFT", source_key="aicgap"), "The waits are the client's, whose protocol is not known."),
    (
        _of(kind="closed loop, TTFT", model="deepseek-r1"),
        "Longer waits than closed-loop queueing at the predicted step times gives; not explained.",
    ),
]
"""Rules for groups above the limit, first match, and why."""

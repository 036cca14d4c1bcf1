"""What the numbers of the serving report do not say by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textbook import BANDWIDTH, LINKS, MBU, MFU, PEAK

METHOD = (
    "A group is one source, model, accelerator and metric; groups under 5 rows are merged by source and accelerator. "
    "Kernel times come from the shipped calibrations, which no row here was used for. What an engine adds to its "
    "kernels (host time of a step, waits of collectives, …) is fitted. The rows for that are static and saturated "
    "ones, and output tokens of closed loops. Every row here is predicted from a fit without its model, its GPU, or "
    "its source. No time to the first token is fitted. The front end is assumed: 3 ms, and 3 µs a token for the "
    "tokeniser. A launch of a prompt step is one figure for all engines, chosen on these rows. "
    "Dequantised experts on Hopper have two figures too, from output tokens and queues "
    "of gpt-oss. Where gpt-oss-120b is left out, they are what queues of gpt-oss-20b say; else they are in sample. "
    "What routing takes under TensorRT-LLM is then of a vLLM pull request, which measured gpt-oss-120b itself. Without "
    "it first tokens of all groups were 19.3 % off on 30 November, before the last fit. "
    "One source's own rows show that its server has a place fewer than users. \\*As shipped is in sample. "
    "Offline queues have as many requests as their source says. Loads are played, "
    "each by its client's protocol. Tier A rows have a fixed "
    "batch and fixed lengths and say how they were timed. Tier B rows were driven by concurrency or saturation, or "
    "leave one setting open."
)

LOADS = (
    "Closed loops and offline queues, medians over rows and over groups. Scripts of some sources were read. Their "
    "server settings are facts of the row, like its concurrency (validate/clients.yaml). They are the format of "
    "the cache, and the steps between two looks at new requests. So are the steps for which prompts are gathered, "
    "the tokens of a step, and the limits and graphs of trtllm-bench. "
    "One source's client sends 100 prompts to vLLM again and again, which keeps them. Runs of DeepSeek under "
    "TensorRT-LLM 1.2.0rc6.post3 drafted three tokens (MTP); their acceptance is the usual one, not fitted. "
    "Experts of InferenceX and of TensorRT-LLM's queues are chosen with a skew of 0.8, which was tried on these rows "
    "beside 0 and 1.2; every column has seen it. With even routing, the default of every command, output tokens of "
    "experts were 13.6 % off with the model left out (7 groups). "
    "The prior draws an engine's costs to those of all engines. Only its strength was chosen with models left out."
)

INTERVALS = (
    "Share of rows inside the 90 % interval, and its median width (high over low). Errors under load are those of rows "
    "whose model the engine costs had not seen: their scale adds variances of the steps, of all loads, of kernels that "
    "stand in, of few and of many users, and their quantiles are an engine's own, drawn towards those of all "
    "(benchmarks/fit_load_errors.py fits them; they stand in the engines' profiles). A group weighs one, whatever its "
    "rows. Rows faster than the datasheet allows move nothing. Tested: costs and errors without the row's model, or "
    "without its source. Nothing but closed loops and offline queues was measured: open loops err as closed ones do."
)

OFTEN = (
    "A plan states the probability that an objective holds. Here objectives are set at the predicted quantiles of "
    "rows. Neither the engine's costs nor the errors have seen their model, or their source. The table has the share "
    "of them that hold. Fleets are sized at 90 % unless --confidence says another. Most first tokens are slower than "
    "predicted, and by how much differs between engines: the table has each."
)

RULES = (
    f"Textbook: a prompt takes 2·P FLOP a token at MFU {100 * MFU:.0f} %, a step reads all weights and the cache at "
    f"MBU {100 * MBU:.0f} % ([the counts](https://kipp.ly/transformer-inference-arithmetic/), "
    "[MBU](https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices), "
    "[MFU](https://arxiv.org/abs/2204.02311)); no queue, collective or host. Hand derates: the datasheet roofline of "
    f"every kernel with compute x {PEAK:g}, memory x {BANDWIDTH:g}, links x {LINKS:g}, which are round assumptions."
)

NAMED = (
    "Each tool got what a row says, and the facts of its source. These are mean lengths of the client's requests, "
    "formats of weights and cache, degrees, users, drafts and their acceptance. Chips that GenZ and llm-analysis lack "
    "were described to them by their datasheet. No other tool takes the client's protocol or the server's settings. "
    "AIConfigurator's tables are of TensorRT-LLM 1.3.0rc20, vLLM 0.24.0 and SGLang 0.5.14 (on A100 1.0.0, 0.14.0 and "
    "0.5.10); it takes no other version. Rows of the sources infx and aicgap are its own sample, on which it is tested "
    "before a change. Our calibrations come from its kernel tables. Nominal lengths in place of mean ones "
    "moved its median errors on 600 of these rows by 0.0 (TPOT) and 1.2 points. Its hybrid mode takes estimates "
    "where its tables have no data. GenZ, llm-analysis and LLM-Viewer have no queue: under load a first token is one "
    "prompt alone. bentoml's rule takes the prompts of all users at once, and of a queue the best batch. It reads "
    "experts as one dense layer, so it was not asked about them. Errors are medians over groups, as above. The last "
    "columns are ours on the rows that the tool answered. A tool without a line answered none of these rows."
)

NAMED_BEFORE = (
    "Earlier runs of the tools, by others: Llama-3-8B in BF16 on one H100. Times in ms of a prompt of 2,048 tokens, "
    "then of decode steps with 1, 32 and 128 sequences. AIConfigurator 0.12: 43.5 to 46.7, 6.2 to 6.6, 9.5 to 9.7, "
    "18.1 to 18.5. LLM-Viewer: 42.6, 5.0, 7.9, 17.1. GenZ: 35.5, 4.2, 6.5, 13.6. InferSim, whose list has no H100 but "
    "an H800: 71.7, an error, 14.0, 22.5. LLM-Viewer and GenZ gave the same again here. AIConfigurator "
    "answered 77 % of 1,060 dense rows of its sample then. It was 19 to 22 % off in output tokens, and 44 to 54 % in "
    "first ones."
)


def _of(**wanted: str) -> Callable[[Any], bool]:
    """A rule: these columns of a group begin so."""
    return lambda line: all(str(getattr(line, name)).startswith(text) for name, text in wanted.items())


EXPLAINED: list[tuple[Callable[[Any], bool], str]] = [
    (
        _of(gpu="l40s", model="llama-3.1-70b"),
        "Four and eight GPUs over PCIe. One L40S is within 20 % on the same source. The measured collectives of L40S "
        "(kernel report, note 3) come from another server, and are probably too slow here.",
    ),
    (
        _of(gpu="a100-pcie-80gb"),
        "On two GPUs 1.5 to 2.1 x, as on two A100 SXM. There, 141 GB of weights leave a few GB for the cache. The "
        "source "
        "does not state how the runs set that room. On eight 1.3 x: collectives over PCIe, measured on another server.",
    ),
    (
        _of(gpu="rtx-pro-6000"),
        "No calibration for this chip: another one's stands in. Most rows are of two to eight GPUs over PCIe. They "
        "are split into stages, or by attention DP that the source does not state.",
    ),
    (
        _of(source_key="trt12", model="deepseek-r1"),
        "Attention DP with experts over all GPUs. Too low for short answers, too high for long ones; the batch that "
        "the runs were limited to is not stated, and ours fills the memory.",
    ),
    (_of(source_key="trtdsr1"), "Attention DP with experts over all GPUs, up to 896 sequences a GPU; not explained."),
    (
        _of(kind="saturated", model="gpt-oss"),
        "With few active parameters and thousands of sequences in a step, the host cost of a sequence decides. One "
        "cost for all models does not fit them all.",
    ),
    (_of(kind="saturated", model="qwen3-30b-a3b"), "As gpt-oss."),
    (
        _of(source_key="argonneq", gpu="a100"),
        "FP8 and INT8 caches on a chip without FP8. The source measured 2 to 8 x the time of its own 16-bit cache. "
        "Reading half the bytes cannot explain that.",
    ),
    (
        _of(source_key="aicgap", gpu="h200"),
        "The protocol is not stated. Many of SGLang's users wait for seconds, above all with 512 users on several "
        "GPUs. The simulator waits as little as the formula: what holds them back is not known.",
    ),
    (
        _of(kind="closed loop, TTFT", source_key="aicgap"),
        "Up to 32 users and answers of 128 to 512 tokens, TTFT exceeds the prediction by the time of one request over "
        "the number of users: one of them always waits for a place. That is a setting of the server or the client, "
        "which is not stated.",
    ),
    (
        _of(model="deepseek-r1", gpu="b300"),
        "Under the same script, prompts of 8,192 tokens took four times as long as on B200. They slow all steps "
        "beside them. A missing kernel for this chip would explain it.",
    ),
    (
        _of(kind="closed loop, TTFT", model="deepseek-r1"),
        "A short prompt still takes 50 to 100 ms more than kernels, launches and queue. In one such run the slowest "
        "first token took 2 s beside a mean of 0.33 (InferenceX issue 870). So the first burst pays for something "
        "once, which the model of steps lacks.",
    ),
    (
        _of(model="gpt-oss", gpu="h"),
        "MXFP4 experts are dequantised on Hopper, and nobody measured such a kernel. 16-bit experts stand in, with "
        "one factor on their arithmetic for vLLM and TensorRT-LLM. An early TensorRT-LLM (gpt-oss-dev, Triton "
        "kernels) took 1.4 to 1.6 x the predicted steps.",
    ),
    (
        _of(kind="closed loop, TTFT", model="llama-3.1-70b", gpu="b200"),
        "vLLM on B200 answered a quarter later than kernels and queue say, TensorRT-LLM as predicted; unexplained.",
    ),
]
"""Rules for groups above the limit, first match, and why."""

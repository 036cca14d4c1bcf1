"""Settings of a server under trtllm-bench: sequences and tokens of a step, from memory and lengths.

The rules are those of TensorRT-LLM's tuning.py and get_settings (validate/clients.yaml): as many sequences as would fit
if each kept whole lengths, and the prompts that then come with a step of them; rounded up. It splits no prompt.
"""

from __future__ import annotations

from math import ceil

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import Attention

_TUNED = {Dtype.BF16: 1.0, Dtype.FP16: 1.0, Dtype.FP8: 1.0, Dtype.FP8_BLOCK: 1.0, Dtype.NVFP4: 0.5}
"""Formats with rules, and bytes that it counts for one of the checkpoint: 4-bit weights, packed in pairs, for half."""

_UNTUNED = 2048, 8192  # of other formats, as TensorRT-LLM's BuildConfig says
_SHARE = 0.95  # of the memory that weights leave
_MOST_SEQUENCES, _MOST_TOKENS = 4096, 32768
_TOKEN_STEPS = (4096, 256), (8192, 512), (_MOST_TOKENS, 1024)
_BATCH_STEPS = (256, 32), (1024, 128), (_MOST_SEQUENCES, 256)


def bench_limits(predictor: Predictor, isl: float, osl: float) -> tuple[int, int] | None:
    """Sequences that one pipeline stage and attention replica runs at once, and tokens of a step, at the most.

    None for models whose cache is not keys and values of heads: it takes the width of a head from config.json, which
    has none for latent attention.
    """
    plan = predictor.plan
    model, deployment = plan.model, plan.deployment
    weights = plan.precision.weights_of(model.matrices[-1])
    mixers = [(layer.mixer, count) for layer, count in model.layer_counts.items() if layer.mixer is not None]
    heads = [(mixer, count) for mixer, count in mixers if isinstance(mixer, Attention)]
    if len(heads) < len(mixers):
        return None
    if weights not in _TUNED:
        batch, tokens = _UNTUNED
    else:
        ranks, each = deployment.tp * deployment.dp, plan.precision.kv.bytes
        token = sum(2 * count * max(ranks, mixer.kv_heads) * mixer.head_dim * each for mixer, count in heads)
        size = _TUNED[weights] * float(predictor.memory.evaluate(1.0, isl + osl, isl).weight_bytes)
        room = _SHARE * deployment.gpus * (float(plan.system.accelerator.memory_bytes) - size)
        sequences = min(room / (token * (isl + osl)), _MOST_SEQUENCES) / deployment.pp
        batch = max(_rounded_up(sequences, _BATCH_STEPS), 64)
        tokens = max(_rounded_up(min(sequences * (1.0 + isl / osl), _MOST_TOKENS), _TOKEN_STEPS), 2048)
    return batch, max(tokens, ceil(isl) + batch)


def _rounded_up(value: float, steps: tuple[tuple[int, int], ...]) -> int:
    """To a multiple of the step that holds for values of this size.

    >>> [_rounded_up(value, _BATCH_STEPS) for value in (190.0, 300.0, 1770.0)]
    [192, 384, 1792]
    """
    step = next(step for most, step in steps if value < most or most == steps[-1][0])
    return step * ceil(value / step)

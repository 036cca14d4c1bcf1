"""llama.cpp: no pool; weights by bits a weight, a cache for the whole context up front, one compute buffer."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.memory.cache import cache_law
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.model.types.model import Attention, DenseFFN, Model

_WIDE_BITS = 16.0  # from here on every tensor has the same format
_HEAD_BITS, _EMBEDDING_BITS = 6.5625, 4.5  # Q6_K output and Q4_K embedding of the mixed K formats (llama-quant.cpp)
_MIXED = (4.5, 6.5)  # bits a weight
_PIPELINE_COPIES = 4  # of the inputs of a step, on several accelerators (GGML_SCHED_MAX_COPIES)


@dataclass(frozen=True)
class GGUFMemory:
    """The fullest accelerator [B]; layers are split evenly, so weights and cache may be those of different ones."""

    weight_bytes: float
    kv_bytes: float
    compute_bytes: float


def gguf_memory(model: Model, bits: float, context: int, batch: int, gpus: int = 1) -> GGUFMemory:
    """Memory of a GGUF model of `bits` a weight on the mean, its whole `context` cached in 16 bit.

    Formats between 4.5 and 6.5 bits are mixed: the outer eighths of the layers and every third one between them hold
    values and down projections in Q6_K (use_more_bits in llama-quant.cpp).

    The embedding stays on the host. The output counts as one layer more where the layers are split
    (llama-model.cpp: layer i goes to the accelerator in whose share i / (layers + 1) falls).

    Raises ArchitectureError for anything but dense attention layers.

    >>> from rooflinekit.specs import load_model
    >>> llama = gguf_memory(load_model("llama-7b").value, 16.0, 512, 512)
    >>> [round(size / 2**30, 4) for size in (llama.weight_bytes, llama.kv_bytes)]  # 12.3076 and 0.25 in the log
    [12.307, 0.25]
    """
    if not all(isinstance(layer.ffn, DenseFFN) and isinstance(layer.mixer, Attention) for layer in model.layers):
        raise ArchitectureError(f"{model.name}: only dense attention models are understood under llama.cpp")
    table = model.vocab * model.hidden
    output, embedding = (table * part / 8 for part in _table_bits(bits))
    whole = count_parameters(model).total * bits / 8 - output - embedding
    parts = _split(model.depth, gpus)
    richer = [_richer_bytes(model, place) if _MIXED[0] < bits < _MIXED[1] else 0.0 for place in range(model.depth)]
    plain = (whole - sum(richer)) / model.depth
    held = [sum(plain + richer[place] for place in part if place < model.depth) for part in parts]
    held[-1] += output
    most = max(sum(place < model.depth for place in part) for part in parts)
    cache = cache_law(model.layers[:most], Dtype.FP16).bytes(float(context))
    return GGUFMemory(max(held), float(cache), _compute_bytes(model, context, batch, gpus))


def _table_bits(bits: float) -> tuple[float, float]:
    """Bits a weight of output and embedding."""
    return (bits, bits) if bits >= _WIDE_BITS else (_HEAD_BITS, _EMBEDDING_BITS)


def _split(depth: int, gpus: int) -> list[list[int]]:
    """Layers of each accelerator; `depth` stands for the output."""
    places = [index * gpus // (depth + 1) for index in range(depth + 1)]
    return [[index for index, place in enumerate(places) if place == part] for part in range(gpus)]


def _richer_bytes(model: Model, place: int) -> float:
    """What Q6_K instead of Q4_K adds to a layer [B]; nothing to the others."""
    depth, layer = model.depth, model.layers[place]
    eighth = depth // 8
    if eighth <= place < 7 * depth // 8 and (place - eighth) % 3 != 2:
        return 0.0
    width = layer.ffn.width if isinstance(layer.ffn, DenseFFN) else 0
    values = layer.mixer.kv_heads * layer.mixer.v_head_dim if isinstance(layer.mixer, Attention) else 0
    return model.hidden * (width + values) * (_HEAD_BITS - _EMBEDDING_BITS) / 8


def _compute_bytes(model: Model, context: int, batch: int, gpus: int) -> float:
    """The largest of: logits, a feed-forward block, attention scores with their mask; all in fp32 (ggml graphs)."""
    hidden = model.hidden
    width = max(layer.ffn.width for layer in model.layer_counts if isinstance(layer.ffn, DenseFFN))
    heads = max(layer.mixer.heads for layer in model.layer_counts if isinstance(layer.mixer, Attention))
    logits, ffn = model.vocab + hidden, 2 * width + 2 * hidden
    attention = context * heads + 1.5 * context + 3 * hidden  # the mask in fp32 and in fp16
    copies = (_PIPELINE_COPIES - 1) * context + _PIPELINE_COPIES * hidden if gpus > 1 else 0
    return 4.0 * batch * (max(logits, ffn, attention) + copies)

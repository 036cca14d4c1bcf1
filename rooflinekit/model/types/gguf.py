"""What llama.cpp's formats store each tensor in: one block format, or two that follow each other over the layers."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.model.types.dtype import BLOCKS, Dtype
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Attention, MixtureOfExperts, Model, WeightFormats

SOURCE = "https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp"
_GROUPED, _SPARSE = 4, 8  # query heads of a KV head; experts


@dataclass(frozen=True)
class Recipe:
    """The formats of the tensors of one quantised file (llama-quant.cpp, without an importance matrix).

    base: of most matrices. more: of values and down projections in the outer eighths of the layers and every third one
    between them. grouped: of values that four or more query heads share. first: of down projections in the first
    eighth. head: of the LM head, or of the table that is both.
    """

    base: Dtype
    more: Dtype | None = None
    grouped: Dtype | None = None
    first: Dtype | None = None
    head: Dtype = Dtype.Q6_K


RECIPES = {
    **{dtype: Recipe(dtype) for dtype in BLOCKS},
    Dtype.Q8_0: Recipe(Dtype.Q8_0, head=Dtype.Q8_0),
    Dtype.Q4_K_M: Recipe(Dtype.Q4_K, more=Dtype.Q6_K),
    Dtype.Q5_K_M: Recipe(Dtype.Q5_K, more=Dtype.Q6_K),
    Dtype.IQ4_NL: Recipe(Dtype.IQ4_NL, grouped=Dtype.Q5_K, first=Dtype.Q5_K),
    Dtype.IQ4_XS: Recipe(Dtype.IQ4_XS, grouped=Dtype.Q5_K, first=Dtype.Q5_K),
}
"""What `--weights` in a GGUF format means for the tensors of a model."""


def has_more_bits(layer: int, depth: int) -> bool:
    """Whether mixed formats give a layer's values and down projection more bits (`use_more_bits` in llama-quant.cpp).

    >>> sum(has_more_bits(layer, 32) for layer in range(32))
    16
    """
    eighth = depth // 8
    return layer < eighth or layer >= 7 * depth // 8 or (layer - eighth) % 3 == 2


def gguf_formats(model: Model, dtype: Dtype) -> tuple[WeightFormats, tuple[WeightFormats, ...]]:
    """The formats of a model's tensors in a file of this format: of most layers, and of each layer.

    Embedding in the base format, norms, router and biases in fp32.
    """
    recipe = RECIPES[dtype]
    base = recipe.base
    table = recipe.head if model.tied else base
    usual = WeightFormats(base, base, base, base, table, recipe.head, Dtype.FP32)
    layers = []
    for place, layer in enumerate(model.layers):
        mixer, ffn = layer.mixer, layer.ffn
        richer = recipe.more if has_more_bits(place, model.depth) else None
        value, down = richer, richer or (recipe.first if place < model.depth // 8 else None)
        if recipe.grouped and isinstance(mixer, Attention) and mixer.heads >= _GROUPED * mixer.kv_heads:
            value = recipe.grouped
        if isinstance(ffn, MixtureOfExperts) and ffn.experts == _SPARSE:
            value = Dtype.Q8_0
        layers.append(replace(usual, value=value, down=down))
    return usual, tuple(layers)

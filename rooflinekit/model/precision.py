"""Number format of each part of a deployment, from the checkpoint's facts and the user's choices.

llama.cpp's formats store each tensor in one block format, or in two that follow each other over the layers.
"""

from __future__ import annotations

from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import BLOCKS, MIXED_AS, Dtype
from rooflinekit.model.types.errors import DtypeError
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.model import Attention, MixtureOfExperts, Model, WeightFormats


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of one deployment.

    `stream` is what flows between kernels, `kv` the cache, `formats` the weights. `inputs` is what matrix inputs are
    quantised to when the user fixed it, `stated` what the checkpoint says of its formats. Nothing leaves it to the
    weights: 8-bit and NVFP4 weights compute in their own format, INT4 and MXFP4 are dequantised and compute in
    `stream`.
    """

    stream: Dtype
    kv: Dtype
    formats: WeightFormats
    inputs: Dtype | None = None
    layers: tuple[WeightFormats, ...] = ()  #: formats of each layer, where they differ; () is `formats`
    stored: Dtype | None = None  #: the format of a GGUF file, by the name that its tensors' formats go by
    stated: tuple[tuple[Dtype, Dtype], ...] = ()  #: of stored formats, in what else than their own they are multiplied
    index: Dtype = Dtype.FP8  #: queries, keys and scores of a lightning indexer, which do not follow the cache

    def weights_of(self, kind: str) -> Dtype:
        """The format by which people call the weights of a kind of module: a mixture by its name."""
        dtype: Dtype = getattr(self.formats, kind)
        return dtype if self.stored is None or dtype.is_wide or kind == "lm_head" else self.stored

    def activations_of(self, kind: str) -> Dtype:
        """In what the inputs of a kind of module are multiplied, where somebody says it; else the stream."""
        stored = dict(self.stated).get(getattr(self.formats, kind), self.stream)
        return self.inputs or (self.stream if stored.is_wide else stored)

    def at(self, layer: int) -> Precision:
        """Precision with the formats of one layer."""
        return replace(self, formats=self.layers[layer], layers=()) if self.layers else self

    def compute(self, weight: Dtype) -> Dtype:
        """Format in which a matrix with these weights is multiplied.

        >>> p = Precision(Dtype.BF16, Dtype.BF16, WeightFormats.uniform(Dtype.FP8_BLOCK))
        >>> p.compute(Dtype.FP8_BLOCK), p.compute(Dtype.MXFP4)
        (<Dtype.FP8_BLOCK: 'fp8_block'>, <Dtype.BF16: 'bf16'>)
        """
        if weight.is_wide:
            return self.stream
        if self.inputs is not None:
            return self.stream if self.inputs.is_wide else self.inputs
        stated = next((inputs for stored, inputs in self.stated if stored is weight), None)
        if stated is not None:
            return self.stream if stated.is_wide else stated
        return self.stream if weight.weight_only else weight


def resolve_precision(model: Model, deployment: Deployment, accelerator: Accelerator) -> Precision:
    """Combine checkpoint and deployment, and check that the accelerator can compute it.

    `weights` overrides the matrices of the layers; embedding, LM head, norms and router keep 16 bit when it is
    narrower, and a wide one is also the stream. The cache follows `activations` when that is a format a cache can
    have (wide, FP8 or INT8), else the checkpoint's own cache format or the stream. `attention_weights` and `lm_head`
    are those of attention's matrices and of the LM head, where they differ. Inputs that are to be narrow stay in the
    stream's format where the accelerator lacks theirs and engines have kernels that unpack the weights.
    """
    weights, asked = deployment.weights, deployment.activations
    if model.unpriced and weights is None:
        raise DtypeError(model.unpriced)
    for role in ("weights", "attention_weights", "lm_head"):
        _check_role(role, getattr(deployment, role), _STORED)
    _check_role("activations", asked, _INPUTS)
    _check_role("kv", deployment.kv, _CACHED)
    formats, layers = _override(model, deployment)
    stream = next((dtype for dtype in (asked, weights) if dtype is not None and dtype.is_wide), model.dtype)
    output = formats.attention_output or formats.attention
    layered = (formats.attention, output, formats.ffn, formats.experts, formats.shared_experts)
    if asked is not None and not asked.is_wide:
        _check_narrow(model, asked, layered, formats.lm_head)
    unpacked = _UNPACKED if accelerator.vendor == "NVIDIA" and asked is None else ()
    own = {stored: stored for stored in unpacked} | dict(() if weights else model.inputs)
    stated = tuple(
        (stored, stream if (stored.weight_only or stored in unpacked) and not accelerator.supports(inputs) else inputs)
        for stored, inputs in own.items()
        if stored not in unpacked or inputs is not stored or not accelerator.supports(stored)
    )
    inputs = asked
    if weights is not None and asked is None and accelerator.supports(weights):
        inputs = _NARROWED.get((accelerator.vendor, weights))
    index = Dtype.FP8 if accelerator.supports(Dtype.FP8) else stream
    unasked = model.kv_dtype or (Dtype.FP32 if stream is Dtype.TF32 else stream)  # the cache where nobody gave one
    kv = deployment.kv or (asked if asked in _FOLLOWED else unasked)
    stored = weights if weights is not None and weights.in_blocks else None
    precision = Precision(stream, kv, formats, inputs, layers, stored, stated, index)
    parts = ("attention", "attention_output", "value", "ffn", "down", "experts", "shared_experts", "shared_down")
    others = [dtype for each in dict.fromkeys(layers) for part in parts if (dtype := getattr(each, part)) is not None]
    for weight in dict.fromkeys((*layered, formats.lm_head, *others)):
        _check(precision.compute(weight), weight, accelerator)
    return precision


# What each role can be. TF32 is how fp32 numbers are multiplied, not how they are stored.
_WIDE = (Dtype.FP32, Dtype.BF16, Dtype.FP16)
_STORED = tuple(dtype for dtype in Dtype if dtype is not Dtype.TF32)
_CACHED = (*_WIDE, Dtype.FP8, Dtype.INT8, Dtype.INT4, Dtype.NVFP4, Dtype.Q8_0, Dtype.Q4_0)
_FOLLOWED = (*_WIDE, Dtype.FP8, Dtype.INT8)  # activations whose format the cache takes too
# Narrow activations that kernels multiply with each narrow weight; INT4 is W4A8.
_PARTNERS = {
    Dtype.FP8: (Dtype.FP8,),
    Dtype.FP8_BLOCK: (Dtype.FP8, Dtype.FP8_BLOCK),
    Dtype.INT8: (Dtype.INT8,),
    Dtype.INT4: (Dtype.FP8, Dtype.INT8),
    Dtype.NVFP4: (Dtype.NVFP4,),
    Dtype.MXFP4: (Dtype.MXFP4, Dtype.FP8),
}
_NARROWED = {("AMD", Dtype.MXFP4): Dtype.MXFP4}
"""Formats of inputs where weights in a weight-only format are asked for, on units that have it.

AMD's checkpoints (Quark) have weights and inputs in MXFP4, and vLLM multiplies them so on CDNA4 (huggingface.co/amd/
Llama-3.3-70B-Instruct-MXFP4-Preview). On Blackwell engines keep the inputs of MXFP4 in 16 bit unless told otherwise;
so does a checkpoint that names no format for them (gpt-oss).
"""
_UNPACKED = (Dtype.FP8, Dtype.FP8_BLOCK, Dtype.NVFP4)
"""Formats that NVIDIA's older accelerators unpack and multiply in 16 bit, unasked (Marlin, in vLLM and SGLang)."""
_INPUTS = (*_WIDE, Dtype.TF32, *dict.fromkeys(dtype for partners in _PARTNERS.values() for dtype in partners))


def _check_role(role: str, dtype: Dtype | None, allowed: tuple[Dtype, ...]) -> None:
    if dtype is None or dtype in allowed or (dtype.by_bits and allowed is _STORED):
        return
    near = {Dtype.TF32: Dtype.FP32, Dtype.FP8_BLOCK: Dtype.FP8, Dtype.MXFP4: Dtype.NVFP4}.get(dtype, dtype.unit)
    near = near if near in allowed else Dtype.INT8
    why = " (a format of arithmetic, not of storage)" if dtype is Dtype.TF32 else ""
    raise DtypeError(f"{role} cannot be {dtype}{why}; nearest: {near}; allowed: {', '.join(map(str, allowed))}")


def _check_narrow(model: Model, asked: Dtype, layered: tuple[Dtype, ...], lm_head: Dtype) -> None:
    """Refuse narrow activations unless every narrow weight is multiplied in them."""
    if all(dtype.is_wide for dtype in layered):
        raise DtypeError(
            f"activations {asked} need quantised weights, and {model.name}'s are {layered[2]}: add --weights {asked}"
        )
    for weight in dict.fromkeys((*layered, lm_head)):
        partners = _PARTNERS.get(weight) or _PARTNERS.get(weight.unit, ())  # whatever the group size
        partners = (Dtype.FP8, Dtype.INT8) if weight.by_bits else partners
        if not weight.is_wide and asked not in partners:
            valid = ", ".join(map(str, (*_WIDE, *partners)))
            raise DtypeError(f"activations {asked} do not go with {weight} weights; valid: {valid}")


def _override(model: Model, deployment: Deployment) -> tuple[WeightFormats, tuple[WeightFormats, ...]]:
    """The checkpoint's formats with those that were given, and those of each layer where they differ."""
    weights, formats, layers = deployment.weights, model.formats, model.layer_formats
    if weights is not None and weights.in_blocks:
        formats, layers = gguf_formats(model, weights)
        weights = None
    elif _is_mxfp4_file(model, deployment):
        rest, weights = Dtype.Q8_0, None
        formats, layers = WeightFormats(rest, rest, Dtype.MXFP4, rest, rest, rest, Dtype.FP32), ()
    return _given(formats, deployment, weights), tuple(_given(each, deployment, weights) for each in layers)


def _is_mxfp4_file(model: Model, deployment: Deployment) -> bool:
    """True if llama.cpp has experts in MXFP4 and all else in Q8_0: its MXFP4_MOE (llama-quant.cpp), as gpt-oss is.

    Not of a checkpoint whose file has told the format of each layer.
    """
    if deployment.engine != "llama.cpp" or model.layer_formats:
        return False
    asked = deployment.weights or (model.formats.experts if not model.formats.attention.in_blocks else None)
    return asked is Dtype.MXFP4 and any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layers)


def _given(formats: WeightFormats, deployment: Deployment, weights: Dtype | None) -> WeightFormats:
    """The formats with `weights` for all matrices, and those that were given for attention and for the LM head."""
    attention = deployment.attention_weights
    if weights is not None and weights.is_wide:
        formats = WeightFormats.uniform(weights)
    elif weights is not None:
        matrices = dict.fromkeys(("ffn", "experts", "shared_experts"), weights)
        formats = replace(formats, **matrices, down=None, shared_down=None)
    if (attention := attention or weights) is not None:
        formats = replace(formats, attention=attention, attention_output=attention, value=None)
    return formats if deployment.lm_head is None else replace(formats, lm_head=deployment.lm_head)


def _check(compute: Dtype, weight: Dtype, accelerator: Accelerator) -> None:
    if accelerator.supports(compute):
        return
    known = ", ".join(dtype.value for dtype in accelerator.peaks)
    wide = next((dtype.value for dtype in (Dtype.BF16, Dtype.FP16, Dtype.FP32) if accelerator.supports(dtype)), None)
    does = "runs it there" if weight.is_wide else "dequantises the weights and computes in 16 bit"
    remedy = "" if wide is None else f"; --activations {wide} {does}"
    raise DtypeError(
        f"{accelerator.name} has no {compute.unit} arithmetic for {weight} weights; it has {known}{remedy}"
    )


_GROUPED, _SPARSE = 4, 8  # query heads of a KV head; experts


@dataclass(frozen=True)
class Recipe:
    """The formats of the tensors of one quantised file, without an importance matrix.

    Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp

    base: of most matrices. value, output, down: of values, attention outputs and down projections, where another.
    more: of values and down projections in the outer eighths of the layers and every third one between them. grouped:
    of values that four or more query heads share. lead: of values in so many first layers. first: of down projections
    in the first layers, one of so many. head: of the LM head, or of the table that is both.
    """

    base: Dtype
    more: Dtype | None = None
    grouped: Dtype | None = None
    first: tuple[int, Dtype] | None = None
    head: Dtype = Dtype.Q6_K
    value: Dtype | None = None
    output: Dtype | None = None
    down: Dtype | None = None
    lead: tuple[int, Dtype] | None = None

    def parts(self, place: int, depth: int) -> tuple[Dtype | None, Dtype | None]:
        """The formats of values and of the down projection of a layer, none where the base."""
        if self.more and has_more_bits(place, depth):
            return self.more, self.more
        early = self.first is not None and place < depth // self.first[0]
        down = self.first[1] if self.first and early else self.down
        return (self.lead[1] if self.lead and place < self.lead[0] else self.value), down


_K3, _K4, _K5 = Dtype.Q3_K, Dtype.Q4_K, Dtype.Q5_K
RECIPES = {
    **{dtype: Recipe(dtype) for dtype in BLOCKS},
    Dtype.Q8_0: Recipe(Dtype.Q8_0, head=Dtype.Q8_0),
    Dtype.Q2_K: Recipe(Dtype.Q2_K, grouped=_K4, value=_K3, output=_K3, down=_K3),
    Dtype.Q3_K_S: Recipe(_K3),
    Dtype.Q3_K_M: Recipe(_K3, value=_K4, output=_K4, down=_K4, lead=(2, _K5), first=(16, _K5)),
    Dtype.Q3_K_L: Recipe(_K3, value=_K5, output=_K5, down=_K5),
    Dtype.Q4_K_S: Recipe(_K4, lead=(4, _K5), first=(8, _K5)),
    Dtype.Q4_K_M: Recipe(_K4, more=Dtype.Q6_K),
    Dtype.Q5_K_S: Recipe(_K5),
    Dtype.Q5_K_M: Recipe(_K5, more=Dtype.Q6_K),
    Dtype.IQ4_NL: Recipe(Dtype.IQ4_NL, grouped=_K5, first=(8, _K5)),
    Dtype.IQ4_XS: Recipe(Dtype.IQ4_XS, grouped=_K5, first=(8, _K5)),
}
"""Formats of a model's tensors for `--weights` in a GGUF format."""
RECIPES.update({dtype: RECIPES[base] for dtype, base in MIXED_AS.items()})


def has_more_bits(layer: int, depth: int) -> bool:
    """True if mixed formats give a layer's values and down projection more bits (`use_more_bits` in llama-quant.cpp).

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
        value, down = recipe.parts(place, model.depth)
        if recipe.grouped and isinstance(mixer, Attention) and mixer.heads >= _GROUPED * mixer.kv_heads:
            value = recipe.grouped
        if isinstance(ffn, MixtureOfExperts) and ffn.experts == _SPARSE:
            value = Dtype.Q8_0
        layers.append(replace(usual, value=value, attention_output=recipe.output, down=down, shared_down=down))
    return usual, tuple(layers)

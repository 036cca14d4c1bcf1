"""A language model as a tuple of layers, each a mixer and a feed-forward block.

A newcomer reads this file as the list of everything the library understands. Sizes are element counts; nothing here
knows about GPUs, batches or time. Layers are values: equal layers compare and hash equal, so a model with 80
identical layers costs as much to describe as one. `cut` names the sizes of a block that tensor parallelism divides.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Literal, TypeAlias

from rooflinekit.model.graph.symbol import Quantity, quantity
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.vision import Images, Vision

Norm: TypeAlias = Literal["rmsnorm", "layernorm", "layernorm_nobias", "none"]


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of sparse attention: picks the `top_k` keys a query attends to (DeepSeek-V3.2).

    MiniMax-M3 picks blocks of keys with heads that are cut like query heads, and keeps its keys in 16 bit.
    """

    heads: int = quantity("Hi", "heads of the indexer")
    head_dim: int = quantity("di", "width of an index head")
    top_k: int = quantity("best", "keys that the indexer picks for a query")
    shared: bool = False  #: reuses the choice of an earlier layer: no weights, keys or scores of its own (GLM-5.2)
    wide: bool = False  #: queries, keys and scores in the stream's 16 bit
    normed: bool = False  #: norms on its queries and keys, and no gate on its heads (MiniMax-M3)
    pool: int = quantity("pool", "tokens that an index key stands for", default=1)  #: weighed by a gate (GLM-5.3)


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with `heads` query heads that share `kv_heads` keys and values (MHA, GQA, MQA).

    MHA is kv_heads == heads, MQA is kv_heads == 1 (Shazeer 2019, arXiv:1911.02150), GQA lies between
    (Ainslie et al. 2023, arXiv:2305.13245).
    """

    heads: int = quantity("H", "query heads")
    kv_heads: int = quantity("K", "KV heads")
    head_dim: int = quantity("d", "width of a head")
    v_head_dim: int = quantity("e", "width of a head's values")
    window: int | None = None  #: sliding window: a token sees itself and the window - 1 tokens before it
    chunk: int | None = None  #: chunked attention (Llama-4): a token sees the tokens of its own chunk
    qkv_bias: bool = False
    o_bias: bool = False
    q_norm: int = 0  #: weights of the norm on the queries (0: none)
    k_norm: int = 0  #: weights of the norm on the keys (0: none)
    norm_over_heads: bool = False  #: both are over the width of all heads at once
    sinks: bool = False  #: one learned logit a head (gpt-oss)
    gated: bool = False  #: an output gate doubles the query projection (Qwen3-Next)
    head_gated: bool = False  #: an output gate of one number a head (Step-3.7)
    keys_are_values: bool = False  #: one projection yields both keys and values (Gemma-4, global layers)
    shared: bool = False  #: reuses keys and values of an earlier layer: no projections or cache of its own (Gemma-3n)
    rotary: bool = True
    unbiased_keys: bool = False  #: keys have no bias where queries and values have one (Whisper)
    wide: bool = False  #: reads the embedding beside the stream, twice the width (Zamba2)
    adapters: int = 0  #: rank of matrices beside those of queries, keys and values, for this layer alone (Zamba2)
    bidirectional: bool = False  #: of an encoder: every token of a sequence sees every other, and no cache is kept
    indexer: Indexer | None = None
    q_rank: int = 0  #: queries go through a normed vector of this width, whole on every rank (Step-3); 0: they do not

    cut = ("heads", "attention heads"), ("kv_heads", "KV heads")

    @property
    def kind(self) -> str:
        """mha, gqa or mqa."""
        if self.kv_heads == self.heads:
            return "mha"
        return "mqa" if self.kv_heads == 1 else "gqa"


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention to what an encoder made of a prompt; keys and values are projected and cached once (T5, Whisper)."""

    heads: int = quantity("H", "query heads")
    kv_heads: int = quantity("K", "KV heads")
    head_dim: int = quantity("d", "width of a head")
    length: int = quantity("Te", "positions of the encoder")  #: 0: the prompt, cached with the rest
    qkv_bias: bool = False
    o_bias: bool = False
    unbiased_keys: bool = False
    normed: bool = False  #: norms on queries and keys, and gates on the layer's two results (Llama-3.2-Vision)

    kind = "cross_attention"
    cut = ("heads", "cross-attention heads"), ("kv_heads", "KV heads")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: the cache holds one latent of kv_rank + rope_dim elements a token.

    DeepSeek-V2 (arXiv:2405.04434), section 2.1. `q_rank` None means that queries are projected directly.
    """

    heads: int = quantity("H", "query heads")
    q_rank: int | None = quantity("Rq", "rank of the queries' latent")
    kv_rank: int = quantity("R", "rank of the latent that stands for keys and values")
    nope_dim: int = quantity("n", "width of a head without positions")
    rope_dim: int = quantity("r", "rotary width of a head, one key part for all heads")
    v_dim: int = quantity("e", "width of a head's values")
    indexer: Indexer | None = None
    gated: bool = False  #: an output gate, projected from the layer's input (Kimi-K3)
    head_gated: bool = False  #: an output gate of one number a head (Ling-2.6)
    rotary: bool = True

    kind = "mla"
    cut = (("heads", "attention heads"),)

    @property
    def qk_dim(self) -> int:
        """Width of one query head."""
        return self.nope_dim + self.rope_dim

    @property
    def latent_dim(self) -> int:
        """Elements the cache holds per token and layer."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """One key that is its own value for all heads, of a window of tokens and of groups of `ratio` tokens (DeepSeek-V4).

    With an indexer (compressed sparse attention, ratio 4) a query sees the window and the best groups, without one
    (heavily compressed attention, ratio 128) all of them; ratio 0 sees the window alone. Results leave by groups of
    heads, each through a projection of its own (transformers, modeling_deepseek_v4.py).
    """

    heads: int = quantity("H", "query heads")
    head_dim: int = quantity("d", "width of a head, and of a cached key")
    q_rank: int = quantity("Rq", "rank of the queries' latent")
    rope_dim: int = quantity("r", "rotary width of a head")
    out_groups: int = quantity("Go", "groups of heads that are projected out together")
    out_rank: int = quantity("Ro", "rank of each group's results")
    window: int = quantity("w", "last tokens that are kept as they are")
    ratio: int = quantity("c", "tokens that a compressed key stands for; 0: none")
    indexer: Indexer | None = None

    cut = (("heads", "attention heads"),)

    @property
    def kind(self) -> str:
        """Compressed and sparse (csa), or heavily compressed (hca)."""
        return "csa" if self.indexer else "hca"

    @property
    def overlap(self) -> int:
        """Compressed keys that a token goes into: neighbouring groups overlap where an indexer picks them."""
        return 2 if self.indexer else 1


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with the gated delta rule (Qwen3-Next; arXiv:2412.06464): a fixed state, no KV cache.

    Kimi delta attention (arXiv:2510.26692) decays each key channel, by two small matrices of `decay_rank`.
    """

    key_heads: int = quantity("Hk", "key heads")
    value_heads: int = quantity("Hv", "value heads")
    key_dim: int = quantity("dk", "width of a key head")
    value_dim: int = quantity("dv", "width of a value head")
    conv_width: int = quantity("t", "taps of the short convolution")
    decay_rank: int = 0  #: of the decay of each key channel; 0: a head has one decay
    gate_rank: int = 0  #: of the output gate; 0: one whole matrix
    whole_decay: bool = False  #: one whole matrix in place of the two of `decay_rank` (Ling-2.6)

    cut = (("key_heads", "linear-attention heads"),)

    @property
    def kind(self) -> str:
        """Kimi delta attention (kda), or the gated delta net."""
        return "kda" if self.decay_rank else "gated_delta_net"


@dataclass(frozen=True, slots=True)
class Rwkv7:
    """RWKV-7's time mixing (arXiv:2503.14456): a delta rule whose decay and rates follow from small matrices.

    Blocks read a token beside the one before it, which is kept, here for the feed-forward block too.
    """

    heads: int = quantity("H", "heads")
    head_dim: int = quantity("d", "width of a head")
    decay_rank: int = quantity("Rw", "rank of the decay")
    rate_rank: int = quantity("Ra", "rank of the rate of learning in context")
    gate_rank: int = quantity("Rg", "rank of the output gate")
    value_rank: int = quantity("Rv", "rank of the share of the first layer's values")  #: 0: this is the first layer

    kind = "rwkv7"
    cut = (("heads", "time-mixing heads"),)


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with a decayed outer-product state (MiniMax-M1, arXiv:2506.13585)."""

    heads: int = quantity("H", "heads")
    head_dim: int = quantity("d", "width of a head")

    kind = "lightning"
    cut = (("heads", "attention heads"),)


@dataclass(frozen=True, slots=True)
class Mamba:
    """Selective state space, first version (arXiv:2312.00752)."""

    inner: int = quantity("I", "channels")
    state: int = quantity("Ds", "state of a channel")
    conv_width: int = quantity("t", "taps of the short convolution")
    dt_rank: int = quantity("Rt", "rank of the time steps")
    conv_bias: bool = True
    proj_bias: bool = False
    norm: bool = True  #: weighted norms on dt, B and C (Jamba)

    kind = "mamba"
    cut = (("inner", "state-space channels"),)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Selective state space, second version (arXiv:2405.21060)."""

    heads: int = quantity("H", "heads")
    head_dim: int = quantity("d", "width of a head")
    groups: int = quantity("G", "groups that share B and C")
    state: int = quantity("Ds", "state of a channel")
    conv_width: int = quantity("t", "taps of the short convolution")
    conv_bias: bool = True
    proj_bias: bool = False
    norm: bool = True  #: a weighted norm on the gated result; most of Falcon-H1 have none

    kind = "mamba2"
    cut = (("heads", "state-space heads"),)

    @property
    def inner(self) -> int:
        """Width of the expanded stream."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GatedConvolution:
    """A short convolution between two elementwise gates (LFM2, arXiv:2511.23404): no state but its last inputs."""

    channels: int = quantity("I", "channels")
    conv_width: int = quantity("t", "taps of the short convolution")
    bias: bool = False  #: of the convolution and both projections

    kind = "gated_convolution"
    cut = (("channels", "convolution channels"),)


Mixer: TypeAlias = (
    Attention
    | CrossAttention
    | LatentAttention
    | CompressedAttention
    | GatedDeltaNet
    | Rwkv7
    | LightningAttention
    | Mamba
    | Mamba2
    | GatedConvolution
)


@dataclass(frozen=True, slots=True)
class DenseFFN:
    """A feed-forward block: two matrices, or three when gated (SwiGLU, GeGLU; Shazeer 2020, arXiv:2002.05202)."""

    width: int = quantity("F", "inner width of the feed-forward block")
    gated: bool = True
    bias: bool = False
    activation: int = 0  #: weights of a learned activation (Apertus' xIELU)
    adapters: int = 0  #: rank of matrices beside the first, for this layer alone (Zamba2)

    cut = (("width", "FFN columns"),)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A router that sends each token to `top_k` of `experts`, plus shared experts that every token visits."""

    experts: int = quantity("E", "experts")
    top_k: int = quantity("k", "experts that a token visits")
    width: int = quantity("Fe", "inner width of an expert")
    gated: bool = True
    bias: bool = False
    shared_width: int = quantity("Fs", "inner width of the shared experts", default=0)  #: all together; 0: none
    shared_gate: bool = False  #: a learned sigmoid gate on the shared expert (Qwen)
    router_bias: bool = False  #: one learned number an expert: a bias, or DeepSeek's balance correction
    latent: int | None = quantity("Dl", "width at which experts work, between two projections", default=None)
    latent_norm: bool = False  #: on what the experts return, before it is projected up (Kimi-K3)

    cut = (("shared_width", "shared-expert columns"),)


FeedForward: TypeAlias = DenseFFN | MixtureOfExperts


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the residual stream. `mixer` or `ffn` may be absent (Nemotron-H)."""

    mixer: Mixer | None
    ffn: FeedForward | None
    norm: Norm = "rmsnorm"
    norms: int = 2  #: norms over the residual width: 1 (parallel block), 2, or 4 (Gemma-2: before and after)
    parallel: bool = False  #: attention and FFN read the same input (GPT-J, Falcon, Command-R)
    streams: int = 1  #: residual streams, mixed around each block (hyper-connections, DeepSeek-V4)
    alternating: bool = (
        False  #: streams are predicted before a layer and corrected behind it instead (Gemma-3n's AltUp)
    )
    bypass: int = 0  #: rank of two matrices beside attention (Gemma-3n's LAuReL); 0: none
    token_width: int = 0  #: of an embedding of each token for this layer alone (Gemma-3n, Gemma-4); 0: none
    common: bool = False  #: a block for several layers, whose result a matrix of this one takes to the next (Zamba2)
    repeated: bool = False  #: the weights of that block are those of an earlier layer
    sources: int = 0  #: sums of earlier layers that a block attends to, beside the present one (Kimi-K3)

    opens: bool = False  #: the present sum begins with this layer, which attends to the earlier ones alone
    unmixed: bool = False  #: streams are weighed into a block and out of it, and not mixed with each other (Hy4)
    vectors: int = 0  #: weights of small vectors besides: sub-norms, scales of blocks and of the stream

    @property
    def carried(self) -> int:
        """Vectors of the residual width that a token takes from layer to layer."""
        return self.streams + self.sources


@dataclass(frozen=True, slots=True)
class Encoder:
    """The encoder of an encoder-decoder: its layers read the prompt (T5), or a sound that comes with it (Whisper)."""

    layers: tuple[Layer, ...]
    positions: int = 0  #: that come with every prompt; 0: it reads the prompt's tokens
    stem: tuple[tuple[int, int], ...] = ()  #: products before its layers: inputs, and rows of each prompt
    buckets: int = 0  #: distances with a learned number a head, in encoder and decoder (T5)


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The number format in which the checkpoint stores each kind of module."""

    attention: Dtype
    ffn: Dtype
    experts: Dtype
    shared_experts: Dtype
    embedding: Dtype
    lm_head: Dtype
    other: Dtype  #: norms, router, biases, convolutions, state-space parameters
    attention_output: Dtype | None = None  #: the output projection, where it differs from the rest of attention
    value: Dtype | None = None  #: the value projection, likewise
    down: Dtype | None = None  #: the down projections of feed-forward blocks and experts, where they differ
    shared_down: Dtype | None = None  #: those of shared experts

    @classmethod
    def uniform(cls, dtype: Dtype) -> WeightFormats:
        """Every module in the same format."""
        return cls(dtype, dtype, dtype, dtype, dtype, dtype, dtype)


@dataclass(frozen=True)
class Model:
    """A language model, exact to the last weight; decoder-only, but for those with an `encoder`.

    `layers` holds every layer in order, so its length is the depth. `dtype` is the format of the residual stream,
    `formats` the checkpoint's weight formats.
    """

    name: str
    hidden: int = field(metadata={"quantity": Quantity("D", "residual width")})
    vocab: int = field(metadata={"quantity": Quantity("V", "vocabulary")})
    layers: tuple[Layer, ...]
    dtype: Dtype
    formats: WeightFormats
    max_context: int | None
    layer_formats: tuple[WeightFormats, ...] = ()  #: of each layer, where they differ (GGUF files); () is `formats`
    tied: bool = False  #: the LM head is the embedding table
    position_rows: int = quantity(
        "positions", "rows of the table of positions", default=0
    )  #: learned ones (GPT-2, OPT)
    embedding_dim: int = quantity("De", "embedding width", default=0)  #: 0: `hidden`
    token_rows: int = quantity("Vl", "rows of the table of embeddings for each layer", default=0)  #: Gemma-3n; 0: none
    extra_rows: int = (
        0  #: of the table of embeddings beyond the logits: marks of images and the like (Llama-3.2-Vision)
    )
    embedding_norm: bool = False  #: a norm right after the embedding (BLOOM)
    vectors: int = 0  #: weights of small vectors that the model has once
    mean_streams: bool = False  #: residual streams end in their mean, without weights (GLM-5.3)
    final_norm: Norm = "rmsnorm"
    lm_head_bias: bool = False
    outputs: int | None = None  #: scores in place of logits; 0: an embedding, without a head; None: a language model
    kv_dtype: Dtype | None = None  #: cache format that the checkpoint asks for (kv_cache_scheme)
    inputs: tuple[tuple[Dtype, Dtype], ...] = ()  #: of stored formats, in what else than their own they are multiplied
    unpriced: str = ""  #: why the formats of the checkpoint are not costed; weights that are given stand in for them
    rotary_tables: int = 1  #: of cosines and sines an engine keeps, each of `max_context` positions
    tower: int = 0  #: parameters of vision towers and projectors, in 16 bit, which take memory whatever is asked
    encoder_peak: int = 0  #: elements that its encoders hold at once for the largest item that engines profile
    vision: Vision | None = None  #: the tower that encodes images, where it is described; None: images are refused
    encoder: Encoder | None = None  #: of an encoder-decoder, whose decoder is `layers`
    head_place: bool = False  #: the head counts as one more layer where pipeline stages split the depth (llama.cpp)
    mtp_layers: int = 0  #: multi-token-prediction layers in the checkpoint; counted apart, never in the totals
    aliases: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    origin: str = ""  #: where it was read from (file)
    file_bytes: int = 0  #: of all tensors of that file; 0: it holds none
    read_keys: dict[str, str] = field(default_factory=dict, compare=False, hash=False)  #: config key -> what it gave

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def stage_edge(self, stage: int, stages: int) -> int:
        """The first layer of one of `stages` pipeline stages, which split the depth as evenly as it goes."""
        if self.head_place:
            return min(-(-stage * (self.depth + 1) // stages), self.depth)
        return stage * self.depth // stages

    def stage_layers(self, stage: int, stages: int) -> tuple[Layer, ...]:
        """The layers of one of `stages` pipeline stages."""
        return self.layers[self.stage_edge(stage, stages) : self.stage_edge(stage + 1, stages)]

    def seeing(self, images: Images) -> Vision:
        """The tower that encodes images."""
        if self.vision is None:
            why = "has a vision tower that is not described" if self.tower else "reads text alone"
            raise DeploymentError(f"images={images.count}, but {self.name} {why}; leave images out")
        return self.vision

    @cached_property
    def matrices(self) -> tuple[str, ...]:
        """The kinds of weight matrices that the layers have, as `WeightFormats` names them; the heaviest kind last."""
        layers = self.layer_counts
        present = {
            "attention": any(layer.mixer is not None for layer in layers),
            "ffn": any(isinstance(layer.ffn, DenseFFN) for layer in layers),
            "experts": any(isinstance(layer.ffn, MixtureOfExperts) for layer in layers),
        }
        return tuple(kind for kind, there in present.items() if there)

    def passes_by(self, layer: Layer) -> bool:
        """True if a prompt without an image passes a layer by: it attends to an image alone (Llama-3.2-Vision)."""
        return self.encoder is None and isinstance(layer.mixer, CrossAttention) and not layer.mixer.length

    def beside(self, images: Images) -> Model:
        """Itself, with as many positions in the layers that attend to images alone as the images have."""
        positions = self.seeing(images).positions(images)
        if not positions:
            return self
        seen = {
            layer: replace(layer, mixer=replace(layer.mixer, length=positions))
            for layer in self.layer_counts
            if isinstance(layer.mixer, CrossAttention)
        }
        return replace(self, layers=tuple(seen.get(layer, layer) for layer in self.layers))

    @cached_property
    def compressed(self) -> bool:
        """Whether a layer attends to compressed groups of keys beside a window, as in DeepSeek-V4."""
        return any(isinstance(layer.mixer, CompressedAttention) for layer in self.layer_counts)

    @cached_property
    def layer_counts(self) -> Counter[Layer]:
        """Distinct layers with their counts, in order of first appearance."""
        return Counter(self.layers)

"""Number formats: how many bytes an element costs, and which compute units it runs on."""

from __future__ import annotations

import re
from enum import Enum

from rooflinekit.model.graph.symbol import fact
from rooflinekit.model.types.errors import DtypeError, nearest


class Dtype(Enum):
    """A number format, by the name that files and the command line use.

    `bytes` counts block scales: fp8_block one fp32 scale per 128 x 128 tile (DeepSeek-V3, arXiv:2412.19437, 3.3.2);
    mxfp4 one 8-bit scale per 32 elements (OCP MX v1.0); nvfp4 one fp8 scale per 16 (NVIDIA Blackwell);
    int4 one fp16 scale per group of 128 (AWQ arXiv:2306.00978, GPTQ arXiv:2210.17323 default group), int4_g64 and
    int4_g32 per group of 64 and 32. Those of GGUF files follow from their blocks (`BLOCKS`); names with a size (q4_k_m)
    mix several, tensor by tensor (`model.precision`), and count here as the commonest one. Besides these, `4.25bpw` is
    any number of bits a weight, scales included, that kernels dequantise to 16 bit.

    >>> Dtype.NVFP4.bytes, Dtype.MXFP4.bytes, Dtype.BF16.bytes, Dtype.Q6_K.bytes
    (0.5625, 0.53125, 2.0, 0.8203125)
    >>> Dtype("4.25bpw").bytes, Dtype("4.25bpw") is Dtype("4.250bpw")
    (0.53125, True)
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    INT4 = "int4"
    INT4_G64 = "int4_g64"
    INT4_G32 = "int4_g32"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    Q3_K_S = "q3_k_s"
    Q3_K_M = "q3_k_m"
    Q3_K_L = "q3_k_l"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q4_K = "q4_k"
    Q4_K_S = "q4_k_s"
    Q4_K_M = "q4_k_m"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q5_K = "q5_k"
    Q5_K_S = "q5_k_s"
    Q5_K_M = "q5_k_m"
    Q6_K = "q6_k"
    Q8_0 = "q8_0"
    IQ1_M = "iq1_m"
    IQ1_S = "iq1_s"
    IQ2_S = "iq2_s"
    IQ2_XS = "iq2_xs"
    IQ2_XXS = "iq2_xxs"
    IQ3_S = "iq3_s"
    IQ3_XXS = "iq3_xxs"
    IQ4_NL = "iq4_nl"
    IQ4_XS = "iq4_xs"
    TQ1_0 = "tq1_0"
    TQ2_0 = "tq2_0"
    Q1_0 = "q1_0"
    UD_Q2_K_XL = "ud_q2_k_xl"
    UD_Q3_K_XL = "ud_q3_k_xl"
    UD_Q4_K_XL = "ud_q4_k_xl"
    UD_Q5_K_XL = "ud_q5_k_xl"
    UD_Q6_K_XL = "ud_q6_k_xl"
    UD_Q8_K_XL = "ud_q8_k_xl"

    __hash__ = object.__hash__  # members are single objects; Enum's own runs Python for each look into a table

    @classmethod
    def _missing_(cls, value: object) -> Dtype | None:
        """The format of a number of bits a weight, made when it is first named."""
        found = re.fullmatch(BITS_A_WEIGHT, value) if isinstance(value, str) else None
        if found is None or not _LEAST_BITS <= float(found[1]) <= _MOST_BITS:
            return None
        name = f"{float(found[1]):.10g}bpw"
        known = cls._value2member_map_.get(name)
        if not isinstance(known, Dtype):
            known = object.__new__(cls)
            known._name_ = known._value_ = name
            _BYTES[known] = _size(known, float(found[1]) / 8)
            _UNITS[known] = Dtype.INT4 if known.bytes < _UNPACKED_AS_BYTES else Dtype.INT8  # kernels that unpack them
            cls._value2member_map_[name] = known
        return known

    @classmethod
    def of_bits(cls, bits: float) -> Dtype:
        """The format of so many bits a weight, scales included.

        >>> Dtype.of_bits(4 + 20 / 128)
        <Dtype.4.15625bpw: '4.15625bpw'>
        """
        return cls(f"{bits:.7f}bpw")

    @property
    def bytes(self) -> float:
        """Bytes an element costs in memory, scales included [B]."""
        return _BYTES[self]

    @property
    def unit(self) -> Dtype:
        """The format whose peak rate applies when the arithmetic is native.

        >>> Dtype.FP8_BLOCK.unit
        <Dtype.FP8: 'fp8'>
        """
        return _UNITS.get(self, self)

    @property
    def weight_only(self) -> bool:
        """True if engines store weights in this format but compute in 16 bit (AWQ, GPTQ, MXFP4 experts)."""
        return self.unit in (Dtype.INT4, Dtype.MXFP4) or self.in_blocks or self.by_bits

    @property
    def symbol(self) -> str:
        """Symbol of the bytes of an element in formulas."""
        return f"b_{self.value.replace('.', '_')}"

    @property
    def by_bits(self) -> bool:
        """True if the format is known by its bits a weight alone."""
        return self.value.endswith("bpw")

    @property
    def in_blocks(self) -> bool:
        """True if only GGUF files hold this format."""
        return self in BLOCKS

    @property
    def is_wide(self) -> bool:
        """True if activations and the residual stream may live in this format (16 or 32 bit)."""
        return self in (Dtype.FP32, Dtype.TF32, Dtype.BF16, Dtype.FP16)

    @property
    def widened(self) -> Dtype:
        """Dtype of a bias: at least 16 bit, whatever the matrix is stored in."""
        return self if self.is_wide else Dtype.BF16

    def __str__(self) -> str:
        return self.value


_UNITS = {Dtype.FP8_BLOCK: Dtype.FP8, Dtype.INT4_G64: Dtype.INT4, Dtype.INT4_G32: Dtype.INT4}

BLOCKS = {
    Dtype.Q2_K: (256, 84), Dtype.Q3_K: (256, 110),
    Dtype.Q4_0: (32, 18), Dtype.Q4_1: (32, 20), Dtype.Q4_K: (256, 144),
    Dtype.Q5_0: (32, 22), Dtype.Q5_1: (32, 24), Dtype.Q5_K: (256, 176),
    Dtype.Q6_K: (256, 210), Dtype.Q8_0: (32, 34),
    Dtype.IQ1_M: (256, 56), Dtype.IQ1_S: (256, 50), Dtype.IQ2_S: (256, 82), Dtype.IQ2_XS: (256, 74),
    Dtype.IQ2_XXS: (256, 66), Dtype.IQ3_S: (256, 110), Dtype.IQ3_XXS: (256, 98),
    Dtype.IQ4_NL: (32, 18), Dtype.IQ4_XS: (256, 136), Dtype.TQ1_0: (256, 54), Dtype.TQ2_0: (256, 66),
    Dtype.Q1_0: (128, 18),
}  # fmt: skip
"""Weights of a block and its bytes, scales included (block_* in ggml-common.h, github.com/ggml-org/llama.cpp)."""

MIXED_AS = {
    Dtype.UD_Q2_K_XL: Dtype.Q2_K,
    Dtype.UD_Q3_K_XL: Dtype.Q3_K_M,
    Dtype.UD_Q4_K_XL: Dtype.Q4_K_M,
    Dtype.UD_Q5_K_XL: Dtype.Q5_K_M,
    Dtype.UD_Q6_K_XL: Dtype.Q6_K,
    Dtype.UD_Q8_K_XL: Dtype.Q8_0,
}
"""Unsloth's files choose a format for each tensor; without the file the mixture of its base stands in."""

for _mixed in Dtype:  # mixtures count as their base
    if _base := re.fullmatch(r"(?:ud_)?(q\d_k)_(?:s|m|l|xl)", _mixed.value):
        BLOCKS[_mixed] = BLOCKS[Dtype.Q8_0 if _base[1] == "q8_k" else Dtype(_base[1])]

BITS_A_WEIGHT = r"(\d{1,2}(?:\.\d{1,7})?) ?bpw"
"""Pattern of a number of bits a weight."""

_LEAST_BITS, _MOST_BITS = 0.5, 64.0
_UNPACKED_AS_BYTES = 0.75  # 6 bits
_PRECISION = "docs/architecture.md, precision rules"
_SIZES = {
    Dtype.FP32: 4.0,
    Dtype.TF32: 4.0,
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.FP8_BLOCK: 1.0 + 4.0 / (128 * 128),
    Dtype.INT8: 1.0,
    Dtype.INT4: 0.5 + 2.0 / 128,
    Dtype.INT4_G64: 0.5 + 2.0 / 64,
    Dtype.INT4_G32: 0.5 + 2.0 / 32,
    Dtype.NVFP4: 0.5 + 1.0 / 16,
    Dtype.MXFP4: 0.5 + 1.0 / 32,
    **{dtype: size / weights for dtype, (weights, size) in BLOCKS.items()},
}


def _size(dtype: Dtype, size: float) -> float:
    """The bytes of an element as a fact that formulas name."""
    meaning = f"bytes of an element in {dtype.value}, scales included"
    return fact(size, dtype.symbol, meaning, "B", _PRECISION)


_BYTES = {dtype: _size(dtype, size) for dtype, size in _SIZES.items()}

_ALIASES = {
    "float32": "fp32", "float": "fp32", "f32": "fp32", "single": "fp32",
    "tensorfloat32": "tf32",
    "bfloat16": "bf16",
    "float16": "fp16", "half": "fp16", "f16": "fp16",
    "float8": "fp8", "f8": "fp8", "e4m3": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "e5m2": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8_dynamic": "fp8", "fp8_static": "fp8", "w8a8_fp8": "fp8",
    "fp8_block128": "fp8_block", "fp8_blockwise": "fp8_block", "fp8_128x128": "fp8_block",
    "i8": "int8", "w8a8": "int8", "int8_w8a8": "int8",
    "i4": "int4", "w4a16": "int4", "int4_wo": "int4", "int4_g128": "int4", "awq": "int4",
    "gptq": "int4", "int4_awq": "int4", "int4_gptq": "int4", "w4a16_g64": "int4_g64", "w4a16_g32": "int4_g32",
    "fp4": "nvfp4", "nv_fp4": "nvfp4",
    "mx_fp4": "mxfp4", "fp4_mx": "mxfp4",
}  # fmt: skip


def parse_dtype(text: str | Dtype) -> Dtype:
    """Read a number format by its name or a usual alias.

    >>> parse_dtype("bfloat16"), parse_dtype("e4m3")
    (<Dtype.BF16: 'bf16'>, <Dtype.FP8: 'fp8'>)
    """
    if isinstance(text, Dtype):
        return text
    folded = str(text).strip().lower().replace("-", "_").removeprefix("torch.")
    folded = re.sub(r"^(?=q\d_k_xl$)", "ud_", folded)
    try:
        return Dtype(_ALIASES.get(folded, folded))
    except ValueError:
        known = [dtype.value for dtype in Dtype]
        near = nearest(folded, [*known, *_ALIASES]) or known
        raise DtypeError(f"unknown dtype {text!r}; nearest: {', '.join(near)}") from None

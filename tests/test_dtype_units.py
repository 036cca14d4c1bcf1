"""Number formats by name and size, units on the way in and out."""

from __future__ import annotations

import pytest

import rooflinekit as rk
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import DtypeError, nearest
from rooflinekit.model.types.units import format_bytes, format_count, format_rate, format_time, parse_quantity


@pytest.mark.parametrize(("dtype", "size"), [
    (Dtype.FP32, 4), (Dtype.TF32, 4), (Dtype.BF16, 2), (Dtype.FP16, 2), (Dtype.FP8, 1), (Dtype.INT8, 1),
    (Dtype.FP8_BLOCK, 1 + 4 / 16384),  # one fp32 scale per 128 x 128
    (Dtype.MXFP4, 0.5 + 1 / 32),  # one byte per 32
    (Dtype.NVFP4, 0.5 + 1 / 16),  # one byte per 16
    (Dtype.INT4, 0.5 + 2 / 128),  # one fp16 scale per 128
])  # fmt: skip
def test_bytes_of_an_element_with_its_scales(dtype, size):
    assert dtype.bytes == size


@pytest.mark.parametrize("dtype", Dtype)
def test_every_format_reads_back_by_its_name(dtype):
    assert parse_dtype(dtype.value) is dtype
    assert parse_dtype(dtype.value.upper()) is dtype
    assert parse_dtype(f"  torch.{dtype.value} ") is dtype
    assert parse_dtype(dtype) is dtype
    assert str(dtype) == dtype.value


@pytest.mark.parametrize(("alias", "dtype"), [
    ("bfloat16", Dtype.BF16), ("torch.bfloat16", Dtype.BF16), ("half", Dtype.FP16), ("f16", Dtype.FP16),
    ("float16", Dtype.FP16), ("float", Dtype.FP32), ("e4m3", Dtype.FP8), ("FP8-E4M3", Dtype.FP8),
    ("float8_e4m3fn", Dtype.FP8), ("fp8-block", Dtype.FP8_BLOCK), ("int4_wo", Dtype.INT4), ("awq", Dtype.INT4),
    ("w4a16", Dtype.INT4), ("w8a8", Dtype.INT8), ("fp4", Dtype.NVFP4), ("mx-fp4", Dtype.MXFP4),
])  # fmt: skip
def test_the_usual_aliases(alias, dtype):
    assert parse_dtype(alias) is dtype


def test_the_alias_of_the_contract_with_a_group_of_32():
    assert parse_dtype("int4-g32").unit is Dtype.INT4
    assert parse_dtype("int4-g32").bytes == 0.5 + 2 / 32  # half a byte, and one fp16 scale for 32 elements


@pytest.mark.parametrize("text", ["fp7", "", "bf-sixteen", "16", None, 8])
def test_an_unknown_format_names_the_nearest(text):
    with pytest.raises(DtypeError, match="unknown dtype") as caught:
        parse_dtype(text)
    assert "nearest: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bits_a_weight_are_a_format_of_their_own():
    half, same = parse_dtype("4.5 bpw"), parse_dtype("4.50bpw")
    assert half is same is Dtype.of_bits(4.5)
    assert (half.bytes, half.unit, half.weight_only, half.in_blocks) == (4.5 / 8, Dtype.INT4, True, False)
    assert (parse_dtype("8.25bpw").unit, parse_dtype("3bpw").unit) == (Dtype.INT8, Dtype.INT4)
    assert half.symbol.isidentifier() and half not in list(Dtype)
    for wrong in ("0bpw", "65bpw", "4.123456789bpw", "bpw", "-4bpw", "1e2bpw"):
        with pytest.raises(DtypeError, match="unknown dtype"):
            parse_dtype(wrong)


def test_which_unit_computes_and_what_is_dequantised():
    assert Dtype.FP8_BLOCK.unit is Dtype.FP8
    narrow = {d.value for d in Dtype if d.weight_only}
    assert {"int4", "int4_g64", "int4_g32", "mxfp4", "q4_k_m", "q8_0", "iq4_xs"} < narrow
    assert not narrow & {"fp8", "fp8_block", "nvfp4", "int8", "bf16", "fp16"}
    assert [d for d in Dtype if d.is_wide] == [Dtype.FP32, Dtype.TF32, Dtype.BF16, Dtype.FP16]


@pytest.mark.parametrize(("text", "dimension", "value"), [
    ("3.35 TB/s", "B/s", 3.35e12),
    ("3350 GB/s", "B/s", 3.35e12),
    ("400 Gb/s", "B/s", 50e9),  # bits
    ("80 GB", "B", 80e9),
    ("80 GiB", "B", 80 * 2**30),
    ("81559 MiB", "B", 81559 * 2**20),
    ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
    ("1979 TOP/s", "FLOP/s", 1979e12),
    ("1.98 GHz", "Hz", 1.98e9),
    ("1830 MHz", "Hz", 1.83e9),
    ("3.5 us", "s", 3.5e-6),
    ("700 W", "W", 700.0),
    ("2.95 USD/h", "USD/h", 2.95),
    (" 1e3 B ", "B", 1000.0),
    ("3.35TB/s", "B/s", 3.35e12),
    (".5 GB", "B", 5e8),
])  # fmt: skip
def test_quantities_are_read_in_si(text, dimension, value):
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "dimension"), [
    ("3.35", "B/s"),  # no unit
    (3.35, "B/s"),  # a bare number
    ("3.35 TB", "B/s"),  # a size, not a rate
    ("3.35 TB/s", "B"),
    ("80 gib", "B"),  # prefixes are case-sensitive: m is not M
    ("400 GFLOP/s", "B/s"),
    ("TB/s", "B/s"),
    ("1,000 GB/s", "B/s"),
    ("", "B"),
    (None, "B"),
    ("nan GB", "B"),
    ("1 GiFLOP/s", "FLOP/s"),  # binary prefixes count bytes only
])  # fmt: skip
def test_a_quantity_without_the_right_unit_is_refused(text, dimension):
    with pytest.raises(ValueError, match="write it like"):
        parse_quantity(text, dimension)


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 µs"), (4.15e-9, "4.15 ns"), (3.58e-6, "3.58 µs"), (12.5e-6, "12.5 µs"), (999.4e-6, "999 µs"),
    (999.9e-6, "1.00 ms"), (4.79e-3, "4.79 ms"), (0.6789, "679 ms"), (0.9999, "1.00 s"),
    (1.234, "1.23 s"), (1234.5, "1,234 s"), (12000.0, "12,000 s"), (1e9, "1.00e+09 s"),
])  # fmt: skip
def test_times_have_three_digits(seconds, text):
    assert format_time(seconds) == text


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 B"), (1, "1.00 B"), (999, "999 B"), (131072, "131 kB"), (999_600, "1.00 MB"),
    (5.369e9, "5.37 GB"), (1.41e11, "141 GB"),
])  # fmt: skip
def test_sizes_are_decimal(count, text):
    assert format_bytes(count) == text


def test_counts_and_rates():
    assert format_count(8_030_261_248) == "8.03 G"
    assert format_count(16.1e9, "FLOP") == "16.1 GFLOP"
    assert format_rate(989.4e12, "FLOP/s") == "989 TFLOP/s"
    assert format_rate(450e9, "B/s") == "450 GB/s"


def test_the_nearest_names_are_known_names_best_first():
    assert nearest("H100_SXM", ["l4", "h100-pcie", "h100-sxm"])[0] == "h100-sxm"
    assert nearest("zzzz", ["l4", "h100-sxm"]) == []


@pytest.mark.parametrize(("role", "told"), [("weights", "tf32"), ("activations", "4.5bpw")])
def test_a_format_of_arithmetic_is_none_of_storage_nor_the_other_way_round(role: str, told: str) -> None:
    with pytest.raises(rk.InputError, match=f"{role} cannot be {told}"):
        rk.estimate("llama-3-8b", **{role: told})  # type: ignore[arg-type]

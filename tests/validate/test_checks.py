"""The checks pass on this machine, and each of many broken kernels makes the check fail that is there for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `gpu` (torch)")

import torch

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.validate import (
    attend,
    checks,
    decode,
    decoder,
    elementwise,
    experts,
    feedforward,
    latent,
    positions,
    quantise,
    sampling,
    speculative,
)
from rooflinekit.validate import cache as kv_cache
from rooflinekit.validate.checks import CHECKS, CheckResult, run_checks
from rooflinekit.validate.tolerance import Trial, chi_square, compare, critical_chi_square, rounding

CPU = torch.device("cpu")
BY_NAME = {check.__name__: check for check in CHECKS}


def failed(check: str) -> list[CheckResult]:
    """What fails in one group of checks, run as `run_checks` runs it."""
    with torch.inference_mode():
        return [result for result in checks._results(BY_NAME[check], Trial(CPU, torch.float32)) if result.failed]


@cache
def passes(check: str) -> bool:
    return failed(check) == []


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def everything() -> tuple[list[CheckResult], list[str]]:
    """All results, and what the progress heard."""
    heard: list[str] = []
    return run_checks("cpu", heard.append), heard


class TestAllPass:
    def test_on_this_cpu(self) -> None:
        results, heard = everything()
        assert [(r.name, r.error, r.tolerance) for r in results if not r.passed] == []
        assert heard == list(BY_NAME)
        assert len({r.name + r.detail for r in results}) == len(results)

    def test_rounding_is_seen_and_no_tolerance_is_lax(self) -> None:
        """A tolerance a thousand times what is needed would let errors pass; exact agreement everywhere would mean
        that nothing independent was compared."""
        results = [r for r in everything()[0] if "float64" in r.name or "recomputation" in r.name]
        compared = [r.error / r.tolerance for r in results if "complex" not in r.name]
        assert min(compared) > 1e-3
        assert sum(ratio > 0.05 for ratio in compared) > 0.8 * len(compared)  # how sums are split over threads varies

    def test_a_check_that_cannot_run_has_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def out_of_memory(device: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")
            yield

        monkeypatch.setattr(checks, "CHECKS", (out_of_memory,))
        (result,) = run_checks("cpu")
        assert not result.passed
        assert result.failed
        assert result.detail == "did not run: out of memory"


ROTATE, VISIBLE, ROUTE, SLOPES = positions.rotate, positions.visible, feedforward.route, positions.alibi_slopes
ATTEND, PARTIAL = attend.attend, attend._partial
APPEND, PAGED = kv_cache.ContiguousCache.append, kv_cache.PagedCache.append
GROUPED = feedforward.grouped_matmul


def stale(self: Any, past: int, *new: Any) -> Any:
    """A cache that keeps the prompt and never takes in what was decoded."""
    if past == 0:
        return APPEND(self, past, *new)
    return tuple(buffer[:, :, : past + new[0].shape[2]] for buffer in self.buffers)


def off_by_one_write(self: Any, past: int, *new: Any) -> Any:
    """Decoded tokens overwrite the last one."""
    APPEND(self, max(0, past - 1), *new)
    return tuple(buffer[:, :, : past + new[0].shape[2]] for buffer in self.buffers)


def same_page(self: Any, past: int, *new: Any) -> Any:
    """All sequences share the pages of the first."""
    self.table = self.table[:1].expand_as(self.table)
    return PAGED(self, past, *new)


def heads_mixed_up(q: Any, k: Any, v: Any, bias: Any, scale: float) -> Any:
    """Query head h reads KV head h mod K in place of h // G."""
    B, H, _, d = q.shape
    K = k.shape[1]
    mixed = q.reshape(B, H // K, K, d).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(mixed, k, v, None, scale=scale)
    return out.transpose(1, 2).reshape(B, H, 1, -1)


def merged_without_weights(outs: Any, lses: Any) -> Any:
    return outs.mean(dim=0)


def merged_unnormalised(outs: Any, lses: Any) -> Any:
    return ((lses - lses.amax(dim=0)).exp() * outs).sum(dim=0)


def absorbed_without_positions(self: Any, q: Any, kept: Any) -> Any:
    q = torch.cat([q[..., : self.spec.nope_dim], torch.zeros_like(q[..., self.spec.nope_dim :])], dim=-1)
    return ABSORBED(self, q, kept)


ABSORBED = decoder.LatentMixer.absorbed

MUTATIONS = [
    # what breaks, where, by what, which check notices
    ("wrong scale", attend, "_scale", lambda d: 1.0 / d, "dense"),
    ("scale of the value's width", attend, "_scale", lambda d: (d + 8) ** -0.5, "dense"),
    ("missing causal mask", positions, "visible",
     lambda q, k, *a: torch.ones(len(q), len(k), dtype=torch.bool), "dense"),
    ("KV heads mixed up", attend, "_decode", heads_mixed_up, "dense"),
    ("window one too wide", positions, "visible",
     lambda q, k, window=None, chunk=None: VISIBLE(q, k, window and window + 1, chunk), "limited"),
    ("window one too narrow", positions, "visible",
     lambda q, k, window=None, chunk=None: VISIBLE(q, k, window and window - 1, chunk), "limited"),
    ("window off by one in decode", positions.Pattern, "first_key", lambda self, last: max(0, last - 9), "limited"),
    ("chunk taken for a window", positions, "visible",
     lambda q, k, window=None, chunk=None: VISIBLE(q, k, chunk, None), "limited"),
    ("ALiBi slopes of half", positions, "alibi_slopes", lambda heads, device: SLOPES(heads, device) / 2, "biased"),
    ("sink left out", attend, "_with_sinks", lambda k, v, bias, sinks: (k, v, bias), "biased"),
    ("RoPE of the wrong base", positions, "rotate", lambda x, where, base=1e4: ROTATE(x, where, 5e5), "rotary"),
    ("RoPE that forgets a sign", positions, "rotate",
     lambda x, where, base=1e4: ROTATE(x, where, base).abs(), "rotary"),
    ("RoPE with absolute drift", positions, "rotate",
     lambda x, where, base=1e4: ROTATE(x, where, base) * (1 + where[:, None] * 1e-6), "rotary"),
    ("packed sequences see each other", attend, "_same",
     lambda s: torch.ones(len(s), len(s), dtype=torch.bool), "packed"),
    ("split-KV unnormalised", attend, "merge", merged_unnormalised, "split"),
    ("split-KV unweighted", attend, "merge", merged_without_weights, "split"),
    ("split-KV without the scale", attend, "_partial", lambda q, k, v: PARTIAL(q * 4.0, k, v), "split"),
    ("stale cache", kv_cache.ContiguousCache, "append", stale, "cached"),
    ("stale cache, chunks", kv_cache.ContiguousCache, "append", stale, "chunked"),
    ("cache written one early", kv_cache.ContiguousCache, "append", off_by_one_write, "cached"),
    ("decoded at position 0", decoder, "positions",
     lambda past, new, device: torch.arange(new, device=device), "cached"),
    ("decoded one position late", decoder, "positions",
     lambda past, new, device: torch.arange(new, device=device) + (past + 1 if past else 0), "cached"),
    ("chunks start at 0", decoder, "positions", lambda past, new, device: torch.arange(new, device=device), "chunked"),
    ("pages of another sequence", kv_cache.PagedCache, "append", same_page, "paged"),
    ("absorbed without positions", decoder.LatentMixer, "absorbed", absorbed_without_positions, "absorbed"),
    ("shares of experts not normalised", feedforward, "route",
     lambda scores, k: tuple(scores.float().softmax(-1).topk(k)), "grouped"),
    ("wrong expert", feedforward, "grouped_matmul", lambda x, w, ends: GROUPED(x, w.roll(1, 0), ends), "grouped"),
    ("expert boundaries off by one", feedforward, "grouped_matmul",
     lambda x, w, ends: GROUPED(x, w, (ends - 1).clamp_min(0)), "grouped"),
    ("timed mixture with equal shares", experts, "route",
     lambda scores, k: (torch.full((len(scores), k), 1 / k), scores.topk(k)[1]), "matrices"),
    ("timed absorbed MLA with the scale of 576", latent, "_SCALE", 576**-0.5, "attention"),
    ("timed decode over unsorted pages", decode, "attend", lambda q, k, v: ATTEND(q, k.flip(2), v), "attention"),
    ("norm without the residual", elementwise, "rms_norm",
     lambda x, residual, weight: (x, torch.nn.functional.rms_norm(x, weight.shape, weight)), "between"),
    ("fp8 scaled down by half", quantise, "_e4m3",
     lambda x: (x / 2).clamp(-448, 448).to(torch.float8_e4m3fn).float(), "elements"),
    ("int8 of seven bits", quantise.FORMATS, Dtype.INT8, quantise._integer(7), "elements"),
    ("int8 of seven bits", quantise.FORMATS, Dtype.INT8, quantise._integer(6), "weights"),
    ("int8 that rounds nothing", quantise.FORMATS, Dtype.INT8, lambda x: x, "weights"),
    ("KV cache in fewer bits", quantise.FORMATS, Dtype.INT8, quantise._integer(6), "cache"),
    ("cache that is never rounded", quantise.FORMATS, Dtype.FP8, lambda x: x, "cache"),
    ("every draft accepted", speculative, "accepted",
     lambda draft, q, p, g: torch.ones_like(draft, dtype=torch.bool), "sampled"),
    ("rejection resampled from the target", speculative, "residual", lambda q, p: p, "sampled"),
    ("top-p without the token that crosses", sampling, "top_p",
     lambda x: sampling.min_p(x, 0.2), "samplers"),
]  # fmt: skip


IMPORTERS = (attend, decoder, experts)  # modules that import functions of the others by name


FUSED = ("dense", "limited", "biased", "packed", "split", "attention", "matrices", "between", "grouped")
"""Checks whose kernels run in 16 bit on a GPU."""


def failures_in_bf16(seeds: range) -> list[tuple[int, str, float, float]]:
    with torch.inference_mode():
        return [
            (seed, r.name, r.error, r.tolerance)
            for seed in seeds for check in FUSED
            for r in checks._results(BY_NAME[check], Trial(CPU, torch.bfloat16, seed)) if r.failed
        ]  # fmt: skip


class TestSixteenBit:
    """On a GPU kernels run in bf16. Rounding there must not fail a right kernel, whatever the numbers."""

    def test_right_kernels_pass(self) -> None:
        assert failures_in_bf16(range(5)) == []

    @pytest.mark.long
    def test_right_kernels_pass_200_times_in_a_row(self) -> None:
        assert failures_in_bf16(range(200)) == []

    def test_inputs_depend_on_the_seed_alone(self) -> None:
        one, same, other = (
            [r.error for r in checks._results(BY_NAME["matrices"], Trial(CPU, torch.bfloat16, seed))]
            for seed in (0, 0, 1)
        )
        assert one == same != other

    def test_a_kernel_that_is_not_installed_is_missing_and_not_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent(*size: int, **rest: Any) -> Any:
            raise ImportError("No module named 'flashinfer'")

        monkeypatch.setattr(decode, "normal", absent)
        results = checks._results(BY_NAME["attention"], Trial(CPU, torch.float32))
        missing = [r for r in results if r.missing]
        assert {r.kernel.split(",")[0] for r in missing} == {"attention_decode"}
        assert not any(r.failed or r.passed for r in missing)


class TestMutations:
    @pytest.mark.parametrize(
        ("target", "name", "broken", "check"), [m[1:] for m in MUTATIONS], ids=[f"{m[0]}: {m[4]}" for m in MUTATIONS]
    )
    def test_a_broken_kernel_is_caught(
        self, monkeypatch: pytest.MonkeyPatch, target: Any, name: Any, broken: Any, check: str
    ) -> None:
        assert passes(check)
        if isinstance(target, dict):
            monkeypatch.setitem(target, name, broken)
        else:
            sound = getattr(target, name)
            places = [target, *(module for module in IMPORTERS if getattr(module, name, None) is sound)]
            for place in places:
                monkeypatch.setattr(place, name, broken)
        wrong = failed(check)
        assert wrong != []
        assert not any(result.detail.startswith("did not run") for result in wrong)  # wrong numbers, not a crash

    def test_every_group_of_checks_has_a_mutation(self) -> None:
        assert {m[4] for m in MUTATIONS} == set(BY_NAME) - {"graphed"}  # CUDA graphs are on CUDA


class TestTolerances:
    def test_rounding_grows_with_the_root_of_the_length(self) -> None:
        assert rounding(torch.float32, 400) == pytest.approx(2 * rounding(torch.float32, 100))
        assert rounding(torch.float32, 60, 40) == pytest.approx(rounding(torch.float32, 100))

    @pytest.mark.parametrize("n", [16, 256, 4096])
    def test_a_sequential_sum_in_fp32_stays_within_it_and_not_far_below(self, n: int) -> None:
        """Dot products of random vectors, one term after the other: 0.02 to 1 of the tolerance."""
        random = torch.Generator().manual_seed(n)
        x, y = (torch.randn(2000, n, generator=random) for _ in "xy")
        total = torch.zeros(2000)
        for i in range(n):
            total = total + x[:, i] * y[:, i]
        result = compare("sum", total, (x.double() * y.double()).sum(dim=1), rounding(torch.float32, n), "")
        assert result.passed
        assert result.error > 0.02 * result.tolerance

    def test_not_a_number_never_passes(self) -> None:
        assert not compare("nan", torch.tensor([float("nan")]), torch.ones(1), 1e9, "").passed

    @pytest.mark.parametrize(("freedom", "value"), [(5, 25.74), (10, 35.56), (35, 73.17)])
    def test_critical_values_are_those_of_tables(self, freedom: int, value: float) -> None:
        """The 0.9999 quantile of chi-square."""
        assert critical_chi_square(freedom) == pytest.approx(value, rel=0.03)
        above = torch.special.gammaincc(
            torch.tensor(freedom / 2).double(), torch.tensor(critical_chi_square(freedom) / 2).double()
        )
        assert float(above) == pytest.approx(1e-4, rel=0.3)

    def test_chi_square_of_a_right_and_a_wrong_die(self) -> None:
        fair = torch.full((6,), 1000.0)
        assert chi_square(fair, fair) == 0.0
        assert chi_square(fair + torch.tensor([200.0, -200, 0, 0, 0, 0]), fair) == pytest.approx(80.0)

    def test_a_result_says_what_was_compared(self) -> None:
        result = compare("name", torch.ones(2), torch.ones(2), 0.1, "two ones")
        assert result == CheckResult("name", True, 0.0, 0.1, "two ones")

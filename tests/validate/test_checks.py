"""The checks pass on this machine, and each of many broken kernels makes the check fail that is there for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `gpu` (torch)")

import torch

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.validate import (
    attention,
    attention_kernels,
    checks,
    checks_model,
    decoder,
    elementwise,
    feedforward,
    matrix_kernels,
    quantised,
)
from rooflinekit.validate.attention import FULL, Pattern
from rooflinekit.validate.checks import CHECKS, CheckResult, run_checks
from rooflinekit.validate.tolerance import Trial, compare, critical_chi_square, follows, rounding

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
        compared = [
            r.error / r.tolerance for r in results if "complex" not in r.name and r.tolerance
        ]  # copies are exact
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


ATTEND, ROTATE, VISIBLE = attention.attend, attention.rotate, attention.visible
APPEND, FIRST = attention.Cache.append, attention.Pattern.first_key
GROUPED, LINEAR = feedforward.grouped_matmul, torch.nn.functional.linear
UP_PROJECTED = attention_kernels.up_projected
TOP_K, MIN_P, APPENDED = elementwise.top_k, elementwise.min_p, elementwise.append
ABSORBED = decoder.LatentMixer.absorbed


def stale(self: Any, past: int, *new: Any) -> Any:
    """A cache that keeps the prompt and never takes in what was decoded."""
    if past == 0:
        return APPEND(self, past, *new)
    return tuple(buffer[:, :, : past + new[0].shape[2]] for buffer in self.buffers)


def off_by_one_write(self: Any, past: int, *new: Any) -> Any:
    """Decoded tokens overwrite the last one."""
    APPEND(self, max(0, past - 1), *new)
    return tuple(buffer[:, :, : past + new[0].shape[2]] for buffer in self.buffers)


def heads_mixed_up(q: Any, k: Any, v: Any, pattern: Any = FULL, scale: Any = None) -> Any:
    """Query head h reads KV head h mod K in place of h // G."""
    mixed = q.unflatten(1, (-1, k.shape[1])).transpose(1, 2).flatten(1, 2)
    return ATTEND(mixed, k, v, pattern, scale).unflatten(1, (k.shape[1], -1)).transpose(1, 2).flatten(1, 2)


def scaled(power: Any) -> Any:
    return lambda q, k, v, pattern=FULL, scale=None: ATTEND(q, k, v, pattern, power(q.shape[-1]))


def absorbed_without_positions(self: Any, q: Any, kept: Any) -> Any:
    q = torch.cat([q[..., : self.spec.nope_dim], torch.zeros_like(q[..., self.spec.nope_dim :])], dim=-1)
    return ABSORBED(self, q, kept)


def whole(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attention_kernels.sdpa(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)


MUTATIONS = [
    # what breaks, where, by what, which check notices
    ("wrong scale", attention, "attend", scaled(lambda d: 1.0 / d), "dense"),
    ("scale of the value's width", attention, "attend", scaled(lambda d: (d + 8) ** -0.5), "dense"),
    ("missing causal mask", attention, "visible",
     lambda q, k, pattern: torch.ones(len(q), len(k), dtype=torch.bool), "dense"),
    ("KV heads mixed up", attention, "attend", heads_mixed_up, "dense"),
    ("window one too wide", attention, "visible",
     lambda q, k, p: VISIBLE(q, k, Pattern(p.window and p.window + 1, p.chunk)), "dense"),
    ("window one too narrow", attention, "visible",
     lambda q, k, p: VISIBLE(q, k, Pattern(p.window and p.window - 1, p.chunk)), "dense"),
    ("window off by one in decode", attention.Pattern, "first_key",
     lambda self, last: max(0, FIRST(self, last) - 1), "dense"),
    ("chunk taken for a window", attention, "visible", lambda q, k, p: VISIBLE(q, k, Pattern(p.chunk)), "dense"),
    ("blocks merged without weights", checks_model, "merge", lambda outs, lses: outs.mean(dim=0), "flash"),
    ("blocks merged and not normalised", checks_model, "merge",
     lambda outs, lses: ((lses - lses.amax(dim=0)).exp() * outs).sum(dim=0), "flash"),
    ("the last block alone", checks_model, "merge", lambda outs, lses: outs[-1], "flash"),
    ("RoPE of the wrong base", attention, "rotate", lambda x, where, base=1e4: ROTATE(x, where, 5e5), "rotary"),
    ("RoPE that forgets a sign", attention, "rotate",
     lambda x, where, base=1e4: ROTATE(x, where, base).abs(), "rotary"),
    ("RoPE with absolute drift", attention, "rotate",
     lambda x, where, base=1e4: ROTATE(x, where, base) * (1 + where[:, None] * 1e-6), "rotary"),
    ("stale cache", attention.Cache, "append", stale, "cached"),
    ("cache written one early", attention.Cache, "append", off_by_one_write, "cached"),
    ("decoded at position 0", decoder, "positions",
     lambda past, new, device: torch.arange(new, device=device), "cached"),
    ("decoded one position late", decoder, "positions",
     lambda past, new, device: torch.arange(new, device=device) + (past + 1 if past else 0), "cached"),
    ("absorbed without positions", decoder.LatentMixer, "absorbed", absorbed_without_positions, "cached"),
    ("timed prompt without a mask", attention_kernels, "sdpa",
     lambda q, k, v, backend=None: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
     "attention"),
    ("packed sequences see each other", attention_kernels, "packed", whole, "attention"),
    ("values of MLA cut in front", attention_kernels, "up_projected",
     lambda q, k, v: UP_PROJECTED(q, k, v.roll(1, -1)), "attention"),
    ("timed absorbed MLA with the scale of 576", attention_kernels, "_SCALE", 576**-0.5, "attention"),
    ("timed decode over unsorted keys", attention_kernels, "attend",
     lambda q, k, v: ATTEND(q, k.flip(2), v), "attention"),
    ("product rounded to 16 bit", torch.nn.functional, "linear",
     lambda x, weight: LINEAR(x, weight).bfloat16().to(x.dtype), "matrices"),
    ("shares of experts not normalised", feedforward, "route",
     lambda scores, k: tuple(scores.float().softmax(-1).topk(k)), "matrices"),
    ("experts with equal shares", feedforward, "route",
     lambda scores, k: (torch.full((len(scores), k), 1 / k), scores.topk(k)[1]), "matrices"),
    ("wrong expert", feedforward, "grouped_matmul", lambda x, w, ends: GROUPED(x, w.roll(1, 0), ends), "matrices"),
    ("expert boundaries off by one", feedforward, "grouped_matmul",
     lambda x, w, ends: GROUPED(x, w, (ends - 1).clamp_min(0)), "matrices"),
    ("norm without the residual", elementwise, "rms_norm",
     lambda x, residual, weight: (x, torch.nn.functional.rms_norm(x, weight.shape, weight)), "between"),
    ("keys that are not turned", elementwise, "rope", lambda q, k, where: (ROTATE(q, where), k), "between"),
    ("gate and up swapped", elementwise, "activate", lambda x: feedforward.activate(x.roll(32, -1)), "between"),
    ("cache writes that swap keys and values", elementwise, "append",
     lambda new, *pools, scale: APPENDED(new.flip(0), *pools, scale=scale), "between"),
    ("cache writes one slot late", elementwise, "append",
     lambda new, k, v, slots, scale: APPENDED(new, k, v, (slots + 1) % len(k), scale=scale), "between"),
    ("top-k of one token more", elementwise, "top_k", lambda x, k=50: TOP_K(x, k + 1), "samplers"),
    ("top-p without the token that crosses", elementwise, "top_p", lambda x: MIN_P(x, 0.2), "samplers"),
    ("min-p of half", elementwise, "min_p", lambda x: MIN_P(x, 0.025), "samplers"),
    ("fp8 scaled down by half", quantised, "_nearest",
     lambda x, to: (x / 2).to(torch.float8_e4m3fn).float() if to is Dtype.FP8 else x.round(), "elements"),
    ("int8 of seven bits", quantised.FORMATS, Dtype.INT8, (63.0, None), "elements"),
    ("int4 with one scale a row", quantised.FORMATS, Dtype.INT4, (7.0, None), "elements"),
    ("int8 of six bits", quantised.FORMATS, Dtype.INT8, (31.0, None), "weights"),
    ("weights that are never rounded", quantised, "round_trip", lambda x, to: x, "weights"),
    ("KV cache in fewer bits", quantised.FORMATS, Dtype.INT8, (31.0, None), "cache"),
    ("cache that is never rounded", quantised, "round_trip", lambda x, to: x, "cache"),
    ("every draft accepted", checks_model, "accepted",
     lambda draft, q, p, g: torch.ones_like(draft, dtype=torch.bool), "sampled"),
    ("rejection resampled from the target", checks_model, "residual", lambda q, p: p, "sampled"),
]  # fmt: skip


IMPORTERS = (decoder, matrix_kernels)  # modules that import functions of the others by name


FUSED = ("dense", "flash", "attention", "matrices", "between")
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

        monkeypatch.setattr(attention_kernels, "normal", absent)
        results = checks._results(BY_NAME["attention"], Trial(CPU, torch.float32))
        missing = [r for r in results if r.missing]
        assert {r.kernel.split(",")[0] for r in missing} >= {"attention_decode", "mla_decode"}
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
        fair, share = torch.arange(6).repeat_interleave(1000), torch.full((6,), 1 / 6)
        assert (follows("die", fair, share).error, follows("die", fair, share).passed) == (0.0, True)
        wrong = follows("die", torch.cat([fair[200:], torch.full((200,), 5)]), share)
        assert (wrong.error, wrong.passed) == (pytest.approx(80.0), False)

    def test_what_cannot_be_drawn_is_wrong_at_once(self) -> None:
        assert not follows("die", torch.tensor([0] * 99 + [2]), torch.tensor([0.5, 0.5, 0.0])).passed

    def test_a_result_says_what_was_compared(self) -> None:
        result = compare("name", torch.ones(2), torch.ones(2), 0.1, "two ones")
        assert result == CheckResult("name", True, 0.0, 0.1, "two ones")

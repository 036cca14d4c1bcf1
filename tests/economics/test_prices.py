"""Prices and energy: hand-worked numbers, what adds up to what, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.decision.economics.price import Purchase, hourly_price, quoted_price, read_carbon, read_price
from rooflinekit.decision.economics.token_prices import TokenTimes, token_prices, token_times
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.estimation.options import quantity
from rooflinekit.load.answer import Load, largest_rate, scene_for
from rooflinekit.load.lengths import Fixed
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import InFlight
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs import load_accelerator


def predictor(model: str = "llama-3-8b", gpu: str = "h100-sxm", calibration: str | None = None, **kw: Any) -> Predictor:
    return resolve(model, gpu, read_deployment(kw), calibration).predictor


PLAIN, BOUND = predictor(), predictor(calibration="none")


def times(users: float = 64.0, isl: float = 2000.0, osl: float = 300.0, cached: float = 0.0) -> TokenTimes:
    return token_times(PLAIN, InFlight(users, isl, osl, cached))


class TestHour:
    def test_a_quote_has_its_date_and_source(self) -> None:
        price = quoted_price(load_accelerator("h100-sxm").value)
        assert price is not None
        assert price.usd_per_gpu_hour == 2.95
        assert "2026-05" in price.source

    def test_what_is_given_goes_before_the_quote(self) -> None:
        assert hourly_price(load_accelerator("h100-sxm").value, 1.5).usd_per_gpu_hour == 1.5

    def test_without_a_price_the_quote_is_taken_with_its_source(self) -> None:
        h100 = load_accelerator("h100-sxm").value
        assert read_price(h100, {}, None)[0] == quoted_price(h100)
        assert read_price(h100, {"price": 2.0}, None)[0].source == "given"

    def test_no_quote_is_said_and_nothing_is_made_up(self) -> None:
        with pytest.raises(InputError, match="l40s has no price in its file"):
            hourly_price(load_accelerator("l40s").value)

    def test_a_purchase(self) -> None:
        """30,000 USD over 5 years of 8,760 hours is 0.684932 USD/h; 700 W x 1.3 at 0.12 USD/kWh are 0.1092 USD/h."""
        bought = {"purchase": 30_000, "years": 5, "power_price": 0.12, "pue": 1.3}
        price, _ = read_price(load_accelerator("h100-sxm").value, bought, 700.0)
        assert price.usd_per_gpu_hour == pytest.approx(0.684932 + 0.1092, abs=1e-6)
        assert "$30,000 over 5 years" in price.source

    @pytest.mark.parametrize("bad", ["free", -1, float("nan"), float("inf"), True, 1e300])
    def test_senseless_prices(self, bad: object) -> None:
        with pytest.raises(InputError, match=r"price must be (above 0|a (finite )?number|at most)"):
            hourly_price(load_accelerator("h100-sxm").value, bad)

    def test_rent_and_purchase_exclude_each_other(self) -> None:
        with pytest.raises(InputError, match="exclude"):
            read_price(load_accelerator("h100-sxm").value, {"price": 2.0, "purchase": 1.0, "years": 1.0}, None)

    def test_a_pue_below_one(self) -> None:
        with pytest.raises(InputError, match="at least 1"):
            Purchase.checked(purchase=1, years=1, pue=0.9)


class TestTokens:
    def test_the_parts_add_up_to_the_request(self) -> None:
        t = times(cached=500.0)
        assert 500.0 * t.cached + 1500.0 * t.input + 300.0 * t.output == pytest.approx(t.request)

    def test_at_the_knee_a_request_takes_one_over_the_rate(self) -> None:
        load = Load(Fixed(2000), Fixed(300), rate=1.0)
        rate = largest_rate(scene_for(PLAIN, load, Scheduler(max_num_seqs=64)), load)
        assert times().request * rate == pytest.approx(1.0, rel=1e-3)  # both have whole prompts in some of the steps

    def test_output_is_dearer_than_input_and_input_than_cached(self) -> None:
        t = times(cached=1000.0)
        assert 0.0 < t.cached < t.input < t.output

    def test_at_batch_one_the_asymmetry_is_the_intensity_of_prefill(self) -> None:
        """A step reads all weights for one token; a long prompt computes at the peak: 295 FLOP/B over 1 at the ridge.

        2P FLOP at 989.4 TFLOP/s against 2P bytes at 3.35 TB/s are 295:1 for short contexts.
        """
        t = token_times(BOUND, InFlight(1.0, 4096.0, 16.0))
        ridge = 989.4e12 / 3.35e12
        assert 0.75 * ridge < t.output / t.input < 1.05 * ridge

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 200), st.integers(2, 20_000), st.integers(1, 4000), st.floats(0.0, 0.99))
    def test_no_price_is_negative_and_they_add_up(self, users: int, isl: int, osl: int, share: float) -> None:
        cached = float(int(isl * share))
        t = times(float(users), float(isl), float(osl), cached)
        assert min(t.cached, t.input, t.output) >= 0.0
        assert cached * t.cached + (isl - cached) * t.input + osl * t.output == pytest.approx(t.request)

    def test_arrays_are_the_scalars(self) -> None:
        users, cached = np.array([1.0, 16.0, 64.0]), np.array([0.0, 100.0, 1000.0])
        many = token_times(PLAIN, InFlight(users, 2000.0, 300.0, cached))
        for i in range(3):
            one = times(float(users[i]), cached=float(cached[i]))
            assert [many.cached[i], many.input[i], many.output[i]] == pytest.approx([one.cached, one.input, one.output])

    def test_idle_time_is_spread_over_all_tokens(self) -> None:
        hour = hourly_price(load_accelerator("h100-sxm").value)
        full, half = token_prices(times(), hour), token_prices(times(), hour, utilisation=0.5)
        assert half.output_usd_per_million == pytest.approx(2 * full.output_usd_per_million)
        assert half.input_usd_per_million == pytest.approx(2 * full.input_usd_per_million)


class TestCarbon:
    def test_a_number_and_a_grid(self) -> None:
        assert read_carbon(380) == (380.0, "given")
        known = read_carbon("France")
        assert known is not None
        assert known[0] == 56.0
        assert "2023" in known[1]

    @pytest.mark.parametrize("given", ["fraance", "-1", "nan"])
    def test_what_is_neither(self, given: str) -> None:
        with pytest.raises(InputError, match=r"france|carbon"):
            read_carbon(given)


@pytest.mark.parametrize("price", ["2044/month", "$24528/year", "67.2/day", "2.8/h", "2.8"])
def test_a_month_has_730_hours_and_a_year_12_months(price: str) -> None:
    assert quantity(price, "USD/h") == pytest.approx(2.8, rel=1e-12)

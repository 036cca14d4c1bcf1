"""`rk.cost` and `rooflinekit cost`: parts that add up, orders that hold, input that is refused, output that fits."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.cli.command import find
from rooflinekit.decision.economics.cost import Cost
from rooflinekit.model.power import plug_power
from rooflinekit.specs import load_accelerator

CASE: dict[str, Any] = {"isl": 2000, "osl": 300, "concurrency": 64}


@pytest.fixture(scope="module")
def found() -> Cost:
    return rk.cost("llama-3.1-8b", price=3.6, **CASE)


class TestParts:
    def test_a_request_is_its_tokens(self, found: Cost) -> None:
        p = found.prices
        tokens = 2000 * p.input_usd_per_million + 300 * p.output_usd_per_million
        assert p.request_usd == pytest.approx(tokens / 1e6)

    def test_the_replica_earns_its_hour(self, found: Cost) -> None:
        """Requests at the knee of 64 sequences, each paid, make 3.6 USD an hour."""
        p = found.prices
        users = rk.estimate("llama-3.1-8b", **CASE)
        assert users.load is not None
        per_hour = users.load.rate * 3600.0 * p.request_usd
        assert per_hour == pytest.approx(3.6, rel=0.05)  # a closed loop of 64 waits a little for its own prompts

    def test_orders(self, found: Cost) -> None:
        p = found.prices
        assert p.cached_usd_per_million < p.input_usd_per_million < p.output_usd_per_million
        assert p.interval is not None
        for name, (low, high) in p.interval.items():
            assert low < getattr(p, name) < high

    def test_energy_of_the_parts_is_that_of_the_power(self, found: Cost) -> None:
        """A request's joules at the rate of requests are the watts of the replica, its board between idle and limit."""
        p, law = found.prices, load_accelerator("h100-sxm").value.power
        assert law is not None
        assert p.watts is not None
        request = 2000 * p.joules_per_input_token + 300 * p.joules_per_output_token
        seconds = p.request_usd / p.replica_usd_per_hour * 3600.0
        assert p.watts == pytest.approx(request / seconds)
        assert p.board_watts == pytest.approx(p.watts / plug_power(1.0, law.host))
        assert law.active < p.board_watts < law.limit
        assert p.kwh_per_million_output == pytest.approx(request / 300 / 3.6)
        assert p.output_tok_s_per_mw == pytest.approx(300 * 1e6 / request)
        assert p.co2_kg_per_million_output is None

    def test_carbon_is_grams_of_the_energy(self) -> None:
        p = rk.cost("llama-3.1-8b", price=3.6, carbon=400, pue=1.2, **CASE).prices
        assert p.co2_kg_per_million_output == pytest.approx(0.4 * (p.kwh_per_million_output or 0.0))

    def test_a_replica_that_waits_draws_less_and_its_tokens_take_more(self, found: Cost) -> None:
        half, p = rk.cost("llama-3.1-8b", price=3.6, utilisation=0.5, **CASE).prices, found.prices
        law = load_accelerator("h100-sxm").value.power
        assert law is not None
        assert half.watts == pytest.approx(((p.watts or 0.0) + plug_power(law.idle, law.host)) / 2.0)
        assert (half.joules_per_output_token or 0.0) > (p.joules_per_output_token or 0.0)

    def test_a_node_draws_more_than_its_boards_and_a_rack_holds_whole_nodes(self, found: Cost) -> None:
        """HGX H100: 8.4 kW were measured with eight boards near 700 W (arXiv:2412.08602)."""
        p = found.prices
        assert (p.rack_nodes, p.rack_watts, p.node_gpus) == (None, None, 8)
        assert p.node_watts_most == pytest.approx(8400.0, rel=0.01)
        assert p.node_watts == pytest.approx(8 * (p.watts or 0.0))
        racked = rk.cost("llama-3.1-8b", price=3.6, pue=2.0, rack=40_000, **CASE).prices
        assert racked.node_watts == pytest.approx(p.node_watts)  # at the plug: cooling is no load of a rack
        assert racked.rack_nodes == 4
        assert racked.rack_watts == pytest.approx(4 * (p.node_watts or 0.0))
        assert rk.cost("llama-3.1-8b", price=3.6, rack=8_000, **CASE).prices.rack_nodes == 0

    def test_half_used_costs_twice(self, found: Cost) -> None:
        half = rk.cost("llama-3.1-8b", price=3.6, utilisation=0.5, **CASE)
        assert half.prices.request_usd == pytest.approx(2 * found.prices.request_usd)
        assert half.conversation is not None
        assert found.conversation is not None
        assert half.conversation.usd == pytest.approx(2 * found.conversation.usd)

    def test_a_purchase_is_an_hourly_price(self, found: Cost) -> None:
        """3.6 USD/h are 126,144 USD over 4 years of 8,760 hours."""
        bought = rk.cost("llama-3.1-8b", purchase=126_144, years=4, **CASE)
        assert bought.prices.request_usd == pytest.approx(found.prices.request_usd)
        powered = rk.cost("llama-3.1-8b", purchase=126_144, years=4, power_price=0.1, pue=1.5, **CASE)
        watts = found.prices.watts or 0.0
        assert powered.prices.usd_per_gpu_hour == pytest.approx(3.6 + watts / 1e3 * 1.5 * 0.1)
        assert powered.prices.watts == pytest.approx(1.5 * watts)

    def test_a_pue_alone_is_about_energy(self, found: Cost) -> None:
        cooled = rk.cost("llama-3.1-8b", price=3.6, pue=2.0, **CASE)
        assert cooled.prices.request_usd == found.prices.request_usd
        assert cooled.prices.watts == pytest.approx(2.0 * (found.prices.watts or 0.0))

    def test_a_bound_has_no_interval(self) -> None:
        bound = rk.cost("llama-3.1-8b", price=3.6, calibration="none", **CASE)
        assert bound.prices.interval is None
        assert bound.level == "bound"

    def test_long_contexts(self, found: Cost) -> None:
        far, near = found.long_context, found.ordinary_context
        assert far is not None
        assert (near.context, far.context) == (2300, 131_072)
        assert far.token_usd > near.token_usd
        assert far.displaced * far.slots == pytest.approx(
            rk.cost("llama-3.1-8b", price=1.0, isl=2000, osl=300).prices.running
        )
        longer = [rk.cost("llama-3.1-8b", price=3.6, long_context=n, **CASE).long_context for n in (8000, 32_000)]
        assert longer[0] is not None
        assert longer[1] is not None
        assert longer[0].prompt_usd < longer[1].prompt_usd < far.prompt_usd

    def test_a_model_with_a_short_context_says_so(self) -> None:
        short = rk.cost("llama-3-8b", price=1.0)
        assert short.long_context is not None
        assert short.long_context.context == 8192
        assert any("maximum is 8192" in warning for warning in short.warnings)

    def test_a_shared_prompt_is_cheaper(self) -> None:
        own, shared = (rk.cost("llama-3-8b", price=1.0, calls=2, shared_prompt=both).agent for both in (False, True))
        assert own is not None
        assert shared is not None
        assert shared.usd < own.usd
        assert own.computed_tokens - shared.computed_tokens == 4000

    def test_more_than_fit_is_said(self) -> None:
        many = rk.cost("llama-3-8b", price=1.0, concurrency=5000)
        assert many.warnings[
            0
        ] == f"{many.prices.running:.0f} of 5000 sequences fit at a time; prices are those of " + (
            f"{many.prices.running:.0f}"
        )

    def test_distributions_have_their_mean(self) -> None:
        spread = rk.cost("llama-3-8b", price=1.0, isl="uniform:500-1500", osl="uniform:100-300", concurrency=8)
        fixed = rk.cost("llama-3-8b", price=1.0, isl=1000, osl=200, concurrency=8)
        assert spread.prices.request_usd == fixed.prices.request_usd
        assert spread.waste.held_tokens > fixed.waste.held_tokens  # long answers are there longer


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"gpu": "l40s"}, "l40s has no price in its file; give price"),
        ({"price": "cheap"}, "price must be a number"),
        ({"price": 0}, "price must be above 0"),
        ({"purchase": 0, "years": 3}, "purchase must be above 0"),
        ({"utilisation": 1.5}, "above 0 and at most 1"),
        ({"utilisation": 0}, "utilisation must be above 0"),
        ({"isl": "often"}, "length"),
        ({"isl": 0}, "at least 1"),
        ({"cached": 1024}, "leaves nothing of isl"),
        ({"turns": 0}, "turns must be a whole number"),
        ({"turns": 10**9}, "turns must be at most"),
        ({"tool_call": 10**9}, "tool_call must be at most"),
        ({"reserve": 5}, "holds no mean request"),
        ({"pue": 0.5}, "pue must be from 1 to 10"),
        ({"price": 1, "purchase": 2, "years": 3}, "exclude each other"),
        ({"turn": 3}, "unknown option 'turn'; nearest: turns"),
        ({"batch": 3}, "unknown option 'batch'"),
        ({"long_context": 1}, "long_context must be"),
        ({"rate": 5.0, "concurrency": 8}, "rate and concurrency exclude each other"),
        ({"rate": 5.0, "utilisation": 0.5}, "rate and utilisation exclude each other"),
        ({"rate": 500.0}, "overload: 500/s arrive, .* are served"),
    ],
)
def test_bad_input_is_one_line(scenario: dict[str, Any], message: str) -> None:
    with pytest.raises(rk.InputError, match=message) as error:
        rk.cost("llama-3-8b", **scenario)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rate", [0.2, 5.0])
def test_the_requests_of_an_hour_pay_for_it(rate: float) -> None:
    """Idle time included; the more come, the less each pays."""
    found = rk.cost("llama-3-8b", rate=rate, price=3.6)
    prices, i = found.prices, found.inputs
    assert prices.request_usd * 3600.0 * rate == pytest.approx(3.6, rel=1e-9)
    parts = i["isl"] * prices.input_usd_per_million + i["osl"] * prices.output_usd_per_million
    assert parts * rate * 3600.0 / 1e6 == pytest.approx(3.6, rel=1e-9)
    assert prices.watts is not None and found.prices.running >= 1.0


def test_a_plan_of_one_replica_prices_its_tokens_as_cost_does_at_its_rate() -> None:
    settings = {"isl": 1000, "osl": 200, "rate": 5.0, "price": 2.0}
    one = rk.plan("llama-3-8b", "h100-sxm", tp=[1], aggregated_only=True, token_budget=[8192], max_num_seqs=[256],
                  **settings).best  # fmt: skip
    cost = rk.cost("llama-3-8b", "h100-sxm", token_budget=8192, max_num_seqs=256, **settings).prices
    assert one.gpus == 1
    assert one.cost.input_usd == pytest.approx(cost.input_usd_per_million, rel=1e-9)
    assert one.cost.output_usd == pytest.approx(cost.output_usd_per_million, rel=1e-9)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["cost", "llama-3-8b", "--calibration", "none", *words])


class TestCommand:
    @pytest.mark.parametrize("words", [("llama-3-8b",), ("deepseek-v3", "--gpu", "h200-sxm", "--tp", "8")])
    def test_the_table_fits_a_terminal(self, words: tuple[str, ...]) -> None:
        result = CliRunner().invoke(app, ["cost", *words])
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80

    def test_formats_agree(self) -> None:
        data = json.loads(run("--format", "json").stdout)
        rows = list(csv.DictReader(io.StringIO(run("--format", "csv").stdout)))
        value = next(row["value"] for row in rows if row["name"] == "output_usd_per_million")
        assert float(value) == data["prices"]["output_usd_per_million"]
        assert "### Why output costs more than input" in run("--format", "md").stdout

    def test_a_file_is_not_overwritten(self, tmp_path: Path) -> None:
        out = tmp_path / "cost.json"
        assert run("--format", "json", "--out", str(out)).exit_code == 0
        again = run("--out", str(out))
        assert again.exit_code == 2
        assert "add --force" in again.stderr

    def test_it_does_not_fit(self) -> None:
        assert CliRunner().invoke(app, ["cost", "llama-3-70b"]).exit_code == 3
        with pytest.raises(rk.DoesNotFitError, match=r"would fit: --tp 2, or --weights fp8$"):
            rk.cost("llama-3-70b")


def test_every_key_is_in_the_nomenclature() -> None:
    text = (Path(__file__).parents[2] / "docs" / "nomenclature.md").read_text(encoding="utf-8")
    explained = {*find("cost").options, *find("levers").options, *re.findall(r"`(\w+)`", text)}
    plain = rk.cost("llama-3-8b").to_dict() | rk.levers("llama-3-8b", gpus=[]).to_dict()

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for inner in value.values() for key in keys(inner)}
        return {key for inner in value for key in keys(inner)} if isinstance(value, list) else set()

    assert keys(plain) - explained == set()


def test_work_of_a_drafted_token_is_what_is_verified_over_what_it_yields() -> None:
    """N-grams cost nothing: where all are accepted a token takes the same FLOP and a fourth of the weights' bytes."""
    asked: dict[str, Any] = {"isl": 500, "osl": 100, "concurrency": 4, "price": 2.0}
    draft: dict[str, Any] = {"draft": "ngram", "draft_tokens": 3}
    plain = rk.cost("llama-3-8b", **asked).reason.output
    whole, none = (rk.cost("llama-3-8b", **asked, **draft, acceptance=rate).reason.output for rate in (1.0, 0.0))
    assert whole.flops == pytest.approx(plain.flops, rel=0.01)
    assert whole.weight_bytes == pytest.approx(plain.weight_bytes / 4.0)
    assert none.flops == pytest.approx(4.0 * whole.flops)

"""Plans of traffic whose prompts repeat: prefix caches and tiers as candidates, with hit rates that were computed."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.fleet import lay_out
from rooflinekit.decision.planning.plan import plan
from rooflinekit.estimation.options import read
from rooflinekit.estimation.scenario import Traffic
from rooflinekit.load.lengths import cv
from rooflinekit.load.scene import kv_capacity_tokens
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.simulation.tiers import read_tiers

TRACE = str(Path(__file__).parents[2] / "docs" / "conversations.jsonl")
CHAT = "chat:turns=6,wait=60,first=2000,asked=100,system=500"
TIER = "host=500GB,50GB/s,10us,0.002$/GBh"
ASKED = {
    "rate": 12.0, "sessions": CHAT, "osl": 50, "tp": [1], "disaggregated": False, "confidence": 0.5,
    "token_budget": [8192], "max_num_seqs": [256],
}  # fmt: skip


@pytest.fixture(scope="module")
def answer():
    return plan("llama-3.1-8b", slo="p95 ttft<1s, p95 tpot<40ms", cache_tier=TIER, **ASKED)


def fleets(answer):
    """By the memories that hold prefixes."""
    return {
        (fleet.hit_rate is not None, *fleet.tiers): (fleet, each) for each in answer.candidates for fleet in each.fleets
    }


def test_with_and_without_a_cache_and_a_tier_are_candidates_and_the_cheapest_is_first(answer):
    found = fleets(answer)
    assert set(found) == {(False,), (True,), (True, "host")}
    rates = [(found[key][0].hit_rate or 0.0) for key in ((False,), (True,), (True, "host"))]
    assert rates[0] == 0.0 < rates[1] < rates[2] < 1.0
    bears = [found[key][0].capacity for key in ((False,), (True,), (True, "host"))]
    assert bears == sorted(bears)
    costs = [each.cost.usd_per_hour for each in answer.candidates]
    assert costs == sorted(costs)
    assert answer.best.fleets[0].scenario["cached"] > 0
    assert "prefix cache" in answer.answer


def test_a_tier_costs_its_rent_and_no_accelerator(answer):
    found = fleets(answer)
    for key in ((True,), (True, "host")):
        fleet, each = found[key]
        rent = 500 * 0.002 * fleet.replicas if key[1:] else 0.0
        price = answer.prices["h100-sxm"]["usd_per_gpu_hour"]
        assert each.cost.usd_per_hour == pytest.approx(fleet.gpus * price + rent)


def test_the_hit_rate_is_that_of_all_replicas_together(answer):
    """The number of replicas follows from what each finds, and what each finds from how many they are."""
    demand = read_demand(ASKED | {"max_context": 131_072})
    for key in ((True,), (True, "host")):
        fleet, _ = fleets(answer)[key]
        scenario = {name: value for name, value in fleet.scenario.items() if name not in ("model", "gpu", "cached")}
        replica = lay_out("llama-3.1-8b", "h100-sxm", scenario, demand, None)
        pool = kv_capacity_tokens(replica.predictor, demand.isl.mean + demand.osl.mean, 1)
        tokens = pool + (500e9 / replica.predictor.memory.kv_bytes_per_token if key[1:] else 0.0)
        assert fleet.hit_rate == pytest.approx(demand.prefixes.reuse(1.0).share(tokens * fleet.replicas), abs=0.01)
        kept = replica.remembering(demand, read_tiers(TIER) if key[1:] else (), float(fleet.replicas)).kept
        assert fleet.hit_rate == pytest.approx(kept.cached / demand.isl.mean)
        assert bool(kept.late) == bool(key[1:])  # loads take time


def test_what_is_left_to_compute_varies_more_than_prompts():
    """A first turn is computed whole, later ones hardly: that is what the queue and the first token see."""
    demand = read_demand(ASKED | {"max_context": 131_072})
    trace, whole = demand.prefixes.trace, demand.prefixes.reuse(1.0)
    size, known, left = trace.block_tokens, set[int](), []
    for at, tokens in enumerate(trace.isl):
        blocks = trace.prefix(at)
        saved = sum(min(size, max(tokens - place * size, 0)) for place, block in enumerate(blocks) if block in known)
        left += [max(tokens - saved, 1)] if at >= trace.former else []
        known |= {*blocks}
    found = whole.found_of(whole.most)
    computed = [max(isl - saved, 1) for isl, saved in zip(trace.isl[trace.former :], found, strict=True)]
    assert computed == left
    assert not any(whole.found_of(0.0))
    assert pstdev(left) / fmean(left) > 1.2 * cv(demand.isl)


def test_conversations_that_are_spread_at_random_are_found_less_often():
    demand = read_demand(ASKED)
    drawn = read_demand(ASKED | {"router": "random"})
    assert drawn.prefixes.share(1.0, 1e6) == pytest.approx(demand.prefixes.share(1.0, 1e6))
    assert drawn.prefixes.share(8.0, 1e6) < demand.prefixes.share(8.0, 1e6) - 0.1


@pytest.mark.parametrize("peak", [1.0, 4.0])
def test_caches_see_sessions_as_they_come_at_the_peak(peak):
    """12 requests/s in the mean, so many times as many at the peak; the sample's end is thin, hence a fifth."""
    trace = read_demand(ASKED | {"peak": peak}).prefixes.trace
    assert (len(trace) - 1) / trace.time[-1] == pytest.approx(12.0 * peak * 1.2, rel=0.2)


def test_sessions_one_by_one_agree_with_a_cached_plan(answer):
    best = answer.best
    assert "requests of sessions" in best.played
    assert best.fleets[0].hit_rate > 0.3
    assert best.predicted["ttft_ms"]["p95"] <= 1000.0


def test_a_trace_with_block_ids_has_caches_among_its_candidates(tmp_path):
    words = ["plan", "llama-3-8b", "--trace", TRACE, "--tp", "1", "--aggregated-only"]
    run = CliRunner().invoke(app, [*words, "--slo", "ttft<1s", "--format", "json"])
    data = json.loads(run.stdout)
    assert [each["hit_rate"] for each in data["candidates"] if each["hit_rate"]] == [pytest.approx(8192 / 15_700)]
    assert len(data["candidates"]) == 2
    (place, _), *_ = [each for each in enumerate(data["candidates"], 1) if each[1]["hit_rate"]]
    (tmp_path / "plan.json").write_text(run.stdout)
    words = ["launch", "--plan", str(tmp_path / "plan.json"), "--candidate", str(place)]
    assert "--enable-prefix-caching" in CliRunner().invoke(app, words).output


@pytest.mark.parametrize(("given", "said"), [
    ({"rate": None}, "give rate"), ({"isl": 100}, "isl and sessions exclude each other"),
    ({"rate": None, "users": 4}, "users and sessions exclude"),
    ({"trace": TRACE}, "trace and sessions"),
])  # fmt: skip
def test_what_contradicts_sessions_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        read_demand({key: value for key, value in (ASKED | given).items() if value is not None})
    with pytest.raises(UnknownNameError, match="prefix-affinity"):
        read(Traffic, {"rate": 1.0, "router": "affinity"})


@pytest.mark.long
def test_with_a_draft_the_caches_are_candidates_too():
    """Four of them, with and without each, where it is tokens that have to be fast."""
    found = plan("llama-3.1-8b", slo="p95 ttft<5s, p95 tpot<9ms", draft="eagle3", draft_tokens=[1], **ASKED)
    fleets = [fleet for each in found.candidates for fleet in each.fleets]
    kinds = {(fleet.hit_rate is not None, "draft" in fleet.scenario) for fleet in fleets}
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}

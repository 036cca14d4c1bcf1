"""What a plan refuses, and objectives said in milliseconds."""

import json

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.planning.demand import read_demand
from rooflinekit.decision.planning.fleet import Bearer, lay_out

RUN = CliRunner()
QUICK = ["--tp", "1", "--aggregated-only", "--format", "json"]

REFUSED = [
    (["--rate", "1", "--osl", "1"], "answers of one token have no TPOT"),
    (["--max", "users", "--osl", "1", "--tpot", "10"], "answers of one token have no TPOT"),
    (["--max", "batch", "--tpot", "30", "--headroom", "0.3"], "--headroom has no part"),
    (["--max", "batch", "--tpot", "30", "--price", "h100-sxm=3"], "--price has no part"),
    (["--max", "batch", "--tpot", "30", "--redundancy", "2"], "--redundancy has no part"),
    (["--find", "gpus", "--rate", "2", "--batch", "3"], "--batch has no part in --find gpus"),
    (["--rate", "2", "--ttft", "500", "--slo", "ttft<1s"], "say the same thing"),
    (["--rate", "2", "--router", "prefix-affinity"], "router prefix-affinity is about prefixes that come again"),
    (["--rate", "2", "--one-kind", "--mixed"], "one_kind and mixed exclude each other"),
    (["--rate", "2", "--cache-tier", "host=9GB"], "cache_tier is about prefixes that come again"),
    (["--max", "rate", "--tpot", "30", "--carbon", "300"], "--carbon has no part"),
    (["--rate", "2", "--carbon", "atlantis"], "unknown grid 'atlantis'"),
    (["--rate", "2", "--ttft", "nan"], "ttft must be a number above 0, not nan"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_nothing_is_dropped_silently(options, words):
    answer = RUN.invoke(app, ["plan", "llama-3-8b", *options])
    assert answer.exit_code == 2
    assert words in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_milliseconds_are_95th_percentiles_and_users_go_by_two_names():
    written = RUN.invoke(app, ["plan", "llama-3-8b", "--users", "9", "--slo", "p95 ttft<0.5s,p95 tpot<20ms", *QUICK])
    short = RUN.invoke(app, ["plan", "llama-3-8b", "--concurrency", "9", "--ttft", "500", "--tpot", "20", *QUICK])
    assert json.loads(short.stdout) == json.loads(written.stdout)
    assert json.loads(short.stdout)["slo"] == ["p95 TTFT <= 500 ms", "p95 TPOT <= 20 ms"]


def test_a_static_batch_takes_them_as_means():
    answer = RUN.invoke(app, ["plan", "llama-3-8b", "--max", "batch", "--tpot", "12", "--format", "json"])
    assert json.loads(answer.stdout)["subject_to"] == ["mean TPOT <= 12 ms"]


def test_answers_of_one_token_need_no_more_than_their_prompts():
    options = ["--rate", "1", "--osl", "1", "--slo", "p95 ttft<1s", *QUICK[:-2], "--format", "json"]
    answer = json.loads(RUN.invoke(app, ["plan", "llama-3-8b", *options]).stdout)
    assert answer["best"]["gpus"] == 1
    assert answer["best"]["predicted"]["ttft_ms"]["p95"] <= 1000.0


def test_a_prefill_pool_of_attention_replicas_computes_a_prompt_on_each():
    demand = read_demand({"rate": 1.0, "isl": 2000, "osl": 100})
    scenario = {"engine": "vllm", "dp": 4}
    four, one = (Bearer(lay_out("llama-3-8b", "h100-sxm", each, demand, None), "prefill")
                 for each in (scenario, {"engine": "vllm"}))  # fmt: skip
    assert four.knee(demand) == pytest.approx(4 * one.knee(demand), rel=0.05)
    light, heavy = (four.feel(demand, share * four.knee(demand), exact=True).value("ttft", None)
                    for share in (0.01, 0.9))  # fmt: skip
    alone = one.feel(demand, 0.01 * one.knee(demand), exact=True).value("ttft", None)
    assert alone == pytest.approx(light, rel=0.05)
    assert heavy > light


def test_carbon_is_that_of_the_tokens_energy() -> None:
    """0.36 J a token at the plug are 0.1 kWh a million; at 300 g/kWh, J/12 kg."""
    table = rk.sweep("gpt2", batch=[1, 8], carbon=300)
    joules = table["energy_per_output_token_j"] * table["plug_w_per_gpu"] / table["power_w_per_gpu"]
    assert (table["plug_w_per_gpu"] > 1.3 * table["power_w_per_gpu"]).all()
    assert table["co2_kg_per_million_output_tokens"].tolist() == pytest.approx((joules / 12.0).tolist())
    (told,) = (note for note in rk.levers("gpt2", batch=8, carbon="france").warnings if note.startswith("CO2"))
    assert "kg a million output tokens at" in told
    for command in ("sweep", "levers"):
        ended = RUN.invoke(app, [command, "gpt2", "--carbon", "atlantis"])
        assert (ended.exit_code, "unknown grid 'atlantis'" in ended.stderr) == (2, True)


def test_carbon_is_that_of_the_fleets_power() -> None:
    answer = json.loads(RUN.invoke(app, ["plan", "llama-3-8b", "--rate", "5", "--carbon", "300", *QUICK]).stdout)
    kg = answer["best"]["watts"] / 1e3 * 300 / 1e3
    assert f"CO2: {kg:.3g} kg an hour, at 300 g/kWh (given)" in answer["warnings"]


def test_a_small_limit_of_power_is_not_said_as_none() -> None:
    result = CliRunner().invoke(app, ["plan", "llama3-8b", "--rate", "5", "--gpu", "h100-sxm", "--limit", "power=1W"])
    assert result.exit_code == 3
    assert "more than the 0.00100 kW that there are" in result.stderr

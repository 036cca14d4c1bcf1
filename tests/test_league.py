"""The league table of whole requests: the rules of thumb by hand, and how groups are made."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rooflinekit.evidence import rivals
from rooflinekit.evidence.accuracy_serving import METRICS, predict_group, read_serving_table, served_groups
from rooflinekit.evidence.league import BOUND, OURS, league
from rooflinekit.model.types.engine import NORMAL_PLACES
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.report.answers import rows_of as flat_rows
from rooflinekit.report.answers import text_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import league_tools
from fit_load_errors import STATED, Errors, Fit, left_out, stated
from league import blocks, inputs, score
from serving_errors import WAYS, errors
from textbook import BANDWIDTH, MBU, MFU, PEAK, derated, textbook

ROW = {"gpu": "h100-sxm", "engine": "vllm", "load": "static", "isl": 1024, "osl": 257, "value": 1.0}


def group_of(tmp_path, **row):
    path = tmp_path / "rows.csv"
    pd.DataFrame([ROW | row | {"metric": metric} for metric in METRICS]).to_csv(path, index=False)
    (group,) = served_groups(read_serving_table(path), "none", Counter())
    return group


def test_the_textbook_by_hand(tmp_path):
    """Llama-3-8B, 8.03e9 parameters in 16 bit, 131,072 B of cache a token; H100: 989.4 TFLOP/s, 3.352 TB/s."""
    f = dict(zip(METRICS, textbook(group_of(tmp_path, model="llama-3-8b", concurrency=4)), strict=True))
    ttft = 2 * 8.03e9 * 4 * 1024 / (989.4e12 * MFU)
    tpot = (2 * 8.03e9 + 4 * (1024 + 128.5) * 131072) / (3.352e12 * MBU)
    assert f["ttft_ms"] == pytest.approx(1e3 * ttft, rel=2e-3)
    assert f["tpot_ms"] == pytest.approx(1e3 * tpot, rel=2e-3)
    assert f["e2e_ms"] == pytest.approx(1e3 * (ttft + 256 * tpot), rel=2e-3)
    assert f["output_tok_s_total"] == pytest.approx(4 * 257 / (ttft + 256 * tpot), rel=2e-3)


def test_the_textbook_reads_the_experts_that_a_batch_can_visit(tmp_path):
    """Mixtral: 12.9e9 of 46.7e9 parameters are active; sixteen sequences can visit them all."""
    one, many = (
        dict(zip(METRICS, textbook(group_of(tmp_path, model="mixtral-8x7b", tp=2, concurrency=users)), strict=True))
        for users in (1, 16)
    )
    cache = (1024 + 128.5) * 131072
    assert one["tpot_ms"] == pytest.approx(1e3 * (2 * 12.9e9 + cache) / (2 * 3.352e12 * MBU), rel=5e-3)
    assert many["tpot_ms"] == pytest.approx(1e3 * (2 * 46.7e9 + 16 * cache) / (2 * 3.352e12 * MBU), rel=5e-3)


def test_hand_derates_lie_between_the_constants(tmp_path):
    group = group_of(tmp_path, model="llama-3-8b", concurrency=4)
    bound, slower = (dict(zip(METRICS, values, strict=True)) for values in (predict_group(group).value, derated(group)))
    assert slower["tpot_ms"] / bound["tpot_ms"] == pytest.approx(1 / BANDWIDTH, rel=0.01)
    assert 1 / BANDWIDTH < slower["ttft_ms"] / bound["ttft_ms"] <= 1 / PEAK


def test_the_probability_of_an_objective_is_that_of_a_plan():
    """Half at the median, 95 % at the high end, 5 % at the low one; of a rate the ends change."""
    time = {"engine": "vllm", "metric": "ttft_ms", "model_out": 100.0, "model_out_low": 100.0 / 1.2,
            "model_out_high": 120.0, "at_bound": 10.0, "stands_in": False, "faulty": False,
            "concurrency": 16.0}  # fmt: skip
    values = [100.0, 120.0, 100.0 / 1.2, 100.0 * 1.2 ** (1.2816 / 1.645)]
    table = pd.DataFrame([ROW | time | {"source_key": "s", "model": "m", "value": value} for value in values])
    plain = Fit((1.0, 0.0, 0.0, 0.0, 0.0), {"": NORMAL_PLACES}, {})
    said = stated(Errors.of("ttft", table, "model_out"), plain, "vllm")
    assert list(said) == pytest.approx([0.5, 0.95, 0.05, 0.9], abs=1e-3)
    rate = table.assign(metric="output_tok_s_total", at_bound=1000.0, value=[100.0, 100.0 / 1.5, 100.0 * 1.1, 100.0])
    logs = tuple(np.log([1 / 1.1, 0.95, 0.98, 1.0, 1.1, 1.3, 1.5]))
    said = stated(Errors.of("full", rate, "model_out"), Fit((0.0,) * 5, {"": logs}, {}), "vllm")
    assert list(said) == pytest.approx([0.5, 0.95, 0.05, 0.5], abs=1e-3)


def test_a_fit_finds_the_scale_that_errors_were_drawn_with():
    """60 groups whose errors have s² = 0.5·σ² + 0.01, some with σ = 0.4 and some with σ = 0.05."""
    draw, rows = np.random.default_rng(0), []
    for number in range(60):
        sigma = (0.05, 0.4)[number % 2]
        time = {"engine": "vllm", "metric": "tpot_ms", "model_out": 1.0, "at_bound": 1e-9, "stands_in": False,
                "faulty": False, "model_out_low": np.exp(-1.645 * sigma), "model_out_high": np.exp(1.645 * sigma),
                "concurrency": 16,
                "value": np.exp(draw.normal(0.0, np.sqrt(0.5 * sigma**2 + 0.01)))}  # fmt: skip
        rows += [ROW | time | {"source_key": "s", "model": f"m{number}"}]
    fit = Fit.of(Errors.of("tpot", pd.DataFrame(rows), "model_out"))
    narrow, wide = (fit.variances[0] * sigma**2 + fit.variances[1] for sigma in (0.05, 0.4))
    assert wide / narrow == pytest.approx(0.09 / 0.01125, rel=0.6)
    assert fit.places[""][3] == pytest.approx(0.0, abs=0.4)


def test_rows_faster_than_the_datasheet_move_no_interval():
    time = {"engine": "vllm", "metric": "tpot_ms", "model_out": 1.0, "model_out_low": 0.9, "model_out_high": 1.1,
            "at_bound": 0.5, "stands_in": False, "faulty": False, "concurrency": 16}  # fmt: skip
    rows = [ROW | time | {"source_key": "s", "model": f"m{n}", "value": 0.9 + 0.01 * n} for n in range(20)]
    below = [ROW | time | {"source_key": "s", "model": "odd", "value": 0.1}]
    alone, both = (Fit.of(Errors.of("tpot", pd.DataFrame(part), "model_out")) for part in (rows, rows + below))
    assert alone == both


def rows_of(model, count, error, source="one"):
    way = dict.fromkeys(WAYS, 1.0 + error)
    row = {"kind": "static", "tier": "A", "source_key": source, "model": model, "gpu": "h100", "metric": "tpot_ms"}
    return [row | way | {"value": 1.0, "model_out_inside": 1.0} for _ in range(count)]


def test_small_groups_of_a_source_and_accelerator_are_merged():
    rows = pd.DataFrame(
        rows_of("a", 5, 0.1) + rows_of("b", 4, 0.3) + rows_of("c", 3, 0.5) + rows_of("d", 1, 0.2, "two")
    )
    found = errors(rows).set_index(["source_key", "model"])
    assert found["n"].to_dict() == {("one", "*"): 7, ("one", "a"): 5, ("two", "*"): 1}
    assert found.loc[("one", "*"), "model_out"] == pytest.approx(0.3)
    assert found.loc[("one", "a"), "bound"] == pytest.approx(0.1)


def test_rows_without_an_answer_count_and_err_nothing():
    rows = pd.DataFrame(rows_of("a", 6, 0.1))
    rows.loc[0, [*WAYS, "model_out_inside"]] = np.nan
    (group,) = errors(rows).to_dict("records")
    assert (group["n"], group["answered"]) == (6, 5)
    assert group["model_out"] == pytest.approx(0.1)
    assert group["inside"] == 1.0


def drawn_errors(error, kind):
    times = {"value": 100.0 * np.exp(error), "model_out": 100.0, "model_out_low": 95.0, "model_out_high": 105.0}
    known = {
        "engine": "trtllm",
        "metric": "ttft_ms",
        "source_key": "one",
        "at_bound": 1e-3,
        "stands_in": False,
        "faulty": False,
    }
    table = pd.DataFrame(ROW | times | known | {"concurrency": 16.0})
    table["model"] = [f"m{number % 8}" for number in range(len(error))]
    return table, Errors.of(kind, table, "model_out")


@pytest.mark.parametrize("kind", ["ttft", "full"])
def test_intervals_cover_what_they_have_not_seen(kind):
    """Errors of eight models that are drawn alike, most of them slower; intervals of the steps are far too narrow."""
    table, errors = drawn_errors(np.random.default_rng(0).normal(0.2, 0.5, 400), kind)
    assert 0.9 <= left_out(errors, "model").mean() < 1.0  # of seven groups the ends reach further
    (reach, *_) = Fit.of(errors).reach(errors, "trtllm")
    assert reach.logs[3] == pytest.approx(0.2, abs=0.1)
    rate = table.assign(metric="output_tok_s_total", value=1e4 / table["value"], at_bound=1e9)
    (other, *_) = Fit.of(Errors.of(kind, rate, "model_out")).reach(errors, "trtllm")
    assert other.logs == pytest.approx(reach.logs, rel=1e-6)


@pytest.mark.parametrize("kind", ["ttft", "full"])
def test_objectives_hold_as_often_as_stated_where_most_are_slower(kind):
    """Errors of eight models with a median far from 0 and more near it than a normal distribution has."""
    rng = np.random.default_rng(1)
    _, errors = drawn_errors(0.2 + rng.laplace(0.0, 0.15, 1600), kind)
    said = left_out(errors, "model", stated)
    assert [float((said <= share).mean()) for share in STATED] == pytest.approx(STATED, abs=0.05)


def test_other_tools_are_scored_on_what_they_answer():
    """Two groups of five rows. The tool answers three rows of one, off by 10, 20 and 60 %, and one of the other, 40 %.

    So 4 of 10 are answered, with (20 + 40) / 2 = 30 %; ours is 1 % off there (2 and 0), as on all rows.
    """
    rows = pd.DataFrame(rows_of("a", 5, 0.02) + rows_of("b", 5, 0.0)).assign(experts="dense", id=[*"0123456789"])
    values = [1.1, 1.2, 0.4, np.nan, np.nan, 0.6, np.nan, np.nan, np.nan, np.nan]
    answers = pd.DataFrame({"id": rows["id"], "tool": "other", "value": values, "reason": "no such model"})
    found = score(rows, answers).set_index("tool")
    assert found.loc["other", ["n", "answered"]].tolist() == [10, 4]
    assert found.loc["other", ["error", "bias", "model_out"]].tolist() == pytest.approx([0.3, (0.1 - 0.4) / 2, 0.01])
    assert found.loc["model_out", ["answered", "error"]].tolist() == pytest.approx([10, 0.01])
    tools = pd.DataFrame({"title": "Other", "version": "1", "date": "d", "basis": "b"}, index=["other"])
    assert blocks(rows, answers, tools)[2].rows == (("Other", "no such model", "6"),)


def asked_of(**more):
    row = {"id": "", "gpu": "h100-sxm", "load": "static", "isl": 2048.0, "osl": 1.0, "users": 1.0, "gpus": 1,
           "weights": "bf16", "kv": "bf16", "hidden": 4096, "layers": 32, "vocab": 128256, "ffn": 14336, "heads": 32,
           "kv_heads": 8, "llama": 1, "metric": "tpot_ms"}  # fmt: skip
    return next(pd.DataFrame([row | more]).itertuples(index=False))


def test_llm_viewers_formula_gives_what_the_tool_gave():
    """Llama-3-8B on an H100, run by others: a prompt of 2,048 tokens, then a step of 1, 32 and 128 sequences [ms]."""
    rows = [asked_of(metric="ttft_ms"), *(asked_of(users=users, osl=0.0) for users in (1.0, 32.0, 128.0))]
    found = [league_tools.answered("llm-viewer", row)[0] for row in rows]
    assert found == pytest.approx([42.6, 5.0, 7.9, 17.1], abs=0.05)


def test_bentomls_rule_by_hand():
    """A step of one sequence streams 4·D wide layers of two matrices, the cache, and scores as if of a whole prompt."""
    row, keys = asked_of(), 2049
    block = 2 * 4096**2 + 2 * 4096 * 1024 + 2 * 4096 * 16384
    moved = 2 * (32 * block + 2 * 32 * 1024 * keys + keys * 4096 + 32 * keys**2)
    assert league_tools.answered("bentoml", row)[0] == pytest.approx(1e3 * moved / 3350e9)
    assert league_tools.answered("bentoml", asked_of(users=1e4))[1] == league_tools.NO_ROOM
    assert league_tools.answered("bentoml", asked_of(llama=0))[1] == league_tools.NO_MODEL


def test_other_tools_get_mean_lengths_and_the_formats_of_the_row(tmp_path):
    """The client of InferenceX draws lengths evenly from 0.8 to 1 of the nominal one: 0.9 in the mean."""
    row = {"id": "x", "model": "llama-3.1-70b", "tp": 4, "weight_dtype": "fp8", "engine": "trtllm", "metric": "tpot_ms",
           "load": "concurrency", "concurrency": 8, "source_key": "infx"}  # fmt: skip
    path = tmp_path / "rows.csv"
    pd.DataFrame([ROW | row]).to_csv(path, index=False)
    (told,) = inputs([path]).to_dict("records")
    assert (told["isl"], told["osl"], told["users"]) == pytest.approx((0.9 * 1024, 0.9 * 257, 8))
    assert (told["weights"], told["kv"], told["gpus"], told["kv_heads"]) == ("fp8", "fp8", 4, 8)


MARKDOWN = """| Concurrency | Mean TTFT (ms) | Mean TPOT (ms) | input tokens | output tokens |
|---|---|---|---|---|
| 8 | 90 | 9.4 | 1024 | 256 |
"""
WHERE = {"model": "llama-3-8b", "gpu": "h100-sxm", "tp": 1}
PROGRAM = """#!{python}
import json, pathlib, sys
given = json.loads(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
load, engine = given["traffic"]["load"], given["engine"]
if engine["hardware"] != "h100_sxm":
    sys.exit("no such hardware")
out = pathlib.Path(sys.argv[sys.argv.index("--output-dir") + 1])
out.mkdir()
said = dict(mean_ttft_ms=10.0 * load["concurrency"], mean_tpot_ms=9.4, output_throughput_tok_s=900.0)
(out / "prediction.json").write_text(json.dumps(said))
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """AISimulate as a program on the path: a first token takes 10 ms for each user."""
    program = tmp_path / "bin" / "aisimulate"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(rivals, "interpreter", lambda tool: sys.executable if tool == "aisimulate" else None)


def pasted_table(tmp_path):
    path = tmp_path / "pasted.txt"
    path.write_text(MARKDOWN)
    return path


@pytest.mark.usefixtures("installed")
def test_a_pasted_table_is_scored_beside_a_program_that_is_installed(tmp_path):
    """It says 80 ms where 90 were measured, and a TPOT that is right."""
    found = league([pasted_table(tmp_path)], **WHERE)
    by_metric = {each.metric: each for each in found.figures}
    assert {name: each.answers["AISimulate"] for name, each in by_metric.items()} == {"ttft_ms": 80.0, "tpot_ms": 9.4}
    standing = {each.tool: each for each in found.standings}["AISimulate"]
    assert (standing.answered, standing.error) == (2, pytest.approx((1 / 9 + 0) / 2))
    assert (standing.wins + standing.losses + standing.draws, by_metric["tpot_ms"].outcome("AISimulate")) == (2, "loss")
    assert found.absent == ("AIConfigurator",)
    assert "rooflinekit is further off than AISimulate" in text_of(found)
    assert [row["against AISimulate"] for row in flat_rows(found) if row["metric"] == "tpot_ms"] == ["loss"]
    assert json.dumps(found.to_dict())


@pytest.mark.usefixtures("installed")
def test_what_a_program_cannot_answer_keeps_its_reason(tmp_path):
    row = ROW | {"model": "llama-3-8b", "load": "concurrency", "concurrency": 4, "metric": "tpot_ms", "value": 8.0}
    path = tmp_path / "rows.csv"
    pd.DataFrame([row, row | {"gpu": "h200-sxm"}, row | {"gpu": "l4"}, row | {"model": "none"}]).to_csv(
        path, index=False
    )
    found = league([path])
    reasons = {each.gpu: each.reasons.get("AISimulate") for each in found.figures}
    assert reasons == {"h100-sxm": None, "h200-sxm": "no such hardware", "l4": rivals.NO_GPU}
    assert (found.rows, found.answered, sum(found.unanswered.values())) == (4, 3, 1)
    for each in found.figures:
        assert each.answers[BOUND] < each.answers[OURS]


def test_a_league_of_nothing_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("model,gpu,engine,load,isl,osl,concurrency,metric,value\n")
    with pytest.raises(RooflinekitError, match=r"a\.csv"):
        league([tmp_path / "a.csv"])
    with pytest.raises(RooflinekitError, match="leave --tp out"):
        league([tmp_path / "a.csv"], tp=2)

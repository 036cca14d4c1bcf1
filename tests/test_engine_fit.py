"""Engine costs out of benchmark files: what the model made with known costs is found again, and nothing else is.

Every benchmark file here is made from a prediction, in the format of its tool; no number was measured.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.estimation.facts import predict_step
from rooflinekit.evidence.benchmark_runs import Given, predict_load
from rooflinekit.evidence.compare import compare
from rooflinekit.evidence.engine_fit import fit_engine
from rooflinekit.evidence.engine_fit.fit import EngineFit, Error
from rooflinekit.evidence.engine_fit.posterior import MOST, REACH, FitParameter, FitRows, Linearised, solve
from rooflinekit.evidence.measured import RunFacts, is_benchmark, read_measurements
from rooflinekit.load.answer import Load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.step import changed
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.model.types.kernel import CollectiveShape, GemmShape, Kernel
from rooflinekit.specs.calibration import load_calibration

MODEL = "llama-3.1-8b"
LOADS = ((1, 128, 256), (8, 1024, 256), (32, 256, 512), (96, 512, 128))  # users, tokens in, tokens out
TRUE = {"step": 9e-4, "memory": 1.06, "request": 0.0022}
GIVEN = Given(RunFacts(model=MODEL, gpu="h100-sxm", tp=1, engine="vllm"))


def predicted(load, tp=1, engine="vllm", **costs):
    """A load predicted with some costs changed."""
    users, isl, osl = load
    resolved = resolve(MODEL, "h100-sxm", read_deployment({"tp": tp, "engine": engine}), None)
    plan = resolved.plan
    changed = replace(plan, engine=replace(plan.engine, costs=replace(plan.engine.costs, **costs)))
    asked = Load(Fixed(isl), Fixed(osl), users, requests=10 * users)
    return predict_load(Predictor(changed, resolved.predictor.memory), asked)


def as_vllm(load, found, tp=1):
    users, isl, osl = load
    return json.dumps({
        "model_id": MODEL, "backend": "vllm", "request_rate": "inf", "max_concurrency": users, "completed": 10 * users,
        "tp": tp, "total_input_tokens": 10 * users * isl, "total_output_tokens": 10 * users * osl,
        "mean_ttft_ms": found.ttft_ms, "mean_tpot_ms": found.tpot_ms, "mean_e2el_ms": found.e2e_ms,
        "output_throughput": found.output_tok_s, "request_throughput": found.output_tok_s / osl,
    })  # fmt: skip


def as_sglang(load, found):
    data = json.loads(as_vllm(load, found))
    del data["model_id"], data["tp"]
    data["mean_e2e_latency_ms"] = data.pop("mean_e2el_ms")
    return json.dumps(data | {"backend": "sglang", "server_info": {"model_path": MODEL, "tp_size": 1}})


def as_guidellm(load, found):
    users, isl, osl = load

    def figures(mean):
        return {"successful": {"mean": mean, "median": mean, "percentiles": {"p90": mean, "p99": mean}}}

    metrics = {
        "request_totals": {"successful": 10 * users}, "request_latency": figures(found.e2e_ms / 1e3),
        "requests_per_second": figures(found.output_tok_s / osl), "prompt_token_count": figures(float(isl)),
        "output_token_count": figures(float(osl)), "time_to_first_token_ms": figures(found.ttft_ms),
        "time_per_output_token_ms": figures(1.0), "inter_token_latency_ms": figures(found.tpot_ms),
        "output_tokens_per_second": figures(found.output_tok_s),
    }  # fmt: skip
    strategy = {"strategy": {"type_": "concurrent", "streams": users}, "backend": {}}
    return json.dumps({"args": {"model": MODEL}, "benchmarks": [{"config": strategy, "metrics": metrics}]})


def as_aiperf(load, found):
    users, isl, osl = load
    phase = {"type": "concurrency", "concurrency": users, "exclude_from_results": False}
    config = {"endpoint": {"model_names": [MODEL]}, "phases": [phase]}
    values = {
        "time_to_first_token": ("ms", found.ttft_ms), "inter_token_latency": ("ms", found.tpot_ms),
        "request_latency": ("sec", found.e2e_ms / 1e3), "input_sequence_length": ("tokens", float(isl)),
        "output_sequence_length": ("tokens", float(osl)), "request_count": ("requests", 10.0 * users),
        "output_token_throughput": ("tokens/sec", found.output_tok_s),
    }  # fmt: skip
    metrics = {name: {"unit": unit, "avg": value} for name, (unit, value) in values.items()}
    return json.dumps({"aiperf_version": "0.11.0", "input_config": config, **metrics})


TOOLS = {"vllm": as_vllm, "sglang": as_sglang, "guidellm": as_guidellm, "aiperf": as_aiperf}


def write(folder, text, name):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def files_of(folder, tool="vllm", loads=LOADS, **costs):
    write_one = TOOLS[tool]
    return [write(folder, write_one(load, predicted(load, **costs)), f"{n}.json") for n, load in enumerate(loads)]


def fit(files, given=GIVEN):
    return fit_engine(files, given, "2026-01-01")


def named(found):
    return {each.prior.name: each for each in found.outcomes}


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """Files of a deployment with TRUE costs, their fit, and the calibration file it wrote."""
    folder = tmp_path_factory.mktemp("truth")
    files = files_of(folder, **TRUE)
    found = fit(files)
    return files, found, write(folder, found.text, "mine.yaml")


# --- what is found again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_tells_the_same(truth, tmp_path, tool):
    """So that what is fitted to the files of one holds for all."""

    def told(path):
        (run,) = read_measurements(path)
        facts = run.facts
        means = (run.ttft.mean, run.tpot.mean, run.e2e.mean, run.output_tok_s)
        return facts.model, *map(pytest.approx, (facts.isl, facts.osl, facts.concurrency, *means))

    for path, usual in zip(files_of(tmp_path, tool, **TRUE), truth[0], strict=True):
        assert told(path) == told(usual)


def test_known_costs_are_found_again(truth):
    found = truth[1]
    for name, value in TRUE.items():
        each = named(found)[name]
        miss = np.log(value / each.value) if name == "memory" else value - each.value
        assert abs(miss) < 1.645 * each.spread, name
    tokens, first = (found.errors[metric] for metric in ("tpot_ms", "ttft_ms"))
    assert min(tokens.before, first.before) > 0.04
    assert (tokens.after < 0.01, tokens.unseen < 0.02) == (True, True)
    # Four first tokens, each believed to hang on the client by tens of percent, tell little of 3 ms of front end:
    # it moves towards the truth, and it is all that is left of their error. One user's short prompt waits for its
    # launches, which take a part of it.
    assert first.after < 0.9 * first.before
    assert first.unseen < first.before
    front = named(found)["request"]
    assert front.prior.value < front.value < TRUE["request"]
    fitted = {name: each.value for name, each in named(found).items()} | {"request": TRUE["request"]}
    for load, close in zip(LOADS, (0.06, 0.03, 0.03, 0.03), strict=True):
        assert predicted(load, **fitted).ttft_ms == pytest.approx(predicted(load, **TRUE).ttft_ms, rel=close)
    assert not found.failed


def test_costs_of_several_accelerators_come_from_a_split(tmp_path):
    """The same loads on one and on two accelerators: only `ranks` and its kind can make the difference."""
    costs = {"step": 5e-4, "ranks": 1.5e-4}  # about a prior spread from the shipped cost
    files = [
        write(tmp_path, as_vllm(load, predicted(load, tp, **costs), tp), f"{tp}-{load[0]}.json")
        for tp in (1, 2)
        for load in LOADS[:3]
    ]
    found = fit(files, Given(RunFacts(gpu="h100-sxm")))
    assert abs(named(found)["ranks"].value - 1.5e-4) < 1.645 * named(found)["ranks"].spread
    assert named(found)["ranks"].data > 0.05
    one = fit(files[:3], Given(RunFacts(gpu="h100-sxm")))
    silent = named(one)["ranks"]
    assert (silent.value, silent.data) == (pytest.approx(silent.prior.value), pytest.approx(0.0, abs=1e-9))
    assert any("say little of" in note and "ranks" in note for note in one.notes)


def test_offline_throughput_is_enough(tmp_path):
    """MLPerf's offline scenario has neither TTFT nor TPOT."""
    found = predicted((200, 512, 128), memory=1.1)
    text = (
        "MLPerf Results Summary\nScenario : Offline\nMode     : PerformanceOnly\nResult is : VALID\n"
        f"Samples per second: {found.output_tok_s / 128:.6f}\nTokens per second: {found.output_tok_s:.6f}\n"
    )
    given = replace(GIVEN, facts=replace(GIVEN.facts, isl=512, osl=128, concurrency=200))
    fitted = fit([write(tmp_path, text, "mlperf_log_summary.txt")], given)
    assert set(fitted.errors) == {"output_tok_s"}
    assert fitted.errors["output_tok_s"].after < 0.6 * fitted.errors["output_tok_s"].before


def test_a_run_at_its_prediction_moves_nothing(tmp_path):
    found = fit(files_of(tmp_path, loads=LOADS[1:2]))
    for each in found.outcomes:
        assert each.value == pytest.approx(each.prior.value, rel=1e-9, abs=1e-12)
        assert each.spread <= each.prior.spread * (1 + 1e-9)  # and what it confirms is surer
    assert named(found)["step"].spread < 0.95 * named(found)["step"].prior.spread
    assert all(error.unseen is None for error in found.errors.values())


def test_absurd_figures_stop_at_the_bounds_and_it_is_said(tmp_path):
    load = (16, 512, 256)
    one = predicted(load)
    wrong = replace(one, ttft_ms=one.ttft_ms * 100.0, tpot_ms=one.tpot_ms * 100.0)
    found = fit([write(tmp_path, as_vllm(load, wrong), "wrong.json")])
    for each in found.outcomes:
        assert 0.0 <= each.value <= MOST[each.prior.name]
        assert abs(each.moved) <= REACH
    stuck = [each.prior.name for each in found.outcomes if each.at == "most"]
    assert stuck
    assert any(note.startswith(f"{stuck[0]} stands at its bound") for note in found.notes)
    assert any("check --gpu" in note for note in found.notes)


def test_what_beats_the_datasheet_is_not_fitted(tmp_path):
    load = (16, 512, 256)
    one = predicted(load)
    wrong = replace(one, tpot_ms=one.tpot_ms * 0.1)
    with pytest.raises(InputError, match=r"TPOT .* is better than the .* that the datasheet allows"):
        fit([write(tmp_path, as_vllm(load, wrong), "wrong.json")])


@pytest.mark.long
def test_order_and_copies_do_not_matter(truth, tmp_path):
    files, found, _ = truth
    assert fit(files[::-1]).text == found.text
    copy = write(tmp_path, files[0].read_text(), "a-copy.json")
    again = fit([*files, copy, files[1]])
    assert [each.value for each in again.outcomes] == [each.value for each in found.outcomes]
    assert sum("counted once" in note for note in again.notes) == 2
    spaced = write(tmp_path, json.dumps(json.loads(files[0].read_text()), indent=1), "spaced.json")
    assert any("is the same run as" in note for note in fit([*files, spaced]).notes)


@pytest.mark.long
def test_two_fits_in_a_row_are_one(truth, tmp_path):
    """What the first files said is the prior of the second fit; up to the noise, which each estimates anew."""
    files, together, _ = truth
    began = fit(files[:2])
    first = write(tmp_path, began.text, "first.yaml")
    second = fit(files[2:], replace(GIVEN, calibration=str(first)))
    for name in TRUE:
        assert named(second)[name].value == pytest.approx(named(together)[name].value, rel=0.12)
        assert named(second)[name].spread < named(began)[name].spread
    last = write(tmp_path, second.text, "last.yaml")
    assert set(load_calibration(str(last)).served.hashes) == set(load_calibration(str(truth[2])).served.hashes)
    assert second.text.count("serving:") == 1
    assert second.text.count("# Engine costs of one deployment") == 1
    with pytest.raises(InputError, match="has seen every one"):
        fit(files[:1], replace(GIVEN, calibration=str(last)))
    partly = fit(files, replace(GIVEN, calibration=str(first)))
    assert sum("has seen this file" in note for note in partly.notes) == 2


def test_files_that_disagree_widen_the_intervals(tmp_path):
    """The same load measured 1.5 times too fast and too slow: no cost explains it, and left-out files show it."""
    texts = []
    for number, factor in enumerate((0.67, 1.5, 0.7, 1.45)):
        load = (16 + number, 512, 256)
        one = predicted(load)
        texts.append(as_vllm(load, replace(one, tpot_ms=factor * one.tpot_ms)))
    found = fit([write(tmp_path, text, f"{number}.json") for number, text in enumerate(texts)])
    assert found.costs.interval > 1.5
    assert found.errors["tpot_ms"].unseen > found.errors["tpot_ms"].after
    assert found.noise["tpot_ms"] == 0.2
    assert any("does not generalise" in note for note in found.notes)


# --- the solver, by hand --------------------------------------------------------------------------------------------


def test_one_row_and_one_cost_share_the_gap_by_their_variances():
    """With slope s = ∂ln t/∂z and noise σ, z = s·r/(s² + σ²) solves (z − r/s)·s²/σ² + z = 0 for a small gap."""
    rows = FitRows(np.array([1.001]), np.array([0]), np.array([0]))
    linear = Linearised(np.zeros(1), np.array([1.0]), np.array([[0.08]]), np.array([True]))
    found = solve(linear, rows, np.array([[-4.0], [4.0]]), np.array([True]))
    s, sigma = 0.08, found.noise[0]
    assert found.places[0] == pytest.approx(s * np.log(1.001) / (s**2 + sigma**2), rel=3e-3)
    assert found.covariance[0, 0] == pytest.approx(1.0 / (1.0 + (s / sigma) ** 2), rel=3e-3)
    assert sigma == pytest.approx(0.05, rel=0.2)  # one row says little of the noise


def test_two_costs_that_look_alike_share_equally_and_are_named(tmp_path):
    rows = FitRows(np.array([1.05, 1.05]), np.array([0, 0]), np.array([0, 1]))
    linear = Linearised(np.zeros(2), np.ones(2), np.full((2, 2), 0.1), np.ones(2, bool))
    found = solve(linear, rows, np.array([[-4.0] * 2, [4.0] * 2]), np.array([True, True]))
    assert found.places[0] == pytest.approx(found.places[1])
    assert found.covariance[0, 1] < -0.2
    loads = [(4, 64, 1024 + 8 * number) for number in range(6)]  # one batch size, and hardly any prompts
    assert ("step", "memory") in fit(files_of(tmp_path, loads=loads, step=9e-4)).alike


def test_nine_of_ten_intervals_hold_the_truth():
    """Truths drawn from the prior, times with 5 % noise: 90 % intervals of the posterior cover 90 % of them."""
    rng = np.random.default_rng(7)
    slopes = rng.uniform(0.02, 0.3, (12, 3))
    number, file = np.zeros(12, np.intp), np.arange(12)
    held = []
    for _ in range(150):
        true = rng.normal(size=3)
        measured = np.maximum(1.0 + slopes @ true, 0.06) * np.exp(rng.normal(0.0, 0.05, 12))
        linear = Linearised(np.zeros(3), np.ones(12), slopes, np.ones(12, bool))
        found = solve(linear, FitRows(measured, number, file), np.array([[-4.0] * 3, [4.0] * 3]), np.ones(12, bool))
        held += (np.abs(found.places - true) < 1.645 * np.sqrt(np.diag(found.covariance))).tolist()
    assert 0.85 < np.mean(held) < 0.95


def test_a_parameter_knows_its_ends():
    assert FitParameter("step", 1e-4, 1e-3).ends == (pytest.approx(-0.1), REACH)
    assert FitParameter("hidden", 0.9, 0.1).ends == (-REACH, pytest.approx(1.0))
    assert FitParameter("memory", 1.0, 0.5).ends == (pytest.approx(-2 * np.log(2)), pytest.approx(2 * np.log(2)))
    assert FitParameter("memory", 1.0, 0.1).at(2.0) == pytest.approx(np.exp(0.2))


# --- the factors on kernels -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system():
    return resolve(MODEL, "h100-sxm", Deployment(), None).plan.system


def gemm(m, n=4096.0):
    k = 4096.0
    return Kernel("w", "gemm", 1, Dtype.BF16, 2 * m * n * k, n * k * 2.0, shape=GemmShape(m, n, k))


def run_one(kernel, system, **costs):
    timed = time_kernel(kernel, system, load_calibration("h100-sxm--vllm"))
    return timed, changed(timed, StepCosts(**costs))


@pytest.mark.parametrize(("rows", "slow", "other"), [(1.0, "memory", "compute"), (16384.0, "compute", "memory")])
def test_a_factor_slows_what_waits_for_its_resource(system, rows, slow, other):
    plain, slower = run_one(gemm(rows), system, **{slow: 1.2})
    work = plain.expected - plain.overhead
    assert slower.expected == pytest.approx(plain.overhead + 1.2 * work, rel=0.05)
    assert slower.expected > plain.overhead + 1.1 * work
    _, hardly = run_one(gemm(rows), system, **{other: 1.2})
    assert plain.expected < hardly.expected < plain.expected + 0.05 * work
    _, both = run_one(gemm(rows), system, memory=1.2, compute=1.2)
    assert both.expected == pytest.approx(plain.overhead + 1.2 * work)  # shares add up to 1


def test_no_factor_beats_the_bound_and_collectives_have_none(system):
    plain, fast = run_one(gemm(64.0, 65536.0), system, memory=0.5, compute=0.5)
    assert fast.expected == fast.bound == plain.bound
    payload = Kernel("all", "collective", 1, Dtype.BF16, network_bytes=1e6, gpus=2, shape=CollectiveShape(1e6),
                     variant="all_reduce")  # fmt: skip
    before, after = run_one(payload, system, memory=2.0, compute=2.0)
    assert before.expected == after.expected


# --- the file -------------------------------------------------------------------------------------------------------


def test_compare_shows_the_smaller_gap(tmp_path):
    """Of two runs a load: what one each leaves to the prior is up to an eighth of the gap."""
    files = files_of(tmp_path, loads=[(users, isl + more, osl + more) for users, isl, osl in LOADS for more in (0, 8)],
                     **TRUE)  # fmt: skip
    mine = write(tmp_path, fit(files).text, "mine.yaml")
    before, after = (compare(files, replace(GIVEN, calibration=name)) for name in (None, str(mine)))
    for one, other in zip(before.runs, after.runs, strict=True):
        assert abs(other.gap.e2e_ms) < 0.1 * abs(one.gap.e2e_ms)
        assert other.calibration["name"] == "h100-sxm--vllm--served"
        assert other.calibration["hash"] != one.calibration["hash"]


def test_every_prediction_takes_the_file(truth):
    _, found, mine = truth
    shipped, own = (rk.estimate(MODEL, batch=16, calibration=name) for name in (None, str(mine)))
    assert own.tpot_ms > shipped.tpot_ms + 0.5  # half a millisecond of host time, and slower memory
    assert own.bound == shipped.bound
    assert {"engine.memory", "engine.step"} <= {entry.quantity.partition(" ")[0] for entry in own.provenance}
    step = predict_step(MODEL, "h100-sxm", Deployment(), Batch.decode(16.0, 1024.0), calibration=str(mine))
    plan = resolve(MODEL, "h100-sxm", Deployment(), str(mine)).plan
    assert step.time == pytest.approx(plan.time(Batch.decode(16.0, 1024.0)).expected, rel=0.01)
    assert plan.costs == replace(found.costs, spread=plan.costs.spread, **rounded(found.costs, plan.costs))


def rounded(costs, read):
    """Costs as a file of nine decimals gives them back."""
    known = {*MOST, "hop", "token", "chunk", "detokenised", "hand_over"}
    names = {name for name in known if getattr(costs, name) == pytest.approx(getattr(read, name), rel=1e-5, abs=1e-11)}
    assert names == known
    return {name: getattr(read, name) for name in names} | {"interval": read.interval}


def test_intervals_do_not_widen_where_files_agree(truth):
    _, found, _ = truth
    own = resolve(MODEL, "h100-sxm", Deployment(), None).plan.costs
    assert found.costs.interval == own.interval
    for name, spread in found.costs.spread.items():
        assert spread <= own.spread.get(name, 0.0) + 1e-12


def test_loads_of_the_files_narrow_intervals_of_that_model_under_load(truth):
    """What the fit leaves of four loads: little error, and intervals of a load between them are narrower."""
    mine = load_calibration(str(truth[2])).served
    (key, loads), *others = mine.loads.items()
    assert (key, others) == ((MODEL, 1), [])
    assert [(round(each.users), each.prompt) for each in loads] == sorted((users, isl) for users, isl, _ in LOADS)
    assert all(abs(each.tpot) < 0.05 for each in loads)
    asked = {"gpu": "h100-sxm", "isl": 512, "osl": 256, "concurrency": 24}
    for model, narrower in ((MODEL, True), ("mistral-7b", False)):
        widths = []
        for calibration in (None, str(truth[2])):
            low, high = rk.estimate(model, calibration=calibration, **asked).interval80["ttft_ms"]
            widths.append(high / low)
        assert (widths[1] < 0.85 * widths[0]) is narrower


def test_elsewhere_the_costs_are_not_used_and_it_is_said(truth):
    mine = str(truth[2])
    for gpu, deployment in (
        ("h200-sxm", Deployment()),
        ("h100-sxm", Deployment(engine="sglang")),
        ("h100-sxm", Deployment(engine_version="0.6.6")),
    ):
        found = resolve(MODEL, gpu, deployment, mine)
        assert found.plan.costs == resolve(MODEL, gpu, deployment, None).plan.costs
        assert any("are not used" in warning for warning in found.warnings)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("  engine: ", "  machine: ", "unknown key"),
    ("  accelerator: ", "  accelerater: ", "accelerat"),
    ("sha256: ", "sha: ", "unknown key"),
    ("step: {value: ", "stop: {value: ", "unknown key"),
    ("source: [files]", "source: [nobody]", "nobody"),
    ("  errors: {", "  errors: {nothing: 1, ", "unknown key"),
    ("memory: {value: 1", "memory: {value: 99", "0 to 10"),
    ("users: ", "users: -", "users"),
    ("  shipped: true", "  shipped: yes please", "not true or false"),
])  # fmt: skip
def test_a_section_that_cannot_be_trusted_is_refused(truth, tmp_path, old, new, said):
    text = truth[1].text
    head, section = text.split("\nserving:\n")
    path = write(tmp_path, f"{head}\nserving:\n{section.replace(old, new, 1)}", "bad.yaml")
    with pytest.raises(SpecError, match=said) as error:
        load_calibration(str(path))
    assert "bad.yaml" in str(error.value)


# --- the command ----------------------------------------------------------------------------------------------------

OPTIONS = ("--gpu", "h100-sxm")


def call(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_the_command_writes_shows_and_asks(truth, tmp_path):
    files, _, _ = truth
    out = tmp_path / "c.yaml"
    result = call(*files, *OPTIONS, "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "left out" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if not line.startswith("wrote"))
    assert load_calibration(str(out)).served is not None
    assert call(*files, *OPTIONS, "--out", out).exit_code == 2  # it is there
    asked = call(files[0], "--out", tmp_path / "d.yaml")
    assert (asked.exit_code, asked.stderr.count("\n")) == (2, 1)
    assert "--gpu" in asked.stderr
    assert not (tmp_path / "d.yaml").exists()


def test_a_bad_file_among_good_ones_is_named(truth, tmp_path):
    bad = write(tmp_path, "{}", "bad.json")
    result = call(*truth[0][:2], bad, *OPTIONS, "--out", tmp_path / "c.yaml")
    assert result.exit_code == 4
    assert "bad.json" in result.stdout
    assert (tmp_path / "c.yaml").exists()


@pytest.mark.parametrize(("more", "said"), [
    (("--calibration", "none"), "leave --calibration none out"),
    (("--engine", "ideal"), "ideal"),
    (("--gpu", "h200-sxm", "--tp", "0"), "tp"),
    (("--concurrency", "4", "--rate", "2"), "one of them"),
])  # fmt: skip
def test_impossible_fits_are_refused_in_one_line(truth, tmp_path, more, said):
    result = call(truth[0][0], *OPTIONS, *more, "--out", tmp_path / "c.yaml")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


def test_two_engines_are_two_fits(truth, tmp_path):
    other = write(tmp_path, as_sglang(LOADS[1], predicted(LOADS[1], engine="sglang")), "other.jsonl")
    result = call(truth[0][0], other, *OPTIONS, "--out", tmp_path / "c.yaml")
    assert (result.exit_code, "calibrate each by itself" in result.stderr) == (2, True)


def test_kernels_and_benchmarks_are_told_apart_by_their_contents(truth, tmp_path):
    header = write(tmp_path, '{"type": "header", "schema": 1}\n', "m.jsonl")
    table = write(tmp_path, "m,n,k,latency_us\n1,2,3,4\n", "gemm.csv")
    assert [is_benchmark(path) for path in (header, table, truth[0][0])] == [False, False, True]
    assert is_benchmark(write(tmp_path, "Metric,avg,min\n", "aiperf.csv"))
    assert not is_benchmark(tmp_path / "nowhere.parquet")
    mixed = call(table, truth[0][0], *OPTIONS, "--out", tmp_path / "c.yaml")
    assert mixed.exit_code == 2
    assert "gemm.csv holds kernels and 0.json is of a benchmark" in mixed.stderr
    lost = call(table, "--out", tmp_path / "c.yaml")
    assert (lost.exit_code, "--gpu" in lost.stderr) == (2, True)
    wrong = call(table, *OPTIONS, "--tp", "2", "--out", tmp_path / "c.yaml")
    assert (wrong.exit_code, "--tp says how a benchmark was run" in wrong.stderr) == (2, True)


def test_what_is_worse_left_out_than_its_donor_is_not_written(tmp_path, monkeypatch):
    def fitted(unseen, first=0.1):
        errors = {
            "ttft_ms": Error(3, 0.2, first, None if unseen is None else 0.9),
            "tpot_ms": Error(3, 0.10, 0.02, unseen),
        }
        return EngineFit("a: 1\n...\n", StepCosts(), (), (), errors, (), {}, (), {})

    assert fitted(0.12).worse == ("tpot_ms",)
    assert fitted(0.09).worse == ()  # TPOT decides
    assert fitted(None).worse == ()
    assert fitted(None, first=0.25).worse == ()  # the rows together are nearer
    assert fitted(None, first=0.8).worse == ("ttft_ms",)
    out = tmp_path / "mine.yaml"
    file = write(tmp_path, json.dumps({"model_id": MODEL, "total_input_tokens": 1, "completed": 1}), "run.json")
    words = ["calibrate", str(file), "--out", str(out)]
    monkeypatch.setattr("rooflinekit.evidence.engine_fit.fit_engine", lambda *_: fitted(0.12))
    refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, out.exists()) == (2, False)
    assert "predicts files left out worse than before; --force writes it" in " ".join(refused.stderr.split())
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    assert out.read_text() == "a: 1\n...\n"
    monkeypatch.setattr("rooflinekit.evidence.engine_fit.fit_engine", lambda *_: fitted(None, first=0.8))
    out.unlink()
    refused = CliRunner().invoke(app, words)
    assert "predicts its own files worse than before" in " ".join(refused.stderr.split())

"""The capacity workbook: what its cells cache, what its formulas say, and what LibreOffice makes of them."""

from __future__ import annotations

import math
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.estimation.estimator import ask
from rooflinekit.model.traffic.closed_form import Traffic
from rooflinekit.model.traffic.question import LoadQuestion, answer_load
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.report.workbook import Choices, Planned, write_workbook
from rooflinekit.specs import load_accelerator

FEW: dict[str, Any] = {"batches": (), "contexts": (), "headrooms": (), "weights": ("own",), "kv": ("own",)}
CHOICES = Choices(("llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite"), ("h100-sxm",), tp=(1, 2), dp=(1, 2),
                  weights=("own",), kv=("own",), batches=(1, 128), contexts=(2048,), headrooms=(0.5,))  # fmt: skip
FEWER = replace(CHOICES, models=("llama-3.1-8b", "deepseek-v2-lite"), dp=(1,))
PLANNED = Planned(users=20_000)
FUNCTIONS = {"ABS", "AND", "EXP", "IF", "IFERROR", "INDEX", "INT", "ISNUMBER", "LN", "LOG", "MATCH", "MAX", "MIN",
             "NOT", "OR", "ROUNDUP", "SQRT", "SUMIF"}  # fmt: skip
LONGEST = 2000  # Excel takes 8,192 characters
SOFFICE = shutil.which("soffice") or shutil.which("libreoffice")

DEPLOYMENTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", {}, {"rate": 12.0}),
    ("llama-3-70b", "h100-sxm", {"tp": 4, "pp": 2, "microbatches": 2}, {"headroom": 0.02}),
    ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8, "skew": 1.2}, {"isl": 5000, "osl": 300, "headroom": 0.5}),
    ("llama-3.1-8b", "a100-sxm-80gb", {"cp": 2, "engine": "sglang"}, {"batch": 3, "isl": 9000}),
    ("llama-3.1-8b", "l40s", {"kv_policy": "topk:2048"}, {"isl": 6000, "osl": 2}),
    ("llama-3.1-70b", "h100-sxm", {"tp": 4, "draft": "llama-3.1-8b", "draft_tokens": 3, "acceptance": "0.7"}, {}),
    ("qwen3-next-80b-a3b", "h200-sxm", {"tp": 2, "engine": "trtllm"}, {"osl_cv": 0.5, "isl_cv": 1.0}),
    ("mixtral-8x7b", "h100-sxm", {"tp": 2, "ep": 2, "calibration": "none"}, {"burstiness": 2.0}),
    ("deepseek-v3", "h100-sxm", {"tp": 8}, {"batch": 2000}),  # out of memory
    ("gpt-oss-20b", "b200-sxm", {"kv": "fp8"}, {"batch": 1, "cached": 1000, "isl": 1100}),
    ("gemma-3-4b", "h100-sxm", {"images": 2, "image_size": "640x480"}, {"batch": 4}),
]
"""Every kind of parallelism, of policy and of cost; and what else is typed in."""


class Opened:
    """A workbook as openpyxl reads it, its named cells by name."""

    def __init__(self, path: Path, values: bool) -> None:
        self.book = openpyxl.load_workbook(path, data_only=values)
        self.names = {name: self.book.defined_names[name].attr_text for name in self.book.defined_names}

    def cell(self, name: str) -> Any:
        sheet, place = self.names[name].rsplit("!", 1)
        return self.book[sheet.strip("'")][place.replace("$", "")]

    def value(self, name: str) -> Any:
        return self.cell(name).value


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("workbook") / "plan.xlsx"
    write_workbook(made, FEWER, PLANNED)
    return made


@pytest.fixture(scope="module")
def formulas(path: Path) -> Opened:
    return Opened(path, values=False)


@pytest.fixture(scope="module")
def values(path: Path) -> Opened:
    return Opened(path, values=True)


def expected(opened: Opened, scenario: dict[str, Any]) -> dict[str, float | str]:
    """What Python answers for the same inputs; "n/a" where there is no answer."""
    own = ("model", "gpu", "tp", "pp", "ep", "dp", "cp", "microbatches", "weights", "kv")
    keys = {key: opened.value(f"in_{key}") for key in own if f"in_{key}" in opened.names}
    deployment = {key: value for key, value in keys.items() if value != "own"} | scenario
    sizes = {key: opened.value(f"in_{key}") for key in ("isl", "osl")}
    e = rk.estimate(allow_oom=True, batch=opened.value("in_batch"), cached=opened.value("in_cached"), **sizes,
                    **deployment)  # fmt: skip
    found: dict[str, float | str] = {f"{name}_ms": getattr(e, f"{name}_ms") for name in ("ttft", "tpot", "e2e")}
    for name in ("ttft", "tpot"):
        bound = e.bound[f"{name}_ms"]
        low, high = (e.interval or {f"{name}_ms": [bound, bound]})[f"{name}_ms"] or (0.0, 0.0)
        found |= {f"{name}_bound_ms": bound, f"{name}_low_ms": low, f"{name}_high_ms": high}
    found |= {name: getattr(e, name) for name in ("output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user")}
    sizes_of = ("weight", "kv", "activation", "overhead", "total", "capacity", "needed", "available")
    found |= {f"{name}_gb": getattr(e.memory, f"{name}_bytes") / 1e9 for name in sizes_of}
    found |= {"pool_gb": e.memory.kv_pool_bytes / 1e9, "max_batch": e.memory.max_batch}
    found["status"] = "FITS" if e.memory.fits else "OOM"
    return found | ({} if opened.value("in_cached") else loaded(opened, sizes | deployment))


LOADED = {"load_ttft_ms", "load_tpot_ms", "knee", "slots", "running", "queue_ms", "replicas"}
"""Results under load: the workbook has a formula of queues, `estimate` plays the requests."""


def loaded(opened: Opened, scenario: dict[str, Any]) -> dict[str, float | str]:
    """The deployment under the load that the workbook gives to a replica."""
    varied = {key: opened.value(f"in_{key}") for key in ("burstiness", "isl_cv", "osl_cv")}
    try:
        e = rk.estimate(rate=opened.value("out_replica_rate") or 1.0, **varied, **scenario)
    except rk.DoesNotFitError:
        return dict.fromkeys(("knee", "slots", "replicas", "load_ttft_ms", "load_tpot_ms"), "n/a")
    assert e.load is not None
    if not e.load.stable:  # microbatches of a pipeline are played to three quarters of what the formula sustains
        assert "microbatches" in scenario
        return {}
    found: dict[str, float | str] = {"load_ttft_ms": e.ttft_ms or 0.0, "load_tpot_ms": e.tpot_ms}
    for time in ("ttft", "tpot"):  # the ends of its steps, beside as many requests
        low, mean, high = (opened.value(f"out_load_{time}{end}_ms") for end in ("_low", "", "_high"))
        assert low < mean < high
    peak = opened.value("out_peak_rate")
    replicas = math.ceil(peak / ((1.0 - opened.value("in_headroom")) * e.load.knee_rate))
    return found | {"knee": e.load.knee_rate, "slots": e.load.slots, "replicas": max(replicas, 1)}


def assert_answers(opened: Opened, scenario: dict[str, Any]) -> str:
    """Compare every result with Python's; whether it fits in memory."""
    wanted = expected(opened, scenario)
    for name, value in wanted.items():
        found = opened.value(f"out_{name}")
        near = 0.25 if name in LOADED else 1e-12
        assert found == value or found == pytest.approx(value, rel=near, abs=1e-15), (name, scenario)
    return str(wanted["status"])


class TestCells:
    def test_every_formula_caches_a_value_and_no_error(self, formulas: Opened, values: Opened) -> None:
        seen = 0
        for sheet in formulas.book:
            cached = values.book[sheet.title]
            for row in sheet.iter_rows():
                for cell in row:
                    if not (isinstance(cell.value, str) and cell.value.startswith("=")):
                        continue
                    seen += 1
                    held = cached[cell.coordinate].value
                    texts = ("Kernels", "Constants", "Results", "Compare")  # may be empty texts
                    assert held is not None or sheet.title in texts, (sheet.title, cell.coordinate)
                    assert not str(held).startswith("#"), (sheet.title, cell.coordinate, held)
                    assert "#REF" not in cell.value
        assert seen > 10_000

    def test_only_functions_that_every_spreadsheet_has(self, formulas: Opened) -> None:
        for sheet in formulas.book:
            for row in sheet.iter_rows():
                for cell in row:
                    if isinstance(cell.value, str) and cell.value.startswith("="):
                        bare = re.sub(r'"[^"]*"', "", cell.value)
                        assert set(re.findall(r"([A-Z][A-Z0-9.]*)\(", bare)) <= FUNCTIONS, cell.value
                        assert len(cell.value) < LONGEST

    def test_names_lead_to_cells_and_look_like_none(self, formulas: Opened) -> None:
        assert {"in_model", "in_tp", "in_price", "out_tpot_ms", "list_kv"} <= formulas.names.keys()
        for name, target in formulas.names.items():
            assert not re.fullmatch(r"[A-Za-z]{1,3}[0-9]+|[rRcC][0-9]*", name)
            sheet, place = target.rsplit("!", 1)
            assert formulas.book[sheet.strip("'")][place.replace("$", "")] is not None

    def test_the_drop_downs_offer_what_was_asked(self, formulas: Opened, values: Opened) -> None:
        rules = {str(rule.sqref): rule for rule in formulas.book["Inputs"].data_validations.dataValidation}
        for name, offered in (("model", FEWER.models), ("gpu", FEWER.gpus), ("tp", FEWER.tp),
                              ("weights", FEWER.weights), ("kv", FEWER.kv)):  # fmt: skip
            rule = rules[formulas.cell(f"in_{name}").coordinate]
            assert (rule.type, rule.formula1) == ("list", f"list_{name}")
            sheet, place = formulas.names[f"list_{name}"].rsplit("!", 1)
            cells = formulas.book[sheet.strip("'")][place.replace("$", "")]
            rows = cells if isinstance(cells, tuple) else ((cells,),)
            assert tuple(cell.value for (cell,) in rows) == offered

    def test_the_notes_say_where_it_comes_from(self, formulas: Opened) -> None:
        told = " ".join(str(cell) for row in formulas.book["Notes"].iter_rows(values_only=True) for cell in row if cell)
        e = rk.estimate("llama-3.1-8b")
        assert e.calibration is not None
        assert e.calibration["hash"] in told
        assert rk.__version__ in told
        assert '"isl": 1024' in told
        assert "assumption" in told


class TestAnswers:
    def test_the_cached_results_are_those_of_estimate(self, values: Opened) -> None:
        assert assert_answers(values, {}) == "FITS"

    def test_images_come_to_the_text_of_a_prompt(self, tmp_path: Path) -> None:
        write_workbook(tmp_path / "seen.xlsx", one("gemma-3-4b", "h100-sxm", {"images": 2}), PLANNED)
        assert_answers(Opened(tmp_path / "seen.xlsx", values=True), {"images": 2})

    def test_the_sweeps_are_points_of_their_own(self, values: Opened) -> None:
        sheet = values.book["Batch sweep"]
        for row, batch in ((5, 1), (6, 128)):
            e = rk.estimate("llama-3.1-8b", batch=batch)
            assert sheet.cell(row, 3).value == pytest.approx(e.ttft_ms, rel=1e-12)
            assert e.interval is not None
            times = [e.tpot_ms, *(e.interval["tpot_ms"] or ()), e.bound["tpot_ms"]]
            assert [sheet.cell(row, column).value for column in (7, 8, 9, 10)] == pytest.approx(times, rel=1e-12)
        e = rk.estimate("llama-3.1-8b", batch=32, isl=2048)
        assert values.book["Context sweep"].cell(5, 7).value == pytest.approx(e.tpot_ms, rel=1e-12)

    def test_the_kernels_are_those_of_the_step(self, values: Opened) -> None:
        rows = [[cell.value for cell in row[:8]] for row in values.book["Kernels"].iter_rows(min_row=7)]
        e = rk.estimate("llama-3.1-8b", batch=32)
        for step, found in (("prefill", e.prefill), ("decode", e.decode)):
            times = {row[1]: (row[7], row[6]) for row in rows if row[0] == step and row[2]}
            for kernel in found.kernels:
                assert times[kernel.name] == pytest.approx((kernel.time_us, kernel.bound_us), rel=1e-12), kernel.name
            assert times.keys() - {"launch_gaps"} == {kernel.name for kernel in found.kernels} - {"launch_gaps"}

    def test_costs_follow_the_fleet(self, values: Opened) -> None:
        gpus, rate = values.value("out_gpus"), PLANNED.users * PLANNED.requests_per_hour / 3600.0
        assert values.value("out_rate") == pytest.approx(rate)
        assert gpus == values.value("out_replicas") >= rate * PLANNED.peak / values.value("out_knee")
        price = values.value("out_price")
        tokens = rate * 3600.0 * PLANNED.osl / 1e6
        wanted = {"usd_h": gpus * price, "usd_year": gpus * price * 8760.0,
                  "kilowatts": gpus * values.value("out_watts") / 1e3 * PLANNED.pue,
                  "usd_million_output": gpus * price / tokens}  # fmt: skip
        for name, value in wanted.items():
            assert values.value(f"out_{name}") == pytest.approx(value, rel=1e-12), name

    def test_more_headroom_is_a_smaller_load(self, values: Opened) -> None:
        sheet = values.book["Fleet"]
        (row,) = [cells for cells in sheet.iter_rows(values_only=True) if cells[0] == FEWER.headrooms[0]]
        e = rk.estimate("llama-3.1-8b", rate=row[4])
        assert row[3] <= 1.0 - row[0]
        assert row[5:7] == pytest.approx((e.ttft_ms, e.tpot_ms), rel=0.2)  # by a formula beside a play


def recalculated(paths: list[Path], chosen: list[dict[str, Any]], folder: Path) -> list[Opened]:
    """Type inputs into copies of workbooks, and let LibreOffice work out all cells."""
    files = []
    for number, (path, inputs) in enumerate(zip(paths, chosen, strict=True)):
        opened = Opened(path, values=False)  # openpyxl writes no cached values
        for name, value in inputs.items():
            opened.cell(f"in_{name}").value = value
        files.append(folder / f"{number}.xlsx")
        opened.book.save(files[-1])
    out = folder / "out"
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    command = [str(SOFFICE), "--headless", profile, "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", str(out)]
    subprocess.run([*command, *map(str, files)], check=True, capture_output=True, timeout=1800)
    return [Opened(out / file.name, values=True) for file in files]


SWITCHED = {"model": "deepseek-v2-lite", "tp": 2, "batch": 7, "isl": 4096, "osl": 64, "headroom": 0.6}


def drawn(number: int) -> list[dict[str, Any]]:
    """Random inputs over all that the workbook offers."""
    draw = random.Random(number)
    fields = {"model": CHOICES.models, "tp": CHOICES.tp, "dp": CHOICES.dp, "kv": CHOICES.kv,
              "batch": (1, 2, 7, 32, 100, 256, 2000), "isl": (17, 128, 1000, 4096, 30_000), "osl": (2, 3, 64, 256, 777),
              "headroom": (0.01, 0.2, 0.6, 0.9)}  # fmt: skip
    return [{name: draw.choice(options) for name, options in fields.items()} for _ in range(number)]


@pytest.mark.skipif(SOFFICE is None, reason="LibreOffice (soffice) is not installed")
class TestRecalculation:
    @pytest.mark.long
    def test_libreoffice_agrees_on_every_kind_of_deployment(self, tmp_path: Path) -> None:
        paths = []
        for number, (model, gpu, scenario, _) in enumerate(DEPLOYMENTS):
            paths.append(tmp_path / f"made-{number}.xlsx")
            write_workbook(paths[-1], one(model, gpu, scenario), PLANNED)
        found = recalculated(paths, [inputs for *_, inputs in DEPLOYMENTS], tmp_path)
        fits = [assert_answers(opened, scenario)
                for opened, (*_, scenario, _) in zip(found, DEPLOYMENTS, strict=True)]  # fmt: skip
        assert {"FITS", "OOM"} == set(fits)

    def test_libreoffice_has_a_number_where_a_chance_is_next_to_none(self, tmp_path: Path) -> None:
        """A number far below 1e-308 is 0 in Excel and an error in LibreOffice: all of the fleet was #NUM!."""
        model, gpu, scenario, inputs = DEPLOYMENTS[1]
        write_workbook(tmp_path / "made.xlsx", one(model, gpu, scenario), PLANNED)
        (opened,) = recalculated([tmp_path / "made.xlsx"], [inputs], tmp_path)
        assert assert_answers(opened, scenario) == "FITS"

    def test_libreoffice_agrees_on_what_the_drop_downs_choose(self, path: Path, tmp_path: Path) -> None:
        (opened,) = recalculated([path], [SWITCHED], tmp_path)
        assert assert_answers(opened, {}) == "FITS"

    @pytest.mark.long
    def test_libreoffice_agrees_on_50_input_sets(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.xlsx"
        write_workbook(path, CHOICES, PLANNED)
        fits = [assert_answers(opened, {}) for opened in recalculated([path] * 50, drawn(50), tmp_path)]
        assert {"FITS", "OOM"} <= set(fits)


def one(model: str, gpu: str, scenario: dict[str, Any]) -> Choices:
    """A workbook of one deployment."""
    given = dict(scenario)
    degrees: dict[str, Any] = {
        key: (given.pop(key),) for key in ("tp", "pp", "ep", "dp", "cp", "microbatches", "kv") if key in given
    }
    settings: dict[str, Any] = {key: given.pop(key) for key in ("engine", "calibration") if key in given}
    return Choices((model,), (gpu,), **(FEW | {"tp": (1,)} | degrees), **settings, scenario=given)


RIVALS = Choices(("llama-3.3-70b",), ("h100-sxm", "h200-sxm", "mi300x"), tp=(2, 4), **FEW)
COLUMNS = ("gpu", "tp", "memory", "replicas", "gpus", "price", "usd", "million", "rank", "ttft", "tpot", "probability",
           "evidence")  # fmt: skip


def test_the_heads_of_fleets_say_what_sizes_them(tmp_path: Path) -> None:
    write_workbook(tmp_path / "a.xlsx", replace(RIVALS, gpus=("h100-sxm",)), DEMAND)
    rows = Opened(tmp_path / "a.xlsx", values=True).book["Compare"].iter_rows(values_only=True)
    words = [str(cell) for row in rows for cell in row if cell is not None]
    assert {"replicas at the headroom", "GPUs at the headroom"} <= set(words)
    assert any("not a confidence as in `plan`" in each for each in words)


def compared(opened: Opened) -> dict[str, dict[str, Any]]:
    """The rows of the sheet Compare by accelerator."""
    rows = opened.book["Compare"].iter_rows(min_row=5, max_row=4 + len(RIVALS.gpus), values_only=True)
    return {str(row[0]): dict(zip(COLUMNS, row, strict=False)) for row in rows}


def load_of(planned: Planned) -> LoadQuestion:
    """An open loop of the lengths that are planned for."""
    return LoadQuestion(None, 1e-3, Traffic(float(planned.isl), float(planned.osl)), None, None)


def sized(gpu: str, tp: int, planned: Planned) -> dict[str, Any]:
    """What Python says of one accelerator at the peak."""
    question = ask("llama-3.3-70b", gpu, {"tp": tp, "rate": 1e-3, "isl": planned.isl, "osl": planned.osl})
    load = load_of(planned)
    knee = float(answer_load(question.resolved.predictor, load).loaded.knee)
    peak = planned.users * planned.requests_per_hour / 3600.0 * planned.peak
    replicas = math.ceil(peak / ((1.0 - planned.headroom) * knee))
    times = answer_load(question.resolved.predictor, replace(load, rate=peak / replicas)).times
    return {"replicas": replicas, "gpus": replicas * tp, "ttft": 1e3 * times.ttft(0.95), "tpot": 1e3 * times.tpot(0.95)}


DEMAND = Planned(users=20_000, prices={"h200-sxm": 3.0})


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rivals") / "plan.xlsx"
    write_workbook(made, RIVALS, DEMAND)
    return made


class TestComparison:
    """A row each accelerator, on the split that takes the fewest; live but for P95, which says when it is stale."""

    def test_it_opens_at_a_deployment_that_fits(self, rivals: Path) -> None:
        """Two H100 hold the weights and one short request, and not the batch."""
        opened = Opened(rivals, values=True)
        keys = {"tp": opened.value("in_tp"), "batch": opened.value("in_batch"), "isl": 1024, "osl": 256}
        assert opened.value("out_status") == opened.value("out_fleet_status") == "FITS"
        assert rk.estimate("llama-3.3-70b", opened.value("in_gpu"), **keys).memory.fits
        assert not rk.estimate("llama-3.3-70b", "h100-sxm", **keys | {"tp": 2}, allow_oom=True).memory.fits

    def test_machinery_is_hidden_and_what_is_read_is_not(self, rivals: Path) -> None:
        shown = {sheet.title: sheet.sheet_state == "visible" for sheet in Opened(rivals, values=True).book}
        assert [name for name, visible in shown.items() if visible][:3] == ["Inputs", "Compare", "Results"]
        assert not any(shown[name] for name in ("Points", "Times", "Load", "Constants", "Deployments", "Surfaces"))

    def test_each_accelerator_has_its_row(self, rivals: Path) -> None:
        for gpu, row in compared(Opened(rivals, values=True)).items():
            wanted = sized(gpu, row["tp"], DEMAND)
            assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-9), gpu
            others = [sized(gpu, tp, DEMAND)["gpus"] for tp in RIVALS.tp if (gpu, tp) != ("h100-sxm", 2)]
            assert row["gpus"] == min(others), gpu
            quote = load_accelerator(gpu).value.price
            assert quote is not None
            price = DEMAND.prices.get(gpu, quote.usd_per_hour)
            tokens = 20_000 * 12.0 * (1024 + 256) / 1e6
            assert (row["price"], row["usd"]) == (price, pytest.approx(price * row["gpus"]))
            assert row["million"] == pytest.approx(row["usd"] / tokens)

    def test_what_was_never_measured_wins_nothing(self, rivals: Path) -> None:
        rows = compared(Opened(rivals, values=True))
        for gpu, row in rows.items():
            assert row["evidence"] == rk.estimate("llama-3.3-70b", gpu, tp=row["tp"], allow_oom=True).evidence
        assert rows["mi300x"]["evidence"] == "stand-in"
        assert rows["mi300x"]["rank"] == "not ranked"

    def test_what_misses_its_objectives_wins_nothing(self, rivals: Path, tmp_path: Path) -> None:
        """Of fleets whose kernels were measured, the cheapest that keeps its objectives as surely as a plan asks."""
        sure = tmp_path / "sure.xlsx"
        write_workbook(sure, RIVALS, replace(DEMAND, headroom=0.6))
        for path, wins in ((rivals, 0), (sure, 1)):
            rows = compared(Opened(path, values=True)).values()
            measured = [row for row in rows if row["evidence"] == "measured"]
            able = [row for row in measured if row["probability"] >= 0.9]
            assert [row["rank"] for row in rows].count("least") == wins
            assert all(row["rank"] == "not ranked" for row in measured if row["probability"] < 0.9)
            assert all(
                (row["rank"] == "least") == (row["million"] == min(each["million"] for each in able)) for row in able
            )

    @pytest.mark.skipif(SOFFICE is None, reason="LibreOffice (soffice) is not installed")
    def test_it_is_live(self, rivals: Path, tmp_path: Path) -> None:
        other = replace(DEMAND, users=50_000, osl=128)
        opened = recalculated([rivals], [{"users": 50_000, "osl": 128}], tmp_path)[0]
        for gpu, row in compared(opened).items():
            wanted = sized(gpu, row["tp"], other)
            assert (row["replicas"], row["gpus"]) == (wanted["replicas"], wanted["gpus"]), gpu
            assert (row["ttft"], row["tpot"], row["probability"]) == ("n/a",) * 3, "they were those of other inputs"

    def test_an_objective_at_the_expected_time_holds_in_half_of_the_cases(self, tmp_path: Path) -> None:
        """A tenth of the bound never holds. Nothing is sure: steps that are slow enough bring a replica to its knee."""
        gpu, tp = "h200-sxm", 2
        question = ask("llama-3.3-70b", gpu, {"tp": tp, "rate": 1e-3, "isl": DEMAND.isl, "osl": DEMAND.osl})
        rate = DEMAND.peak_rate / sized(gpu, tp, DEMAND)["replicas"]
        tpot = answer_load(question.resolved.predictor, replace(load_of(DEMAND), rate=rate)).loaded.tpot
        asked = replace(RIVALS, gpus=(gpu,), tp=(tp,))
        found = []
        for place, limit in enumerate((0.1 * tpot.bound, tpot.expected, 10.0 * tpot.expected)):
            made = tmp_path / f"{place}.xlsx"
            write_workbook(made, asked, replace(DEMAND, ttft_ms=1e6, tpot_ms=1e3 * float(limit)))
            rows = Opened(made, values=True).book["Compare"].iter_rows(min_row=5, max_row=5, values_only=True)
            found.append(dict(zip(COLUMNS, next(rows), strict=False))["probability"])
        assert found[:2] == pytest.approx([0.0, 0.5], abs=0.02)
        assert 0.5 < found[2] < 1.0


class TestRefusals:
    def test_unknown_names_and_empty_lists(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match=r"llama-3\.1-8b"):
            write_workbook(tmp_path / "a.xlsx", Choices(models=("lama-3.1-8b",)), Planned())
        with pytest.raises(InputError, match="at least one of gpus"):
            write_workbook(tmp_path / "a.xlsx", Choices(gpus=()), Planned())
        with pytest.raises(InputError, match=r"cached"):
            write_workbook(tmp_path / "a.xlsx", Choices(("llama-3.1-8b",), ("h100-sxm",), (1,)), Planned(cached=1024))
        with pytest.raises(InputError, match=r"Headroom must be from 0 to 0.95"):
            write_workbook(tmp_path / "a.xlsx", Choices(("llama-3.1-8b",), ("h100-sxm",), (1,)), Planned(headroom=1.0))
        assert list(tmp_path.iterdir()) == []

    def test_combinations_that_cannot_be_run_say_why(self, tmp_path: Path) -> None:
        choices = Choices(("falcon-7b",), ("a100-sxm-80gb",), (1, 2), batches=(1,), contexts=(64,), headrooms=())
        built = write_workbook(tmp_path / "a.xlsx", choices, Planned())
        reasons = dict(built.refused)
        assert built.offered + len(reasons) == 8
        assert "71 attention heads" in reasons["falcon-7b|a100-sxm-80gb|2|own|own"]
        assert "fp8" in reasons["falcon-7b|a100-sxm-80gb|1|fp8|own"]

    def test_an_unknown_price_is_no_price_of_zero(self, tmp_path: Path) -> None:
        choices = Choices(
            ("llama-3.1-8b",), ("l40s",), (1,), ("own",), ("own",), batches=(1,), contexts=(64,), headrooms=()
        )
        write_workbook(tmp_path / "a.xlsx", choices, Planned())
        opened = Opened(tmp_path / "a.xlsx", values=True)
        assert [opened.value(f"out_{name}") for name in ("price", "usd_h", "usd_million")] == [0, "n/a", "n/a"]
        assert opened.value("out_gpus") >= 1

    def test_nothing_to_offer(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no combination can be run"):
            write_workbook(tmp_path / "a.xlsx", Choices(("falcon-7b",), ("h100-sxm",), (2,)), Planned())

    def test_the_command(self, tmp_path: Path) -> None:
        out = tmp_path / "a.xlsx"
        command = ["workbook", "--model", "llama3-8b", "--gpu", "l40s", "--tp", "1", "--kv", "own", "--out", str(out)]
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, "2 deployments" in done.output) == (0, True), done.output
        assert "exists; add --force" in CliRunner().invoke(app, command).stderr
        bad = CliRunner().invoke(app, [*command, "--force", "--tp", "1,x"])
        assert (bad.exit_code, "list of whole numbers" in bad.stderr) == (2, True)

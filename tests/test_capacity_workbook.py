"""The capacity workbook: what its cells cache, what its formulas say, and what LibreOffice makes of them."""

from __future__ import annotations

import math
import random
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.load.curve import SHARES
from rooflinekit.model.graph.cells import Cell
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.report.workbook import Choices, Planned, write_workbook
from rooflinekit.report.workbook.curves import likely
from rooflinekit.report.workbook.loads import Rung
from rooflinekit.specs import load_accelerator

FEW: dict[str, Any] = {"batches": (), "contexts": (), "headrooms": (), "weights": ("own",), "kv": ("own",)}
CHOICES = Choices(("llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite"), ("h100-sxm",), tp=(1, 2), dp=(1, 2),
                  weights=("own",), kv=("own",), batches=(1, 128), contexts=(2048,), headrooms=(0.5,))  # fmt: skip
FEWER = replace(CHOICES, models=("llama-3.1-8b", "deepseek-v2-lite"), dp=(1,))
PLANNED = Planned(users=20_000)
FUNCTIONS = {"ABS", "AND", "EXP", "FIXED", "IF", "IFERROR", "INDEX", "INT", "ISNUMBER", "LN", "LOG", "MATCH", "MAX",
             "MIN", "NORMSDIST", "NOT", "OR", "ROUNDUP", "SQRT", "SUMIF"}  # fmt: skip
EMPTY = ("Kernels", "Constants", "Results", "Compare", "Inputs", "Fleet", "Summary")  # sheets with empty texts
SHEETS = ("Summary", "Inputs", "Compare", "Results", "Batch sweep", "Context sweep", "Fleet", "TCO", "Kernels")
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


KEYS = ("model", "gpu", "tp", "pp", "ep", "dp", "cp", "microbatches", "weights", "kv")


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

    def out(self, *names: str) -> list[Any]:
        return [self.value(f"out_{name}") for name in names]

    def rungs(self, key: str) -> list[Rung]:
        """What sheet Loads says of a deployment."""
        rows = self.book["Loads"].iter_rows(min_row=5, values_only=True)
        return [Rung(*row[1:]) for row in rows if row[0] == key]

    @property
    def together(self) -> int:
        """Replicas behind whose router the loads of the chosen deployment were played."""
        return int(str(self.value("out_played")).rsplit("one of ", 1)[1].split()[0])

    @property
    def chosen(self) -> str:
        """The key of the deployment of Inputs."""
        return "|".join(str(self.value(f"in_{name}")) for name in KEYS if f"in_{name}" in self.names)


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
    keys = {key: opened.value(f"in_{key}") for key in KEYS if f"in_{key}" in opened.names}
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
    return found


UNDER_LOAD = ("replicas", "capacity", "bound", "replica_rate", "load_ttft_ms", "load_tpot_ms", "load_ttft_p95_ms",
              "load_tpot_p95_ms", "probability", "running", "queue_ms", "watts", "usd_h")  # fmt: skip


def between(rungs: list[Rung], rate: float, name: str) -> float:
    """On the straight line between two rungs."""
    below = max(place for place, rung in enumerate(rungs[:-1]) if rung.rate <= rate)
    low, high = rungs[below], rungs[below + 1]
    share = min((rate - low.rate) / (high.rate - low.rate), 1.0)
    return float(getattr(low, name) + share * (getattr(high, name) - getattr(low, name)))


def reach(rungs: list[Rung], name: str, goal: float) -> float:
    """The largest rate at which P95 keeps an objective at the confidence, where steps take so much longer; 0: none."""
    values = [getattr(rung, f"{name}_sure") for rung in rungs]
    held = next((place for place, value in enumerate(values) if value > goal), len(rungs)) - 1
    if held < 0:
        return 0.0
    rate = rungs[held].rate
    if held < len(rungs) - 1:
        share = (goal - values[held]) / (values[held + 1] - values[held])
        rate += share * (rungs[held + 1].rate - rate)
    return rate / float(getattr(rungs[held], f"{name}_pace"))


def assert_fleet(opened: Opened) -> None:
    """Replicas keep the headroom of what meets the objectives, and users meet what was played."""
    rungs, (capacity, bound) = opened.rungs(opened.chosen), opened.out("capacity", "bound")
    goals = {name: opened.value(f"in_{name}") for name in ("ttft", "tpot")}
    ends = {name: reach(rungs, name, goal) if rungs else 0.0 for name, goal in goals.items()}
    if not min(ends.values()):
        assert opened.out("replicas", "capacity", "load_ttft_ms", "probability") == ["n/a"] * 4
        assert opened.value("out_fleet_reason")
        return
    assert capacity == pytest.approx(min(ends.values()), rel=1e-9)
    assert bound in {"knee", min(ends, key=lambda name: ends[name]).upper()}
    peak, headroom, each = (opened.value(name) for name in ("out_peak_rate", "in_headroom", "out_replica_rate"))
    replicas = opened.value("out_replicas")
    assert replicas in {math.ceil(peak / ((1.0 - headroom) * capacity)), opened.together}
    assert opened.value("out_replica_rate") == pytest.approx(peak / replicas)
    names = {"load_ttft_ms": "ttft", "load_tpot_ms": "tpot", "load_ttft_p95_ms": "ttft_p95", "running": "running",
             "load_tpot_p95_ms": "tpot_p95", "queue_ms": "queue"}  # fmt: skip
    wanted = [between(rungs, each, name) for name in names.values()]
    assert opened.out(*names) == pytest.approx(wanted, rel=1e-9)
    average = opened.value("out_rate") / replicas
    assert opened.value("out_watts") == pytest.approx(between(rungs, average, "watts"), rel=1e-9)


def assert_answers(opened: Opened, scenario: dict[str, Any]) -> str:
    """Compare every result of the static batch with Python's; whether it fits in memory."""
    wanted = expected(opened, scenario)
    for name, value in wanted.items():
        found = opened.value(f"out_{name}")
        assert found == value or found == pytest.approx(value, rel=1e-12, abs=1e-15), (name, scenario)
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
                    assert held is not None or sheet.title in EMPTY, (sheet.title, cell.coordinate)
                    assert not str(held).startswith("#"), (sheet.title, cell.coordinate, held)
                    assert "#REF" not in cell.value
        assert 5_000 < seen < 60_000

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


class TestLoads:
    """A table of loads that were played, and fleets on straight lines between them."""

    def test_the_rungs_are_what_estimate_plays(self, values: Opened) -> None:
        rungs = values.rungs(values.chosen)
        assert 2 < len(rungs) <= len(SHARES) + 1
        for place in (1, 7, len(rungs) - 1):  # where intervals are played, too
            rung, even = rungs[place], values.together**-0.5
            e = rk.estimate("llama-3.1-8b", rate=rung.rate, burstiness=even, max_model_len=1280)
            assert e.load is not None
            assert e.interval is not None
            assert e.energy is not None
            told = {
                "ttft": e.ttft_ms, "ttft_low": (e.interval["ttft_ms"] or ())[0], "tpot": e.tpot_ms,
                "tpot_high": (e.interval["tpot_ms"] or ())[1], "running": e.load.running, "queue": e.load.queue_ms,
                "watts": e.energy.plug_w_per_gpu,
            } | {f"{each}_p95": e.load.percentiles[f"{each}_ms"]["p95"] for each in ("ttft", "tpot")}  # fmt: skip
            assert rung._asdict() == pytest.approx(rung._asdict() | told, rel=1e-9)
            assert rung.rate == pytest.approx(SHARES[place - 1] * e.load.knee_rate, rel=1e-9)
            assert values.out("knee", "slots") == [pytest.approx(e.load.knee_rate, rel=1e-9), e.load.slots]

    def test_fleets_stand_between_rungs(self, values: Opened) -> None:
        assert_fleet(values)

    def test_the_fleet_is_that_of_plan(self, values: Opened) -> None:
        """To the accelerator; one fewer where its load is within 2 % of what a replica bears, which both find."""
        best = rk.plan(
            "llama-3.1-8b", slo="p95 ttft<1s, p95 tpot<50ms", isl=1024, osl=256, tp=[1], aggregated_only=True,
            rate=PLANNED.peak_rate / PLANNED.peak, peak=PLANNED.peak, headroom=PLANNED.headroom,
        ).best  # fmt: skip
        gpus, capacity = values.out("gpus", "capacity")
        each = PLANNED.peak_rate / (1.0 - PLANNED.headroom) / gpus
        assert gpus == best.gpus or (gpus == best.gpus - 1 and 0.98 < each / capacity <= 1.0)
        assert capacity == pytest.approx(best.fleets[0].capacity, rel=1e-12) or gpus != best.gpus

    def test_the_first_sheet_is_the_answer(self, values: Opened) -> None:
        """In a sentence, and in lines that are those of the sheets behind it."""
        gpus, year, ttft = values.out("gpus", "usd_year", "load_ttft_p95_ms")
        fleet = f"{gpus:.0f} GPUs ({gpus:.0f} replicas of 1)" if gpus > 1 else "1 GPU (1 replica of 1)"
        said = values.value("out_summary")
        assert said.startswith(f"llama-3.1-8b on h100-sxm: {fleet} at {PLANNED.peak_rate:,.2f} requests a second, for ")
        assert f"{year:,.0f} USD a year. P95: first token {ttft:,.0f} ms" in said
        rows = {row[0]: row[1] for row in values.book["Summary"].iter_rows(values_only=True, max_col=2)}
        assert rows["Fleet"] == fleet
        assert rows["Cost of a year"] == year
        assert rows["Requests, busiest hour"] == pytest.approx(PLANNED.peak_rate)

    def test_more_load_is_felt(self, values: Opened) -> None:
        """Waits, steps, percentiles and power rise with the rate; means lie inside their intervals, below P95."""
        for key in ("llama-3.1-8b|h100-sxm|1|own|own", "deepseek-v2-lite|h100-sxm|2|own|own"):
            rungs = values.rungs(key)
            for name in ("rate", "ttft", "tpot", "ttft_p95", "tpot_p95", "running"):
                column = [getattr(rung, name) for rung in rungs]
                assert all(after >= 0.98 * before for before, after in pairwise(column)), (key, name)  # as played
            assert rungs[0].watts < rungs[1].watts
            for rung in rungs:
                assert rung.ttft_low < rung.ttft < min(rung.ttft_high, rung.ttft_p95)
                assert rung.tpot_low < rung.tpot < min(rung.tpot_high, rung.tpot_p95)

    def test_more_headroom_is_a_smaller_load(self, values: Opened) -> None:
        (row,) = [row for row in values.book["Fleet"].iter_rows(values_only=True) if row[0] == FEWER.headrooms[0]]
        rungs = values.rungs(values.chosen)
        assert row[1] > values.value("out_replicas")
        assert row[3] <= 1.0 - row[0]
        assert row[5:7] == pytest.approx([between(rungs, row[4], name) for name in ("ttft", "tpot")], rel=1e-9)
        assert row[5] < values.value("out_load_ttft_ms")
        assert row[7] == "MEETS"

    def test_what_was_played_is_told(self, values: Opened) -> None:
        told = " ".join(map(str, values.out("played_for", "played_with")))
        assert all(words in told for words in ("isl 1024", "osl 256", "seed 0", "2000 requests"))
        assert not values.value("out_stale")

    @pytest.mark.parametrize(("limit", "share"), [(10.0, 0.5), (20.0, 0.95), (5.0, 0.05), (1e-3, 0.0), (1e4, 1.0)])
    def test_an_objective_holds_as_surely_as_the_interval_says(self, limit: float, share: float) -> None:
        time = {"ttft": Cell("A1", 8.0), "ttft_low": Cell("A2", 4.0), "ttft_high": Cell("A3", 16.0),
                "ttft_p95": Cell("A5", 10.0)}  # fmt: skip
        assert likely(time, "ttft", Cell("A4", limit)).value == pytest.approx(share, abs=1e-4)


def recalculated(path: Path, chosen: dict[str, dict[str, Any]], folder: Path) -> dict[str, Opened]:
    """Type inputs into copies of a workbook, and let LibreOffice work out all cells."""
    opened, files = Opened(path, values=False), {}  # openpyxl writes no cached values
    for name, inputs in chosen.items():
        before = {key: opened.value(f"in_{key}") for key in inputs}
        for key, value in inputs.items():
            opened.cell(f"in_{key}").value = value
        files[name] = folder / f"{path.stem}-{name}.xlsx"
        opened.book.save(files[name])
        for key, value in before.items():
            opened.cell(f"in_{key}").value = value
    out = folder / "out"
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    command = [str(SOFFICE), "--headless", profile, "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", str(out)]
    subprocess.run([*command, *map(str, files.values())], check=True, capture_output=True, timeout=1800)
    return {name: Opened(out / file.name, values=True) for name, file in files.items()}


TYPED: dict[str, dict[str, Any]] = {
    "same": {},
    "switched": {"model": "deepseek-v2-lite", "tp": 2, "batch": 7, "headroom": 0.6, "users": 90_000, "tpot": 42.0},
    "hopeless": {"tpot": 1.0},
    "longer": {"batch": 7, "isl": 4096, "osl": 64},
    "blank": {"isl": None},
}
"""What is typed into the yellow cells."""


def drawn(number: int) -> dict[str, dict[str, Any]]:
    """Random inputs over all that the workbook offers."""
    draw = random.Random(number)
    fields = {"model": CHOICES.models, "tp": CHOICES.tp, "dp": CHOICES.dp, "kv": CHOICES.kv, "tpot": (5.0, 12.0, 50.0),
              "batch": (1, 2, 7, 32, 100, 256, 2000), "isl": (17, 128, 1024, 4096, 30_000), "osl": (2, 3, 64, 256),
              "headroom": (0.01, 0.2, 0.6, 0.9)}  # fmt: skip
    sets = [{name: draw.choice(options) for name, options in fields.items()} for _ in range(number)]
    played = [each | {"isl": 1024, "osl": 256} if place % 2 else each for place, each in enumerate(sets)]
    return {str(place): each for place, each in enumerate(played)}


@pytest.fixture(scope="module")
def typed(path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    return recalculated(path, TYPED, tmp_path_factory.mktemp("typed"))


@pytest.mark.skipif(SOFFICE is None, reason="LibreOffice (soffice) is not installed")
class TestRecalculation:
    def test_libreoffice_agrees_on_every_cell(self, typed: dict[str, Opened], formulas: Opened, values: Opened) -> None:
        for sheet in formulas.book:
            ours, theirs = values.book[sheet.title], typed["same"].book[sheet.title]
            for row in sheet.iter_rows():
                for cell in row:
                    if isinstance(cell.value, str) and cell.value.startswith("="):
                        want, found = ours[cell.coordinate].value, theirs[cell.coordinate].value
                        near = isinstance(want, (int, float)) and found == pytest.approx(want, rel=1e-9, abs=1e-300)
                        assert near or (want or "") == (found or ""), (sheet.title, cell.coordinate, want, found)

    def test_libreoffice_agrees_on_what_the_drop_downs_choose(self, typed: dict[str, Opened]) -> None:
        opened = typed["switched"]
        assert assert_answers(opened, {}) == "FITS"
        assert_fleet(opened)
        assert opened.value("out_bound") == "TPOT"
        assert 0.5 < opened.value("out_probability") < 1.0

    def test_objectives_that_no_load_meets_have_no_fleet(self, typed: dict[str, Opened]) -> None:
        assert_fleet(typed["hopeless"])
        assert typed["hopeless"].value("out_fleet_reason") == "TPOT misses its objective even without load"
        assert typed["hopeless"].value("out_fleet_status") == "FITS"
        assert typed["hopeless"].value("out_summary") == "No fleet: TPOT misses its objective even without load"

    def test_other_lengths_are_live_but_under_load(self, typed: dict[str, Opened]) -> None:
        opened = typed["longer"]
        assert assert_answers(opened, {}) == "FITS"
        assert opened.out(*UNDER_LOAD) == ["n/a"] * len(UNDER_LOAD)
        assert opened.value("out_fleet_reason") == opened.value("out_stale")
        assert "make a new workbook" in opened.value("out_stale")

    def test_a_prompt_of_nothing_is_no_answer(self, typed: dict[str, Opened]) -> None:
        opened = typed["blank"]
        assert opened.out("status", "fleet_status", "ttft_ms", "replicas", "usd_h") == ["n/a"] * 5
        assert opened.value("out_reason") == "the input length must be a number of 1 or more"
        for name in SHEETS:
            cells = [cell for row in opened.book[name].iter_rows(values_only=True) for cell in row]
            assert not any(str(cell).startswith("#") for cell in cells), name

    @pytest.mark.long
    def test_libreoffice_agrees_on_every_kind_of_deployment(self, tmp_path: Path) -> None:
        fits = []
        for number, (model, gpu, scenario, inputs) in enumerate(DEPLOYMENTS):
            path = tmp_path / f"made-{number}.xlsx"
            lengths = {key: value for key, value in inputs.items() if key in Planned.__dataclass_fields__}
            write_workbook(path, one(model, gpu, scenario), replace(PLANNED, **lengths))
            (opened,) = recalculated(path, {"same": {}}, tmp_path).values()
            fits.append(assert_answers(opened, scenario))
            assert_fleet(opened)
        assert {"FITS", "OOM"} == set(fits)

    @pytest.mark.long
    def test_libreoffice_agrees_on_50_input_sets(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.xlsx"
        write_workbook(path, CHOICES, PLANNED)
        found, sets = recalculated(path, drawn(50), tmp_path), drawn(50)
        for name, opened in found.items():
            assert_answers(opened, {})
            if (sets[name]["isl"], sets[name]["osl"]) == (PLANNED.isl, PLANNED.osl):
                assert_fleet(opened)
        assert {opened.value("out_status") for opened in found.values()} >= {"FITS", "OOM"}


def one(model: str, gpu: str, scenario: dict[str, Any]) -> Choices:
    """A workbook of one deployment."""
    given = dict(scenario)
    degrees: dict[str, Any] = {
        key: (given.pop(key),) for key in ("tp", "pp", "ep", "dp", "cp", "microbatches", "kv") if key in given
    }
    settings: dict[str, Any] = {key: given.pop(key) for key in ("engine", "calibration") if key in given}
    return Choices((model,), (gpu,), **(FEW | {"tp": (1,)} | degrees), **settings, scenario=given)


RIVALS = Choices(("llama-3.3-70b",), ("h100-sxm", "h200-sxm", "mi300x"), tp=(2, 4), **FEW)
COLUMNS = ("gpu", "tp", "memory", "replicas", "gpus", "bound", "price", "usd", "million", "rank", "ttft", "tpot",
           "probability", "watts", "evidence")  # fmt: skip
DEMAND = Planned(users=20_000, prices={"h200-sxm": 3.0})


def compared(opened: Opened) -> dict[str, dict[str, Any]]:
    """The rows of the sheet Compare by accelerator."""
    rows = opened.book["Compare"].iter_rows(min_row=5, max_row=4 + len(RIVALS.gpus), values_only=True)
    return {str(row[0]): dict(zip(COLUMNS, row, strict=False)) for row in rows}


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rivals") / "plan.xlsx"
    write_workbook(made, RIVALS, DEMAND)
    return made


@pytest.fixture(scope="module")
def compare(rivals: Path) -> Opened:
    return Opened(rivals, values=True)


class TestComparison:
    """A row each accelerator, on the split that takes the fewest; all of it is live."""

    def test_it_opens_at_a_deployment_that_fits(self, compare: Opened) -> None:
        """Two H100 hold the weights and one short request, and not the batch."""
        keys = {"tp": compare.value("in_tp"), "batch": compare.value("in_batch"), "isl": 1024, "osl": 256}
        assert compare.value("out_status") == compare.value("out_fleet_status") == "FITS"
        assert rk.estimate("llama-3.3-70b", compare.value("in_gpu"), **keys).memory.fits
        assert not rk.estimate("llama-3.3-70b", "h100-sxm", **keys | {"tp": 2}, allow_oom=True).memory.fits

    def test_machinery_is_hidden_and_what_is_read_is_not(self, compare: Opened) -> None:
        shown = {sheet.title: sheet.sheet_state == "visible" for sheet in compare.book}
        assert [name for name, visible in shown.items() if visible][:3] == ["Summary", "Inputs", "Compare"]
        assert shown["Loads"]
        assert shown["Curves"]
        assert not any(shown[name] for name in ("Points", "Between", "Constants", "Deployments", "Surfaces"))

    def test_the_heads_of_fleets_say_what_sizes_them(self, compare: Opened) -> None:
        rows = compare.book["Compare"].iter_rows(values_only=True)
        words = [str(cell) for row in rows for cell in row if cell is not None]
        assert {"replicas at the headroom", "GPUs at the headroom"} <= set(words)
        assert any("sized as `plan` sizes them" in each for each in words)

    def test_each_accelerator_has_its_row(self, compare: Opened) -> None:
        peak, goals = DEMAND.peak_rate, {"ttft": 1000.0, "tpot": 50.0}
        for gpu, row in compared(compare).items():
            needed = {}
            for tp in RIVALS.tp:
                rungs = compare.rungs(f"llama-3.3-70b|{gpu}|{tp}|own|own")
                bears = min(reach(rungs, name, goal) for name, goal in goals.items()) if rungs else 0.0
                if bears:
                    needed[tp] = tp * math.ceil(peak / (0.8 * bears))
            assert row["gpus"] >= needed[row["tp"]], gpu
            assert row["gpus"] <= 1.1 * min(needed.values()) + row["tp"], gpu
            rungs = compare.rungs(f"llama-3.3-70b|{gpu}|{row['tp']}|own|own")
            rate = peak / row["replicas"]
            assert row["ttft"] == pytest.approx(between(rungs, rate, "ttft_p95"), rel=1e-9)
            assert row["tpot"] == pytest.approx(between(rungs, rate, "tpot_p95"), rel=1e-9)
            assert row["watts"] == pytest.approx(between(rungs, rate / DEMAND.peak, "watts"), rel=1e-9)
            quote = load_accelerator(gpu).value.price
            assert quote is not None
            price = DEMAND.prices.get(gpu, quote.usd_per_hour)
            tokens = 20_000 * 12.0 * (1024 + 256) / 1e6
            assert (row["price"], row["usd"]) == (price, pytest.approx(price * row["gpus"]))
            assert row["million"] == pytest.approx(row["usd"] / tokens)

    def test_what_was_never_measured_wins_nothing(self, compare: Opened) -> None:
        rows = compared(compare)
        for gpu, row in rows.items():
            assert row["evidence"] == rk.estimate("llama-3.3-70b", gpu, tp=row["tp"], allow_oom=True).evidence
        assert rows["mi300x"]["evidence"] == "stand-in"
        assert rows["mi300x"]["rank"] == "not ranked"

    @pytest.mark.skipif(SOFFICE is None, reason="LibreOffice (soffice) is not installed")
    def test_it_is_live(self, rivals: Path, compare: Opened, tmp_path: Path) -> None:
        """Of fleets whose kernels were measured the cheapest is marked."""
        typed: dict[str, dict[str, Any]] = {
            "free": {"users": 50_000, "headroom": 0.6}, "lax": {"tpot": 500.0}, "other": {"osl": 128},
        }  # fmt: skip
        found = {"first": compare} | recalculated(rivals, typed, tmp_path)
        rows = {name: compared(opened) for name, opened in found.items()}
        for gpu, row in rows["first"].items():
            free, lax, other = (rows[name][gpu] for name in typed)
            assert free["gpus"] > row["gpus"] >= lax["gpus"], gpu
            assert free["probability"] > row["probability"]
            assert lax["probability"] > row["probability"] or lax["gpus"] < row["gpus"]
            gone = ("replicas", "gpus", "usd", "million", "ttft", "tpot", "probability", "watts")
            assert {other[name] for name in gone} == {"n/a"}, "they were those of other lengths"
        for name in ("first", "free", "lax"):
            measured = [row for row in rows[name].values() if row["evidence"] == "measured"]
            least = min((row["million"] for row in measured), default=math.nan)
            for row in rows[name].values():
                assert (row["rank"] == "least") == (row in measured and row["million"] == least), name


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
        choices = Choices(("falcon-7b",), ("mi250x",), (1, 2), batches=(1,), contexts=(64,), headrooms=())
        built = write_workbook(tmp_path / "a.xlsx", choices, Planned())
        reasons = dict(built.refused)
        assert built.offered + len(reasons) == 4
        assert "71 attention heads" in reasons["falcon-7b|mi250x|2|own|own"]
        assert "fp8" in reasons["falcon-7b|mi250x|1|fp8|own"]

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

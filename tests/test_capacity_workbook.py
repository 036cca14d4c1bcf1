"""The capacity workbook: what its cells cache, what its formulas say, and what LibreOffice makes of them."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.coefficients.fleet import Tariff, cost, fleet, service
from rooflinekit.model.coefficients.plan import plan_coefficients
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.report.workbook import Choices, Planned, write_workbook
from rooflinekit.report.workbook.formula import Formula, log2, maximum, when

CHOICES = Choices(("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"), ("h100-sxm",), (1, 8),
                  batches=(1, 128), contexts=(2048,))  # fmt: skip
FUNCTIONS = {"AND", "CHOOSE", "IF", "IFERROR", "INDEX", "INT", "ISNUMBER", "LOG", "MATCH", "MAX", "MIN", "ROUNDUP",
             "SQRT", "SUM", "SUMPRODUCT"}  # fmt: skip
PLANNED = Planned(users=20_000)
SOFFICE = shutil.which("soffice") or shutil.which("libreoffice")


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
    assert write_workbook(made, CHOICES, PLANNED).refused == ()
    return made


@pytest.fixture(scope="module")
def formulas(path: Path) -> Opened:
    return Opened(path, values=False)


@pytest.fixture(scope="module")
def values(path: Path) -> Opened:
    return Opened(path, values=True)


def expected(chosen: dict[str, Any]) -> dict[str, float]:
    """What Python answers for the same inputs."""
    keys = {name: value for name, value in chosen.items() if name not in ("model", "gpu") and value != "own"}
    e = rk.estimate(chosen["model"], chosen["gpu"], allow_oom=True, **keys)
    found = {f"{name}_ms": getattr(e, f"{name}_ms") for name in ("ttft", "tpot", "e2e")}
    for name in ("ttft", "tpot"):
        assert e.interval is not None
        low, high = e.interval[f"{name}_ms"] or (0.0, 0.0)
        found |= {f"{name}_bound_ms": e.bound[f"{name}_ms"], f"{name}_low_ms": low, f"{name}_high_ms": high}
    found |= {name: getattr(e, name) for name in ("output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user")}
    sizes = ("weight", "kv", "activation", "overhead", "total", "capacity", "needed", "available")
    found |= {f"{name}_gb": getattr(e.memory, f"{name}_bytes") / 1e9 for name in sizes}
    return found | {"pool_gb": e.memory.kv_pool_bytes / 1e9, "max_batch": e.memory.max_batch, "fits": e.memory.fits}


def assert_answers(opened: Opened, chosen: dict[str, Any]) -> bool:
    """Compare every result with Python's; whether it fits in memory."""
    wanted = expected(chosen)
    fits = bool(wanted.pop("fits"))
    assert opened.value("out_status") == ("FITS" if fits else "OOM"), chosen
    for name, value in wanted.items():
        assert opened.value(f"out_{name}") == pytest.approx(value, rel=1e-9), (name, chosen)
    return fits


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
                    texts = ("Slots", "Calc", "Kernels", "Deployment", "Results")  # may be empty texts
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
                        assert not re.search(r"\d[eE][+-]?\d", bare), cell.value

    def test_names_lead_to_cells_and_look_like_none(self, formulas: Opened) -> None:
        assert {"in_model", "in_tp", "in_price", "out_tpot_ms", "list_kv"} <= formulas.names.keys()
        for name, target in formulas.names.items():
            assert not re.fullmatch(r"[A-Za-z]{1,3}[0-9]+|[rRcC][0-9]*", name)
            sheet, place = target.rsplit("!", 1)
            assert formulas.book[sheet.strip("'")][place.replace("$", "")] is not None

    def test_the_drop_downs_offer_what_was_asked(self, formulas: Opened, values: Opened) -> None:
        rules = {str(rule.sqref): rule for rule in formulas.book["Inputs"].data_validations.dataValidation}
        for name, offered in (("model", CHOICES.models), ("gpu", CHOICES.gpus), ("tp", CHOICES.tp),
                              ("weights", CHOICES.weights), ("kv", CHOICES.kv)):  # fmt: skip
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
        start = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 1, "batch": 32, "isl": 1024, "osl": 256}
        assert assert_answers(values, start)

    @pytest.mark.parametrize(
        ("chosen", "fits"),
        [
            ({"model": "deepseek-v3", "tp": 8, "kv": "fp8", "batch": 3, "isl": 5000, "osl": 2}, False),
            ({"model": "gpt-oss-20b", "tp": 1, "weights": "fp8", "batch": 64, "isl": 5000, "osl": 777}, True),
            ({"model": "mixtral-8x7b", "tp": 8, "batch": 1, "isl": 1, "osl": 1}, True),
        ],
    )
    def test_other_starts(self, tmp_path: Path, chosen: dict[str, Any], fits: bool) -> None:
        chosen = {"gpu": "h100-sxm", "weights": "own", "kv": "own"} | chosen
        choices = Choices((chosen["model"],), ("h100-sxm",), (chosen["tp"],), (chosen["weights"],), (chosen["kv"],),
                          batches=(2,), contexts=(64,))  # fmt: skip
        planned = Planned(batch=chosen["batch"], isl=chosen["isl"], osl=chosen["osl"])
        write_workbook(tmp_path / "one.xlsx", choices, planned)
        assert assert_answers(Opened(tmp_path / "one.xlsx", values=True), chosen) is fits

    def test_the_sweeps_are_points_of_their_own(self, values: Opened) -> None:
        sheet = values.book["Batch sweep"]
        for row, batch in ((5, 1), (6, 128)):
            e = rk.estimate("llama-3.1-8b", batch=batch)
            assert sheet.cell(row, 3).value == pytest.approx(e.ttft_ms, rel=1e-9)
            assert e.interval is not None
            times = [e.tpot_ms, *(e.interval["tpot_ms"] or ()), e.bound["tpot_ms"]]
            assert [sheet.cell(row, column).value for column in (7, 8, 9, 10)] == pytest.approx(times, rel=1e-9)
        e = rk.estimate("llama-3.1-8b", batch=32, isl=2048)
        assert values.book["Context sweep"].cell(5, 7).value == pytest.approx(e.tpot_ms, rel=1e-9)

    def test_fleet_and_cost_are_those_of_python(self, values: Opened) -> None:
        exported = plan_coefficients(resolve("llama-3.1-8b", "h100-sxm", read_deployment({}), None).predictor)
        plan = PLANNED
        rate = plan.users * plan.requests_per_hour / 3600.0
        replica = service(exported, plan.batch, plan.isl, plan.osl)
        found = fleet(replica, rate * plan.peak, plan.headroom, 1)
        spent = cost(Tariff(2.95, watts=700.0, pue=plan.pue), found.gpus, rate, (plan.isl, plan.osl))
        wanted = {
            "replicas": found.replicas, "gpus": found.gpus, "utilisation": found.utilisation, "knee": replica.knee,
            "load_ttft_ms": found.ttft * 1e3, "load_tpot_ms": found.tpot * 1e3, "usd_h": spent.per_hour,
            "usd_year": spent.per_year, "usd_million_output": spent.per_million_output,
            "usd_million": spent.per_million, "kilowatts": spent.kilowatts,
        }  # fmt: skip
        for name, value in wanted.items():
            assert values.value(f"out_{name}") == pytest.approx(value, rel=1e-9), name


def recalculated(path: Path, chosen: list[dict[str, Any]], folder: Path) -> list[Opened]:
    """Type inputs into copies of a workbook, and let LibreOffice work out all cells."""
    opened = Opened(path, values=False)  # openpyxl writes no cached values
    files = []
    for number, inputs in enumerate(chosen):
        for name, value in inputs.items():
            opened.cell(f"in_{name}").value = value
        files.append(folder / f"{number}.xlsx")
        opened.book.save(files[-1])
    out = folder / "out"
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    command = [str(SOFFICE), "--headless", profile, "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", str(out)]
    subprocess.run([*command, *map(str, files)], check=True, capture_output=True, timeout=1800)
    return [Opened(out / file.name, values=True) for file in files]


def drawn(number: int, seed: int) -> list[dict[str, Any]]:
    """Random inputs over all that the workbook offers."""
    draw = random.Random(seed)
    fields = {"model": CHOICES.models, "gpu": CHOICES.gpus, "tp": CHOICES.tp, "weights": CHOICES.weights,
              "kv": CHOICES.kv,
              "batch": (1, 2, 7, 32, 100, 256, 2000), "isl": (1, 17, 128, 1000, 4096, 30_000),
              "osl": (1, 2, 3, 64, 256, 777)}  # fmt: skip
    return [{name: draw.choice(options) for name, options in fields.items()} for _ in range(number)]


@pytest.mark.skipif(SOFFICE is None, reason="LibreOffice (soffice) is not installed")
class TestRecalculation:
    def test_libreoffice_agrees(self, path: Path, tmp_path: Path) -> None:
        chosen = drawn(3, 0)
        for inputs, opened in zip(chosen, recalculated(path, chosen, tmp_path), strict=True):
            assert_answers(opened, inputs)

    @pytest.mark.long
    def test_libreoffice_agrees_on_50_input_sets(self, path: Path, tmp_path: Path) -> None:
        chosen = drawn(50, 1)
        fits = [assert_answers(opened, inputs)
                for inputs, opened in zip(chosen, recalculated(path, chosen, tmp_path), strict=True)]  # fmt: skip
        assert 0 < sum(fits) < len(fits)


class TestRefusals:
    def test_unknown_names_and_empty_lists(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match=r"llama-3\.1-8b"):
            write_workbook(tmp_path / "a.xlsx", Choices(models=("lama-3.1-8b",)), Planned())
        with pytest.raises(InputError, match="at least one of gpus"):
            write_workbook(tmp_path / "a.xlsx", Choices(gpus=()), Planned())
        with pytest.raises(InputError, match=r"Headroom must be from 0 to 0.95"):
            write_workbook(tmp_path / "a.xlsx", Choices(("llama-3.1-8b",), ("h100-sxm",), (1,)), Planned(headroom=1.0))
        assert list(tmp_path.iterdir()) == []

    def test_combinations_that_cannot_be_run_say_why(self, tmp_path: Path) -> None:
        choices = Choices(("falcon-7b",), ("a100-sxm-80gb",), (1, 2), batches=(1,), contexts=(64,))
        built = write_workbook(tmp_path / "a.xlsx", choices, Planned())
        reasons = dict(built.refused)
        assert built.offered + len(reasons) == 8
        assert "71 attention heads" in reasons["falcon-7b|a100-sxm-80gb|2|own|own"]
        assert "fp8" in reasons["falcon-7b|a100-sxm-80gb|1|fp8|own"]

    def test_an_unknown_price_is_no_price_of_zero(self, tmp_path: Path) -> None:
        choices = Choices(("llama-3.1-8b",), ("l40s",), (1,), ("own",), ("own",), batches=(1,), contexts=(64,))
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
        assert (bad.exit_code, "tp must be whole numbers" in bad.stderr) == (2, True)


class TestFormulas:
    def test_text_and_value_go_together(self) -> None:
        cell = Formula("A1", 8.0)
        found = when(cell > 4.0, maximum(log2(cell), 1.0) * 2.0, 0.0)
        assert found.text == "IF((A1>4),(MAX(LOG(A1,2),1)*2),0)"
        assert found.value == 6.0

    def test_what_is_not_chosen_may_be_undefined(self) -> None:
        empty = Formula("A1", "")
        assert when(empty.equals(""), 1.0, 1.0 / empty).value == 1.0

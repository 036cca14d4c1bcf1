"""Pictures hold the numbers of results, go only where they are told to, and are the same each time."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from typer.testing import CliRunner

import rooflinekit as rk
from docs.generate.why_decode import pictures
from rooflinekit.cli.app import app
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.look import HATCHES, PALETTES, SERIES, STEP, quantity_of
from rooflinekit.report.plots import PICTURES
from rooflinekit.report.plots.front import drawable
from rooflinekit.report.plots.roofline import Roofs
from rooflinekit.report.plots.steps import bytes_by_class
from rooflinekit.report.plots.sweeps import kinds_of, left_out
from rooflinekit.specs import load_accelerator

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[1]
STATIC = [kind for kind in PICTURES["Estimate"] if kind not in ("request", "lanes", "over-load")]


def test_without_matplotlib_a_picture_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflinekit.report.plots.front.find_spec", lambda name: None)
    words = ["estimate", "llama3-8b", "--plots", str(tmp_path / "pictures")]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "pip install 'rooflinekit[plots]'" in result.stderr) == (2, True), result.stderr


@pytest.fixture(scope="module")
def estimate():
    return rk.estimate("llama3-8b", "h100-sxm", batch=32, isl=2048)


@pytest.fixture(scope="module")
def split():
    return rk.estimate("llama-3.3-70b", "h100-sxm", tp=8, batch=64, isl=4096, kv="fp8")


@pytest.fixture(scope="module")
def table():
    return rk.sweep("llama3-8b", gpu="h100-sxm", batch=[1, 8, 64, 512], isl=2048, tp=[1, 2], allow_oom=True)


@pytest.fixture(scope="module")
def loaded():
    """Through the knee of each."""
    asked = {"gpu": ["h100-sxm", "h200-sxm"], "rate": [1, 10, 20, 80], "isl": 1024, "osl": 256, "tpot": 6}
    return rk.sweep("llama-3-8b", **asked)


@pytest.fixture(scope="module")
def outcome():
    return rk.simulate("llama3-8b", rate=20.0, requests=200, isl=512, osl=64, replicas=2)


@pytest.fixture(scope="module")
def levers():
    return rk.levers("llama3-8b", batch=32, isl=2048, gpus=["h200-sxm"])


@pytest.fixture(scope="module")
def several():
    return [rk.estimate("llama3-8b", batch=b, context=c, calibration="none") for b in (1, 32) for c in (128, 2048)]


def artist(picture, gid):
    """The artist of this name, which must be one."""
    found = [each for each in picture.figure.findobj() if each.get_gid() == gid]
    assert len(found) == 1, (gid, found)
    return found[0]


class TestNumbers:
    def test_points_of_the_roofline_are_the_kernels(self, estimate):
        picture = rk.plot(estimate, "roofline")
        for name in ("gate_up_proj", "attention", "lm_head"):
            kernel = next(k for k in estimate.decode.kernels if k.name == name)
            ((x, y),) = artist(picture, f"decode-{name}").get_offsets()
            assert x == pytest.approx(kernel.intensity)
            assert y == pytest.approx(kernel.flops / (kernel.time_us / 1e6))

    def test_areas_are_shares_of_the_step(self, estimate):
        picture = rk.plot(estimate, "roofline")
        sizes = {n: artist(picture, f"decode-{n}").get_sizes()[0] - 12 for n in ("gate_up_proj", "down_proj")}
        times = {k.name: k.time_us for k in estimate.decode.kernels}
        assert sizes["gate_up_proj"] / sizes["down_proj"] == pytest.approx(times["gate_up_proj"] / times["down_proj"])

    def test_no_kernel_stands_above_the_roofs(self, split):
        roofs, picture = Roofs.of(split), rk.plot(split, "roofline")
        tops = {name: max(roofs.peaks.values()) for name in ("prefill", "decode")}
        for mark in picture.figure.findobj(lambda each: re.match(r"(prefill|decode)-\w+$", str(each.get_gid()))):
            if hasattr(mark, "get_offsets"):
                ((_, y),) = mark.get_offsets()
                assert y <= tops[mark.get_gid().split("-")[0]] * (1 + 1e-9)

    def test_energy_of_a_flop_stands_above_the_arch_line(self, estimate):
        """Choi et al. (2013): by the byte on the left, by the FLOP on the right, never below the line of its format."""
        picture, gpu = rk.plot(estimate, "energy"), load_accelerator("h100-sxm").value
        line = artist(picture, "arch bf16")
        left, right = (each[1] for each in (line.get_xydata()[0], line.get_xydata()[-1]))
        law, time = gpu.power, 10.0 / gpu.memory_bandwidth  # of ten bytes
        assert left == pytest.approx(
            min(10.0 * law.memory + law.active * time + law.flop[Dtype.BF16], law.held * law.limit * time)
        )
        assert right <= gpu.power.limit / gpu.peak(Dtype.BF16)
        for kernel in estimate.decode.kernels:
            if kernel.name in ("gate_up_proj", "lm_head"):
                ((x, y),) = artist(picture, f"decode-{kernel.name}").get_offsets()
                assert (x, y) == pytest.approx((kernel.intensity, kernel.energy_uj / 1e6 / kernel.flops))
                assert y >= np.interp(x, *line.get_xydata().T)

    def test_a_board_of_unknown_power_has_no_energy_roofline(self, estimate):
        unknown = replace(estimate, energy=None)
        assert "energy" not in drawable(unknown)
        with pytest.raises(InputError, match="no rated power"):
            rk.plot(unknown, "energy")

    def test_the_ridge_is_peak_over_bandwidth(self, estimate):
        x, _ = artist(rk.plot(estimate, "roofline"), "ridge").get_data()
        assert x[0] == pytest.approx(989.4e12 / 3.35e12)

    def test_roofs_follow_a_power_cap(self):
        capped = rk.estimate("llama3-8b", calibration="none", power_cap=350)
        assert Roofs.of(capped).peaks["bf16"] == pytest.approx(989.4e12 * 0.5 ** (1 / 3))

    def test_the_network_has_its_roof_where_something_is_sent(self, estimate, split):
        picture = rk.plot(split, "roofline")
        sent = sum(kernel.network_bytes for kernel in split.decode.kernels)
        (x,), _ = artist(picture, "decode-sent").get_data()
        assert x == pytest.approx(split.decode.flops / sent)
        xs, ys = artist(picture, "slope per byte sent: links").get_data()
        assert ys[0] / xs[0] == pytest.approx(450e9)
        assert not rk.plot(estimate, "roofline").figure.findobj(lambda each: "sent" in str(each.get_gid()))

    def test_bars_of_a_kernel_add_up_to_its_time(self, estimate):
        picture = rk.plot(estimate, "time")
        kernel = max(estimate.decode.kernels, key=lambda k: k.time_us)
        ends = picture.figure.axes[4].patches
        solid = next(bar for bar in ends if bar.get_gid() == f"bound-{kernel.name}")
        pale = next(bar for bar in ends if bar.get_gid() == f"above-{kernel.name}")
        assert solid.get_width() == pytest.approx(kernel.bound_us / 1e3)
        assert solid.get_width() + pale.get_width() == pytest.approx(kernel.time_us / 1e3)

    def test_strips_are_the_parts_of_a_step(self, estimate):
        strip, step = rk.plot(estimate, "time").figure.axes[3], estimate.decode
        parts = {STEP[part].tint: time / step.time_ms for part, time in step.time_parts_ms.items()}
        assert {bar.get_gid(): bar.get_width() for bar in strip.patches} == pytest.approx(parts)

    def test_the_hatch_is_the_limit_and_the_hue_the_quantity(self, estimate):
        bars = {bar.get_gid(): bar for bar in rk.plot(estimate, "time").figure.axes[4].patches}
        for kernel in sorted(estimate.decode.kernels, key=lambda k: -k.time_us)[:5]:
            assert (bars[f"limit-{kernel.name}"].get_hatch() or "") == HATCHES[kernel.bound]
            hue = to_hex(bars[f"bound-{kernel.name}"].get_facecolor())
            assert hue == PALETTES["light"][quantity_of(kernel)]

    def test_bytes_are_those_of_the_kernels(self, estimate):
        found = bytes_by_class(estimate.decode)
        assert found["weights"] + found["cache"] + found["activations"] == pytest.approx(estimate.decode.bytes)
        bars = {bar.get_gid(): bar for bar in rk.plot(estimate, "bytes").figure.axes[1].patches}
        assert bars["weights"].get_width() * 1e9 == pytest.approx(found["weights"])
        assert bars["cache"].get_x() * 1e9 == pytest.approx(found["weights"])

    def test_the_memory_bar_ends_where_the_memory_does(self, estimate):
        picture, m = rk.plot(estimate, "memory"), estimate.memory
        free = artist(picture, "free")
        assert (free.get_x() + free.get_width()) * 1e9 == pytest.approx(m.capacity_bytes)
        assert artist(picture, "capacity").get_xdata()[0] * 1e9 == pytest.approx(m.capacity_bytes)

    def test_lines_are_the_rows(self, table):
        picture, rows = rk.plot(table, "batch"), table[table["tp"] == 2]
        tpot, rate = (each for each in picture.figure.findobj() if each.get_gid() == "line tp 2")
        assert list(tpot.get_xdata()) == list(rows["batch"])
        assert list(tpot.get_ydata()) == list(rows["tpot_ms"])
        assert list(rate.get_ydata()) == list(rows["output_tok_s_per_gpu"])
        bound = artist(picture, "bound tp 2")
        assert list(bound.get_ydata()) == list(rows["tpot_bound_ms"])
        band = artist(picture, "interval tp 2").get_paths()[0].vertices[:, 1]
        assert band.max() == pytest.approx(rows["tpot_high_ms"].max())

    def test_rows_that_do_not_fit_are_rings(self, table):
        rows = table[(table["tp"] == 1) & ~table["fits"].astype(bool)]
        assert list(rows["batch"]) == [512]
        rings = [e for e in rk.plot(table, "batch").figure.findobj() if e.get_gid() == "misfit tp 1"]
        assert all(list(ring.get_xdata()) == [512.0] for ring in rings)
        assert len(rings) == 2

    def test_the_front_is_that_of_the_sweep(self, table):
        x, y = artist(rk.plot(table, "pareto"), "front").get_data()
        found = table[table["fits"].astype(bool)]
        for own_x, own_y in zip(x, y, strict=True):
            better = (found["output_tok_s_per_user"] >= own_x) & (found["output_tok_s_per_gpu"] >= own_y)
            assert better.sum() == 1

    def test_lines_that_cannot_be_told_apart_are_left_out_aloud(self):
        table = rk.sweep("llama3-8b", batch=[1, 2], isl=list(range(100, 800, 100)), calibration="none")
        assert kinds_of(table) == ["context", "pareto"]
        assert left_out(table) == [f"no picture batch: 7 lines cannot be told apart, at most {len(SERIES)}"]
        assert left_out(table[table["isl"] == 100]) == []

    def test_percentiles_are_the_outcome(self, outcome):
        picture = rk.plot(outcome, "percentiles")
        assert artist(picture, "TTFT p99").get_xdata()[0] == outcome.ttft_ms.p99
        assert artist(picture, "ITL p50").get_xdata()[0] == outcome.itl_ms.p50

    def test_a_request_to_scale_is_that_of_the_answer(self, outcome, estimate):
        """Bars are as long as the parts, one behind the other, and end where the mean of all requests does."""
        picture = rk.plot(outcome, "request")
        for metric, parts in (("ttft", outcome.ttft_parts_ms), ("tpot", outcome.tpot_parts_ms)):
            bars = {name: artist(picture, name) for name, time in parts.items() if time > 0.01 * sum(parts.values())}
            for name, bar in bars.items():
                assert bar.get_width() == pytest.approx(parts[name])
            ends = max(bar.get_x() + bar.get_width() for bar in bars.values())
            assert ends == pytest.approx(getattr(outcome, f"{metric}_ms").mean, rel=0.02)
        assert artist(picture, "first token").get_width() == outcome.ttft_ms.mean
        marked = [each for each in picture.figure.findobj() if each.get_gid() == "prompts of others"]
        whole = artist(picture, "tokens").get_width()
        assert [bar.get_width() / whole for bar in marked] == pytest.approx([b - a for a, b in outcome.others_spans])
        assert marked
        loaded = rk.estimate("llama3-8b", rate=20.0, requests=200, isl=512, osl=64)
        assert "request" in drawable(loaded) and "request" not in drawable(estimate)
        assert list(artist(rk.plot(loaded, "request"), "bound").get_xdata()) == 2 * [loaded.bound["tpot_ms"]]
        loaded_picture = rk.plot(rk.estimate("llama3-8b", rate=20.0), "request")
        bound, axes = artist(loaded_picture, "bound").get_xdata()[0], artist(loaded_picture, "bound").axes
        loaded_picture.svg()
        for label in axes.texts:
            box = label.get_window_extent().transformed(axes.transData.inverted())
            assert not box.x0 <= bound <= box.x1, label
        with pytest.raises(InputError, match="no request of a load"):
            rk.plot(estimate, "request")

    def test_the_timeline_is_the_outcome(self, outcome):
        line = artist(rk.plot(outcome, "timeline"), "batch 1")
        own = [row for row in outcome.timeline if row["replica"] == 1]
        assert list(line.get_ydata()) == [row["batch"] for row in own]

    def test_elasticities_and_moves_are_the_levers(self, levers):
        slopes = artist(rk.plot(levers, "elasticities"), "slope tpot").get_xdata()
        assert list(slopes) == [entry.tpot for entry in levers.elasticities]
        best = levers.moves[0]
        dot = artist(rk.plot(levers, "moves"), f"move {best.move}")
        assert dot.get_xdata()[0] == best.ratio["cost"]
        for move in levers.moves:
            if move.possible and abs((move.ratio["cost"] or 1.0) - 1.0) > 0.01:
                mark = artist(rk.plot(levers, "moves"), f"move {move.move}")
                assert (mark.get_markerfacecolor() == mark.get_color()) is not levers.weaker(move)
        assert any(map(levers.weaker, levers.moves))

    def test_intensities_are_the_steps(self, several):
        y = artist(rk.plot(several, "intensity"), "line context 2,048").get_ydata()
        assert list(y) == [e.decode.intensity for e in several if e.inputs["context"] == 2048]


class TestLoads:
    def test_times_are_the_rows_that_can_be_sustained(self, loaded):
        picture, rows = rk.plot(loaded, "load"), loaded[loaded["gpu"] == "h200-sxm"]
        holds = rows[rows["stable"]]
        for gid, column in {"ttft mean": "ttft_ms", "tpot mean": "tpot_ms", "tpot P99": "tpot_p99_ms"}.items():
            line = artist(picture, f"{gid} h200-sxm")
            assert list(line.get_xdata()) == list(holds["rate"]) == [1, 10, 20]
            assert list(line.get_ydata()) == list(holds[column])
        rings = artist(picture, "tpot rings h200-sxm")
        assert list(rings.get_ydata()) == list(rows["tpot_ms"][~rows["stable"]])
        assert list(artist(picture, "ttft rings h200-sxm").get_ydata()) == list(rows["ttft_ms"][~rows["stable"]])

    def test_the_knee_stands_where_it_is(self, loaded):
        picture = rk.plot(loaded, "load")
        for gpu, rows in loaded.groupby("gpu"):
            assert artist(picture, f"tpot knee {gpu}").get_xdata()[0] == rows["knee_rate"].iloc[0]
        assert not rk.plot(loaded[loaded["rate"] <= 10].assign(knee_rate=1e3), "load").figure.findobj(
            lambda each: " knee " in str(each.get_gid())
        )

    def test_the_objective_is_a_line(self, loaded):
        assert artist(rk.plot(loaded, "load"), "objective tpot").get_ydata()[0] == 6.0

    def test_users_and_rates_may_stand_in_one_table(self, loaded):
        users = rk.sweep("llama-3-8b", concurrency=[1, 8, 64], isl=1024, osl=256)
        assert kinds_of(users) == ["batch", "load", "pareto"]
        picture = rk.plot(users, "load")
        assert list(artist(picture, "ttft P90 ").get_ydata()) == list(users["ttft_p90_ms"])
        both = rk.plot(pd.concat([loaded, users]), "load")
        assert list(artist(both, "ttft mean h100-sxm").get_xdata()) == [1, 10, 20]

    def test_simulated_rows_have_a_picture_too(self):
        rows = rk.sweep("llama-3-8b", rate=[2, 4], requests=30, isl=64, osl=8, simulate=True)
        assert kinds_of(rows) == ["load"]
        assert list(artist(rk.plot(rows), "ttft mean ").get_ydata()) == list(rows["ttft_mean_ms"])

    def test_where_nothing_can_be_sustained(self, loaded):
        over = loaded[~loaded["stable"]].assign(rate=[80, 90])
        for kind in ("load", "pareto"):
            assert "inf" not in rk.plot(over, kind).svg()
        assert "0 of 2 rows" in rk.plot(over, "pareto").description

    def test_overloaded_rows_stand_on_no_front(self, loaded):
        x, y = artist(rk.plot(loaded, "pareto"), "front").get_data()
        stable = loaded[loaded["goodput"] > 0]
        assert set(zip(x, y, strict=True)) <= set(
            zip(stable["output_tok_s_per_user"], stable["output_tok_s_per_gpu"], strict=True)
        )
        assert len(artist(rk.plot(loaded, "pareto"), "barred").get_xdata()) == (loaded["goodput"] == 0).sum()

    def test_lengths_beyond_the_knee_are_rings(self):
        rows = rk.sweep("llama-3-8b", rate=12, isl=[256, 1024, 8000], osl=128)
        assert rows["stable"].tolist() == [True, True, False]
        picture = rk.plot(rows, "context")
        rings = [each for each in picture.figure.findobj() if each.get_gid() == "misfit "]
        assert [list(ring.get_xdata()) for ring in rings] == [[8000.0]] * 2
        assert "nan" not in picture.description

    def test_a_table_from_a_file_has_the_same_pictures(self, loaded, tmp_path):
        loaded.to_csv(tmp_path / "a.csv", index=False)
        read = pd.read_csv(tmp_path / "a.csv")
        assert kinds_of(read) == kinds_of(loaded) == ["load", "pareto"]
        for kind in kinds_of(read):
            assert rk.plot(read, kind).svg() == rk.plot(loaded, kind).svg()


class TestFiles:
    @pytest.mark.parametrize("kind", ["roofline", "time", "bytes", "memory", "energy"])
    def test_svg_is_titled_described_and_always_the_same(self, estimate, kind):
        text = rk.plot(estimate, kind, "dark").svg()
        root = ET.fromstring(text)
        assert root.get("role") == "img"
        assert root[0].tag == f"{SVG}title"
        assert root[1].tag == f"{SVG}desc"
        assert estimate.model in (root[1].text or "")
        assert rk.plot(estimate, kind, "dark").svg() == text
        assert not re.search(r"\b20\d\d-\d\d-\d\d", text)

    def test_another_process_writes_the_same_bytes(self, tmp_path):
        code = (
            "import rooflinekit as rk; e = rk.estimate('llama3-8b', calibration='none'); "
            "import sys; rk.plot(e, 'memory').save(sys.argv[1]); rk.plot(e, 'memory').save(sys.argv[2])"
        )
        for run in "ab":
            files = [str(tmp_path / f"{run}.{suffix}") for suffix in ("svg", "png")]
            subprocess.run([sys.executable, "-c", code, *files], check=True)
        for suffix in ("svg", "png"):
            assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()

    def test_everything_lies_in_the_folder(self, estimate, table, tmp_path):
        files = rk.write_plots([estimate, table], tmp_path / "new")
        names = {
            f"{name}.{suffix}" for name in (*STATIC, "batch", "pareto", "interactivity") for suffix in ("svg", "png")
        }
        assert {path.name for path in files} == names
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(files)
        assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<?xm") for path in files)

    def test_an_existing_file_is_kept(self, estimate, tmp_path):
        (tmp_path / "memory.png").write_text("mine")
        with pytest.raises(rk.InputError, match=r"memory\.png exists; add --force"):
            rk.write_plots(estimate, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["memory.png"]
        rk.write_plots(estimate, tmp_path, force=True)
        assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")

    def test_folders_that_cannot_be(self, estimate, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(rk.InputError, match="is a file"):
            rk.write_plots(estimate, tmp_path / "file")
        with pytest.raises(rk.InputError, match="is not a folder; make it first"):
            rk.write_plots(estimate, tmp_path / "no" / "such")

    def test_two_results_of_one_kind(self, estimate, tmp_path):
        with pytest.raises(rk.InputError, match="two folders"):
            rk.write_plots([estimate, estimate], tmp_path)

    def test_save(self, estimate, tmp_path):
        picture = rk.plot(estimate, "memory")
        with pytest.raises(rk.InputError, match=r"\.svg or \.png"):
            picture.save(tmp_path / "a.pdf")
        picture.save(tmp_path / "a.svg")
        with pytest.raises(rk.InputError, match="exists"):
            picture.save(tmp_path / "a.svg")

    def test_a_users_settings_change_nothing(self, estimate):
        import matplotlib as mpl

        text = rk.plot(estimate, "memory").svg()
        with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "red", "text.parse_math": True}):
            assert rk.plot(estimate, "memory").svg() == text
            assert mpl.rcParams["font.size"] == 30.0

    def test_pyplot_is_not_loaded(self):
        code = "import sys, rooflinekit as rk; rk.plot(rk.estimate('llama3-8b')).svg(); "
        code += "assert 'matplotlib.pyplot' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


class TestRefusals:
    def test_unknown_names(self, estimate):
        with pytest.raises(rk.UnknownNameError, match="unknown picture 'rooflin'; nearest: roofline"):
            rk.plot(estimate, "rooflin")
        with pytest.raises(rk.UnknownNameError, match="unknown theme 'blue'"):
            rk.plot(estimate, "memory", "blue")

    @pytest.mark.parametrize("what", [None, 3, "llama3-8b", [], [1, 2], {}])
    def test_what_is_no_result(self, what):
        with pytest.raises(rk.InputError, match="cannot draw"):
            rk.plot(what)

    def test_tables_without_anything_to_draw(self):
        one = rk.estimate_frame(pd.DataFrame({"model": ["llama3-8b"], "batch": [1]}))
        wrong = rk.estimate_frame(pd.DataFrame({"model": ["llama3-8b", "llama3-8b"], "tp": [3, 5]}))
        for rows in (one, wrong, pd.DataFrame(), pd.DataFrame({"a": [1]})):
            with pytest.raises(rk.InputError, match="nothing to draw"):
                rk.plot(rows)
            with pytest.raises(rk.InputError, match="nothing to draw"):
                rk.plot(rows, "context")

    def test_more_lines_than_can_be_told_apart(self):
        rows = rk.sweep("llama3-8b", batch=[1, 2], isl=[64, 128, 256, 512, 1024, 2048, 3000, 4096])
        with pytest.raises(rk.InputError, match="8 lines cannot be told apart"):
            rk.plot(rows, "batch")
        assert rk.plot(rows).name == "context"

    def test_estimates_of_two_models(self, estimate, split):
        with pytest.raises(rk.InputError, match="one model"):
            rk.plot([estimate, split], "intensity")


class TestExtremes:
    @pytest.mark.parametrize(
        "scenario",
        [
            {"isl": 1, "osl": 2, "calibration": "none"},
            {"batch": 4096, "isl": 8000, "allow_oom": True},
            pytest.param({"gpu": "l4", "weights": "int4"}, marks=pytest.mark.long),
            pytest.param({"gpu": "b200-sxm", "weights": "nvfp4"}, marks=pytest.mark.long),
            {"rate": 1000.0},
            {"draft": "ngram", "draft_tokens": 2, "acceptance": 0.5},
            pytest.param({"gpu": "h100-sxm", "power_cap": 400}, marks=pytest.mark.long),
        ],
    )
    def test_every_picture_of_an_estimate_is_drawn(self, scenario):
        e = rk.estimate("llama3-8b", **scenario)
        assert all(len(rk.plot(e, kind).svg()) > 1000 for kind in STATIC)

    def test_a_name_is_not_markup(self, tmp_path):
        wicked = tmp_path / "<img src=x onerror=alert(1)>$\\frac{a}{b}$.json"
        wicked.write_text(CONFIG, encoding="utf-8")
        e = rk.estimate(str(wicked), batch=2, isl=16)
        for kind in STATIC:
            root = ET.fromstring(rk.plot(e, kind).svg())
            assert not [each for each in root.iter() if each.tag.endswith(("}img", "}script"))]
        assert "<img" not in e._repr_html_()

    def test_an_outcome_of_nothing(self):
        nothing = rk.simulate("llama3-8b", rate=1.0, requests=1, isl=8, osl=1)
        assert all(len(rk.plot(nothing, kind).svg()) > 1000 for kind in drawable(nothing))


CONFIG = """{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
"torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}"""


class TestCommands:
    @pytest.mark.parametrize(
        ("words", "names"),
        [
            (["estimate", "llama3-8b"], STATIC),
            (["estimate", "llama3-8b", "--rate", "5", "--requests", "20"], PICTURES["Estimate"]),
            (["sweep", "llama3-8b", "--batch", "1,8"], ("batch", "pareto")),
            (["simulate", "llama3-8b", "--rate", "5", "--requests", "20", "--osl", "8"], PICTURES["Outcome"]),
            (["levers", "llama3-8b", "--gpus", "h200-sxm"], PICTURES["Levers"]),
        ],
    )
    def test_plots(self, words, names, tmp_path):
        folder = tmp_path / "pictures"
        result = CliRunner().invoke(app, [*words, "--plots", str(folder)])
        assert result.exit_code == 0, result.output
        assert {path.name for path in folder.iterdir()} == {f"{n}.{s}" for n in names for s in ("svg", "png")}
        again = CliRunner().invoke(app, [*words, "--plots", str(folder)])
        assert again.exit_code == 2
        assert "add --force to overwrite" in again.output


def test_the_pictures_of_the_docs_are_those_of_the_present_numbers():
    for picture in pictures():
        root = ET.parse(ROOT / "docs" / "images" / f"decode-{picture.name}.svg").getroot()
        assert root[1].text == picture.description, f"decode-{picture.name}.svg is old: run `make docs`"
        assert f"images/decode-{picture.name}.svg" in (ROOT / "docs" / "why-decode.md").read_text(encoding="utf-8")


def test_numbers_of_the_page_on_decode():
    """What docs/why-decode.md works out on paper."""
    W, P, kappa, weights = 3.35e12, 989.4e12, 131072, 15.01e9 / 2
    step = rk.estimate("llama3-8b", isl=2048, calibration="none").decode
    assert step.bytes / W == pytest.approx(4.56e-3, rel=0.005)
    assert step.flops / P == pytest.approx(0.0164e-3, rel=0.01)
    assert step.bytes / W / (step.flops / P) == pytest.approx(280, rel=0.01)
    one, two = (rk.estimate("llama3-8b", batch=b, context=2048, calibration="none").tpot_ms for b in (32, 33))
    assert two - one == pytest.approx(kappa * 2048 / W * 1e3, rel=1e-3)
    assert (two - one) / one == pytest.approx(0.011, abs=5e-4)
    short, long = (rk.estimate("llama3-8b", batch=32, isl=n, calibration="none").tpot_ms for n in (1024, 2048))
    assert long - short == pytest.approx(32 * 1024 * kappa / W * 1e3, rel=1e-3)
    levels = [rk.estimate("llama3-8b", batch=10**6, isl=1, context=c, calibration="none", allow_oom=True)
              for c in (370, 410)]  # fmt: skip
    attention = [np.array([(k.flops, k.kv_read_bytes) for k in e.decode.kernels]).sum(axis=0) for e in levels]
    assert attention[0][0] / attention[0][1] > P / W > attention[1][0] / attention[1][1]
    assert 2 * weights / P == pytest.approx(15e-6, rel=0.02)
    assert rk.estimate("llama3-8b", isl=2048, osl=256).memory.max_batch == 194

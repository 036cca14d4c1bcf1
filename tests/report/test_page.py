"""Pages as files: complete, self-contained, small, never markup from names, and readable in both themes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from html_pages import Tags

import rooflinekit as rk
from rooflinekit.report.look import PALETTES
from rooflinekit.report.page.front import read_against
from rooflinekit.report.page.offers import APART
from rooflinekit.report.page.render import LIMIT_BYTES

from .making import FEW, data_of, functions_of, in_node, page_of, table, view_of

PAGE = Path(rk.__file__).parent / "report" / "page"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&{{data}}\u2028"


class TestContent:
    @pytest.mark.parametrize("model", [pytest.param("kimi-k3", marks=pytest.mark.long), "deepseek-v4-flash"])
    def test_a_model_of_many_kinds_of_layers_fits_with_its_walk(self, tmp_path: Path, model: str) -> None:
        made = rk.write_report(tmp_path / "page.html", model, "b300-sxm", tp=8)
        assert made.bytes <= LIMIT_BYTES
        assert data_of(made.path.read_text(encoding="utf-8"))["walk"] is not None

    def test_a_deployment_is_complete(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, "llama-3-8b", batch=16, isl=1000)
        answer = rk.estimate("llama-3-8b", batch=16, isl=1000)
        data, offers = data_of(page), data_of(page)["offers"]
        for name in ("roofline", "waterfall", "time", "bytes", "memory", "batch", "rate", "context", "reads", "pareto"):
            assert page.count(f'id="{name}"') == 1, name
        assert data["asked"] == {"model": "llama-3-8b", "gpu": "h100-sxm", "tp": 1, "weights": "own", "kv": "own",
                                 "engine": "vllm", "batch": 16, "isl": 1000, "osl": 256, "cached": 0,
                                 "speed": 1}  # fmt: skip
        assert APART.join(("llama-3-8b", "h100-sxm", "1", "own", "own", "vllm")) in offers["plans"]
        assert {label.split(APART)[1] for label in offers["plans"]} == {"h100-sxm", "h200-sxm", "b200-sxm"}
        assert f"{answer.tpot_ms:.2f} ms" in page
        assert answer.calibration is not None
        assert answer.calibration["hash"] in page
        assert all(kernel.name in page for kernel in answer.decode.kernels)
        assert "Accuracy of the calibration" in page
        assert page.count("<tr>") > len(answer.provenance)

    def test_a_comparison_names_both(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, "llama-3-8b", against="gpu=h200-sxm,batch=4", **FEW)
        other = data_of(page)["reference"]
        assert (other["at"]["gpu"], other["at"]["batch"]) == ("h200-sxm", 4)
        expected = rk.estimate("llama-3-8b", "h200-sxm", batch=4)
        view = in_node(functions_of(page), data_of(page), views=[(other["plan"], other["at"])])["views"][0]
        assert view["tpot"]["time"] == pytest.approx(expected.tpot_ms / 1e3)
        assert "against llama-3-8b on h200-sxm" in page

    def test_what_does_not_fit_says_so_first(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, "llama-3-70b", **FEW)
        assert "It does not fit in memory" in page
        assert view_of(page)["memory"]["fits"] is False

    def test_a_simulation_is_in_it(self, tmp_path: Path) -> None:
        outcome = rk.simulate("llama-3-8b", rate=8.0, requests=80, isl="256", osl="32")
        page = page_of(tmp_path, "llama-3-8b", rate=8.0, isl=256, osl=32, simulation=outcome, **FEW)
        assert page.index('id="sentence"') < page.index('id="sim-spread"')  # the answer first
        data = data_of(page)
        titles = {title: spread for title, spread, _ in data["simulation"]["spreads"]}
        assert titles["first token (TTFT)"]["p99"] == outcome.ttft_ms.p99
        line = data["simulation"]["line"]
        assert len(line["time"]) == len(line["kv"]) <= 401
        assert line["time"] == sorted(line["time"])
        assert max(line["kv"]) <= 1.0

    def test_rows_of_a_sweep_are_all_in_it(self, tmp_path: Path) -> None:
        rows = table()
        data = data_of(page_of(tmp_path, sweep=rows))["table"]
        assert data["rows"] == len(rows) == 6
        assert data["columns"]["tpot_ms"]["values"] == pytest.approx(rows["tpot_ms"].tolist(), rel=1e-5)
        written = tmp_path / "rows.csv"
        rows.to_csv(written, index=False)
        assert data_of(page_of(tmp_path, sweep=written))["table"]["columns"]["tpot_ms"] == data["columns"]["tpot_ms"]

    def test_too_many_rows_are_thinned_and_the_front_stays(self, tmp_path: Path) -> None:
        count = 120_000
        users, gpus = range(1, count + 1), [float((place * 7919) % 10_007) for place in range(count)]
        rows = pd.DataFrame({"gpu": "x", "output_tok_s_per_user": users, "output_tok_s_per_gpu": gpus}).astype(
            {"output_tok_s_per_user": float}
        )
        rows.loc[777, ["output_tok_s_per_user", "output_tok_s_per_gpu"]] = [5e6, 5e6]
        report = rk.write_report(tmp_path / "page.html", sweep=rows)
        data = data_of(report.path.read_text(encoding="utf-8"))["table"]
        assert data["total"] == count > data["rows"]
        assert 5e6 in data["columns"]["output_tok_s_per_gpu"]["values"]
        assert report.bytes <= LIMIT_BYTES


class TestSelfContained:
    @pytest.mark.parametrize("kind", ["model", "sweep"])
    def test_nothing_is_fetched(self, tmp_path: Path, kind: str) -> None:
        page = page_of(tmp_path, "llama-3-8b") if kind == "model" else page_of(tmp_path, sweep=table())
        for tag, attributes in Tags(page).elements:
            assert not attributes.get("src"), tag
            assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
            assert not any(name.startswith("on") for name in attributes), tag
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
        assert policy is not None
        assert policy[1].startswith("default-src 'none';")
        assert "script-src 'sha256-" in policy[1]
        assert "unsafe-inline" not in policy[1].split("script-src")[1]
        assert (tmp_path / "page.html").stat().st_size <= LIMIT_BYTES

    def test_the_same_twice(self, tmp_path: Path) -> None:
        assert page_of(tmp_path, "llama-3-8b", **FEW) == page_of(tmp_path, "llama-3-8b", **FEW)

    def test_the_library_is_the_one_that_is_named(self) -> None:
        told = (PAGE / "vendor" / "README.md").read_text(encoding="utf-8")
        assert hashlib.sha256((PAGE / "vendor" / "echarts.min.js").read_bytes()).hexdigest() in told
        assert "Apache License" in (PAGE / "vendor" / "LICENSE.txt").read_text(encoding="utf-8")


class TestMarkup:
    def test_a_folders_name_cannot_become_markup(self, tmp_path: Path) -> None:
        folder = tmp_path / "<img src=x onerror=alert(1)>&{{data}}"
        plain = tmp_path / "plain"
        for path in (folder, plain):
            path.mkdir()
            (path / "config.json").write_text(json.dumps({
                "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
                "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048,
                "vocab_size": 32000,
                "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "hidden_act": "silu",
                "tie_word_embeddings": False}), encoding="utf-8")  # fmt: skip
        pages = [page_of(tmp_path, path, **(FEW | {"walk": True})) for path in (folder, plain)]
        assert Tags(pages[0]).names == Tags(pages[1]).names
        assert "<img" not in pages[0]

    def test_a_plans_texts_cannot_become_markup(self, tmp_path: Path, made_plan: dict[str, Any]) -> None:
        bad = json.loads(json.dumps(made_plan))
        bad |= {"answer": HOSTILE, "warnings": [HOSTILE], "model": HOSTILE, "slo": [HOSTILE], "version": HOSTILE}
        bad["refused"] = [{"what": HOSTILE, "why": HOSTILE}]
        bad["candidates"][0] |= {"lost": HOSTILE}
        for row in bad["candidates"]:
            row["scenario"]["gpu"] = HOSTILE
        bad["candidates"][0]["scenario"]["model"] = HOSTILE
        page = page_of(tmp_path, plan=bad)
        assert "<img" not in page
        assert (
            page.count("<script")
            == page_of(tmp_path, plan=made_plan).count("<script")
            == Tags(page).names.count("script")
        )
        assert data_of(page)["plan"]["candidates"][0]["verdict"] == HOSTILE

    def test_cells_and_file_names_cannot_become_markup(self, tmp_path: Path) -> None:
        rows = table().assign(gpu=HOSTILE)
        path = tmp_path / "<img src=x>.csv"
        rows.to_csv(path, index=False)
        page = page_of(tmp_path, sweep=path)
        assert "<img" not in page
        assert data_of(page)["table"]["columns"]["gpu"]["words"] == [HOSTILE]

    def test_scripts_write_text_and_never_markup(self) -> None:
        for name in (path.name for path in PAGE.glob("*.js")):
            source = (PAGE / name).read_text(encoding="utf-8")
            forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function"
            assert not re.search(forbidden, source), name
            assert len(source.splitlines()) <= 400


def test_against_is_read_as_it_is_meant() -> None:
    found = read_against("kv-policy=window:512,eager=true,skew=0.5")
    assert found == {"kv_policy": "window:512", "eager": True, "skew": 0.5}
    assert read_against({"tp": 2}) == {"tp": 2}
    with pytest.raises(rk.InputError, match="needs an accelerator"):
        read_against(" , ")


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, two: str) -> float:
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_passes_aa(theme: str) -> None:
    """WCAG 2.1: 4.5 for text, 3 for what a chart is made of; labels in bars take the better of two colours."""
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root(?::not\(\.paper\))? \{([^}]*--page[^}]*)\}", style)
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", blocks[theme == "dark"])) | PALETTES[theme]
    for ground in ("page", "card"):
        for text in ("ink", "soft", "bad", "focus", "weights", "cache", "prefill", "decode"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["ink"], colours["on"]) >= 4.5
    for fill in ("weights", "cache", "activations", "engine", "compute", "network", "overhead"):
        assert contrast(colours[fill], colours["card"]) >= 3.0, fill
        assert max(contrast(colours[fill], colours[text]) for text in ("card", "ink")) >= 4.5, fill

"""The page and the command: nothing leaves the page, nothing gets into it, nothing is overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from html_pages import Tags, json_in, unpacked
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.explanation.walk.result import Walk
from rooflinekit.report.walk import walk_page


def data_of(page: str) -> Any:
    return json_in(page, "walk")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["shapes", *arguments])


class TestPage:
    def test_it_has_every_step_in_text_and_in_tables(self) -> None:
        walk = rk.shapes("mixtral-8x7b", tokens=6)
        page = walk_page(walk)
        stops = [stop for phase in walk.phases for section in phase.sections for stop in section.stops]
        assert [slide["name"] for slide in data_of(page)["stops"]] == [stop.name for stop in stops]
        assert page.count("<td>[") == 2 * sum(len(stop.outputs) for stop in stops)

    def test_shares_add_up_to_the_whole_step(self) -> None:
        for name in ("flops", "bytes"):
            slides = data_of(walk_page(rk.shapes("gemma-3-1b", tokens=9)))["stops"]
            for phase in ("prefill", "decode"):
                widths = [float(slide[name]["width"].rstrip("%")) for slide in slides if slide["phase"] == phase]
                assert sum(widths) == pytest.approx(100.0, abs=0.2)

    def test_nothing_is_fetched(self) -> None:
        page = walk_page(rk.shapes("llama-3-8b"))
        assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
        for tag, attributes in Tags(page).elements:
            assert not attributes.get("src"), tag
            assert attributes.get("href", "data:,") == "data:,", tag
        assert "script-src 'sha256-" in page  # and no other script may run
        assert len(page) < 300_000

    def test_words_cannot_become_markup(self) -> None:
        prompt = "</script><script>alert(1)</script> <img/src=x> & \u2028 {{data}}"
        page = walk_page(rk.shapes("gpt2", prompt=prompt))
        plain = walk_page(rk.shapes("gpt2", prompt="a " * 40))
        assert Tags(page).names == Tags(plain).names
        assert "<img" not in page
        short = data_of(walk_page(rk.shapes("gpt2", prompt="<b> & \u2028 x")))
        assert short["names"] == ["<", "b", ">", "&", "x"]

    def test_the_mask_is_drawn_where_it_is_true(self) -> None:
        """A triangle for full attention; a window that is shorter than the prompt is not one."""
        drawn = {slide["name"] for slide in data_of(walk_page(rk.shapes("gpt2", tokens=5)))["stops"] if slide["mask"]}
        assert drawn == {"causal mask", "softmax"}
        assert data_of(walk_page(rk.shapes("gpt2", tokens="2,1")))["mask"] == ["100", "110", "001"]
        assert not any(slide["mask"] for slide in data_of(walk_page(rk.shapes("gpt2", tokens=500)))["stops"])

    def test_a_report_walks_through_its_own_deployment(self, tmp_path: Path) -> None:
        """Its walk has the experts of a rank, not those of a model that is not split."""
        few: dict[str, Any] = {"models": (), "gpus": ()}
        made = rk.write_report(tmp_path / "a.html", "mixtral-8x7b", tp=2, ep=2, pp=2, **few)
        page = unpacked(made.path.read_text(encoding="utf-8"))
        assert "1 of 2 ranks through 2 stages (tp 2, pp 2, ep 2)" in page
        assert "[4, 28672, 4096]" in page  # W of gate and up, 4 of 8 experts

    def test_a_name_from_a_file_is_escaped(self) -> None:
        walk = rk.shapes("gpt2", tokens=2)
        page = walk_page(Walk(**{**{name: getattr(walk, name) for name in Walk.__slots__}, "model": "<b>x</b>&"}))
        assert "<b>x" not in page
        assert "<title>&lt;b&gt;x&lt;/b&gt;&amp;:" in page


class TestCommand:
    def test_every_format_says_the_same(self) -> None:
        text, told, rows, table = (
            run("gpt2", "--tokens", "6", "--format", kind).output for kind in ("table", "json", "csv", "md")
        )
        total = json.loads(told)["phases"][0]["total"]["flops"]
        assert total == rk.shapes("gpt2", tokens=6).phases[0].work.flops
        assert rows.splitlines()[0].startswith("phase,section,count,step,kernel,tensor,symbols,shape,dtype,flops")
        assert "[6, 12, 64]" in text
        assert "| [S, H, d] | [6, 12, 64] |" in table

    def test_a_page_is_written_once(self, tmp_path: Path) -> None:
        out = tmp_path / "walk.html"
        assert run("gpt2", "--out", str(out)).exit_code == 0
        first = out.read_text(encoding="utf-8")
        assert first.startswith("<!doctype html>")
        again = run("gpt2", "--tokens", "3", "--out", str(out))
        assert again.exit_code == 2
        assert "add --force" in again.output
        assert out.read_text(encoding="utf-8") == first
        assert run("gpt2", "--tokens", "3", "--out", str(out), "--force").exit_code == 0
        assert [path.name for path in tmp_path.iterdir()] == ["walk.html"]

    @pytest.mark.parametrize(("arguments", "what"), [
        (("llama-3-8x",), "nearest: llama-3-8b"), (("gpt2", "--tokens", "0"), "at least 1"),
        (("gpt2", "--tokens", "six"), "whole numbers such as 6 or 6,3,9"),
        (("gpt2", "--prompt", ""), "at least one word"),
        (("gpt2", "--tokens", "6", "--prompt", "a b"), "give one of them"), (("gpt2", "--tp", "5"), "does not divide"),
        (("gpt2", "--batch", "x"), "whole number"), (("gpt2", "--out", "/nowhere/walk.html"), "not a folder"),
        (("gpt2", "--out", "walk.html", "--format", "json"), "page"),
    ])  # fmt: skip
    def test_bad_input_is_one_line_and_exit_code_2(self, arguments: tuple[str, ...], what: str) -> None:
        result = run(*arguments)
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert what in result.output

"""Results show themselves in notebooks: well-formed HTML with the numbers, and nothing a name can inject."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest

import rooflinekit as rk
from rooflinekit.report.document import (
    CellTable,
    Facts,
    FixedLines,
    Items,
    Section,
    Words,
    html_text,
    markdown_text,
    plain_text,
)
from rooflinekit.report.request import Waterfall

RESULTS = {
    "estimate": lambda: rk.estimate("llama3-8b", batch=32),
    "bound": lambda: rk.estimate("llama3-8b", calibration="none"),
    "load": lambda: rk.estimate("llama3-8b", rate=5.0),
    "simulate": lambda: rk.simulate("llama3-8b", rate=5.0, requests=20, osl=16),
    "levers": lambda: rk.levers("llama3-8b", gpus=["h200-sxm"]),
    "cost": lambda: rk.cost("llama3-8b"),
    "shapes": lambda: rk.shapes("llama3-8b", tokens=6),
    "explain": lambda: rk.explain("llama3-8b", "tpot"),
    "launch": lambda: rk.launch("llama3-8b"),
    "plan": lambda: rk.plan("llama3-8b", gpus=["h100-sxm"], rate=20, slo="tpot<30ms,ttft<1s"),
    "parameters": lambda: rk.parameters("mixtral-8x7b"),
}
ALLOWED = {
    "div",
    "h4",
    "p",
    "br",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "b",
    "code",
    "pre",
    "ul",
    "li",
    "svg",
    "rect",
    "text",
    "style",
}
WRITTEN = {"class", "style", "open", "scope"}
DRAWN = {
    "viewbox",
    "width",
    "height",
    "x",
    "y",
    "fill",
    "font-size",
    "font-family",
    "text-anchor",
    "role",
    "aria-label",
}
LEFT_OPEN = {"br"}  # which has no end tag


class Reader(HTMLParser):
    """Tags that are open, tags seen, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert {name for name, _ in attrs} <= (DRAWN if tag in ("svg", "rect", "text") else WRITTEN)
        if tag not in LEFT_OPEN:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in LEFT_OPEN:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert reader.seen <= ALLOWED
    return reader


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_well_formed(name):
    result = RESULTS[name]()
    text = read(result._repr_html_()).text
    assert "|" not in text.replace("||", "") or name in ("shapes", "launch")
    assert "**" not in text


def test_an_estimate_has_its_answer_interval_memory_and_kernels():
    e = rk.estimate("llama3-8b", batch=32)
    text = read(e._repr_html_()).text
    low, high = e.interval["tpot_ms"]
    for words in (e.model, e.gpu, f"{e.tpot_ms:.2f} ms", f"{low:.3g}", f"{high:.3g}", "KV pool", "gate_up_proj"):
        assert words in text


def test_sections_of_an_estimate_are_folded_and_of_levers_open():
    assert "<details>" in RESULTS["estimate"]()._repr_html_()
    assert "<details open>" in RESULTS["levers"]()._repr_html_()


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "a|b**c**`d`</pre><script>", "&lt;b&gt;"])
def test_a_name_cannot_inject(name, tmp_path):
    folder = tmp_path / name.replace("/", "_")
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG, encoding="utf-8")
    for result in (rk.estimate(folder, isl=16), rk.levers(folder, isl=16, gpus=["l4"]), rk.shapes(folder, tokens=3)):
        reader = read(result._repr_html_())
        assert not {"img", "script"} & reader.seen


@pytest.mark.parametrize("evil", ["<script>x</script>", "## <b>", "| <i> |", "- <u>", "```\n<s>\n```", "`<q>`"])
def test_every_block_is_escaped(evil):
    blocks = [Words(evil), Items(evil), Facts((evil, evil)), CellTable([evil], [[evil]]), FixedLines([evil]),
              Waterfall(evil, [(evil, 0.5, evil)])]  # fmt: skip
    assert not {"script", "i", "u", "s", "q"} & read(html_text([Section(evil, blocks), Section(evil, [])], True)).seen


def test_a_document_is_the_same_in_three_places():
    table = CellTable(["a", "b"], [["x|y", "1"]])
    document = [Section("t", [Words("words")]), Section("", [table]),
                Section("more", [Items("one", "  `two`", "three"), FixedLines(["# no heading"], "sh")])]  # fmt: skip
    assert plain_text(document) == "t\nwords\n\na    b\nx|y  1\n\nmore\none\n  `two`\nthree\n# no heading"
    text = markdown_text(document)
    assert text.startswith(
        "## t\n\nwords\n\n| a | b |\n|:--|--:|\n| x\\|y | 1 |\n\n### More\n\n- one\n  - `two`\n- three"
    )
    assert text.endswith("\n\n```sh\n# no heading\n```")
    html = html_text(document, folded=True)
    assert "<h4>t</h4><p>words</p><table>" in html
    assert ">x|y</td>" in html
    assert "<ul><li>one</li><ul><li><code>two</code></li></ul><li>three</li></ul>" in html
    assert html.endswith("<pre># no heading</pre></details>")


def test_a_table_leaves_columns_out_where_a_terminal_has_no_room():
    wide = CellTable(["a", "b", "c"], [["x" * 40, "y" * 40, "z"]], drop=(1,))
    assert [line.split() for line in wide.text()] == [["a", "c"], ["x" * 40, "z"]]
    assert "y" * 40 in wide.markdown()[2]


def test_nothing_heavy_is_loaded_before_a_notebook_asks():
    code = """
import sys, rooflinekit as rk
e = rk.estimate("llama3-8b")
heavy = {"pandas", "matplotlib", "numpy"} & set(sys.modules)
assert not heavy, heavy
e._repr_html_()
assert "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


CONFIG = """{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
"torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}"""

"""A kind of attention, a kind of block and an option that only this file defines, through every reader."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import field

import pandas as pd
import pytest
from html_pages import json_in, unpacked
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.model import blocks
from rooflinekit.model.cache import LayerCache
from rooflinekit.model.graph.symbol import about, quantity
from rooflinekit.model.kernels.attention import Core, KVAppend, attention_flops, cache_read_bytes
from rooflinekit.model.kernels.operation import Operation, Step, Weights
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.kernel import AttentionShape, GemmShape, Kernel
from rooflinekit.specs import models
from rooflinekit.specs.locate import Loaded

H, D, WIDTH = 32, 128, 6144


@dataclass(frozen=True, slots=True)
class TwinAttention:
    """Two maps of scores that are subtracted, over keys and values of one head (as in arXiv:2410.05258)."""

    heads: int = quantity("H", "query heads")
    head_dim: int = quantity("d", "width of a head")

    kind = "twin"
    cut = (("heads", "attention heads"),)

    def cache(self, tp: int, kv: Dtype) -> LayerCache:
        return LayerCache(3 * self.head_dim * kv.bytes)


@dataclass(frozen=True, slots=True)
class TwinCore(Core):
    """It says nothing of its tensors."""

    heads: int = field(metadata=about("H", "query heads here"))
    head_dim: int = field(metadata=about("d", "width of a head"))

    def launch(self, step: Step, phase, count: int) -> Kernel:
        pairs, keys, d = phase.pairs(), phase.keys_read(), self.head_dim
        family = "attention_prefill" if phase is step.batch.prefilling else "attention_decode"
        shape = AttentionShape(phase.sequences, phase.new, phase.longest, keys, pairs, self.heads, 1, d)
        return Kernel(
            "twin_attention", family, count, step.stream, attention_flops(pairs, self.heads, 2 * d, d),
            kv_read_bytes=cache_read_bytes(keys, 3 * d * step.kv.bytes),
            activation_bytes=phase.tokens * self.heads * 3 * d * step.stream.bytes, shape=shape,
            variant=step.kv.value,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bilinear:
    """y = W3 (W1 x · W2 x), the product inside one kernel."""

    width: int = quantity("F", "inner width")

    cut = (("width", "columns"),)


@dataclass(frozen=True, slots=True)
class Product(Operation):
    """It has no name, either."""

    hidden: int
    width: int

    @property
    def weights(self) -> tuple[Weights, ...]:
        return (Weights("ffn", (2 * self.width, self.hidden), Dtype.BF16),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        m, n, k = step.tokens, 2 * self.width, self.hidden
        shape = GemmShape(m, n, k)
        return [Kernel("bilinear", "gemm", count, step.stream, 2.0 * m * n * k, n * k * 2.0, shape=shape,
                       activation_bytes=m * (k + self.width) * step.stream.bytes)]  # fmt: skip


def twin_operations(block: TwinAttention, shard) -> list[Operation]:
    heads, d = block.heads // shard.tp, block.head_dim
    return [
        shard.linear("qkv_proj", shard.hidden, (("Q", 2 * heads, d), ("K", 2, d), ("V", 1, d))),
        KVAppend((("twin cache", 3, d),)),
        TwinCore(heads, d),
        shard.linear("o_proj", heads * d, (("x", shard.hidden),)),
    ]


def bilinear_operations(block: Bilinear, shard) -> list[Operation]:
    width = block.width // shard.tp
    return [Product(shard.hidden, width), shard.linear("down_proj", width, (("x", shard.hidden),), "ffn")]


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    """llama-3-8b with other layers; llama-3.2-1b stays as it is."""
    monkeypatch.setitem(blocks.BUILDERS, TwinAttention, twin_operations)
    monkeypatch.setitem(blocks.BUILDERS, Bilinear, bilinear_operations)
    of_path = models._of_path

    def of(path, kind):
        found = of_path(path, kind)
        if found.value.name != "llama-3-8b":
            return found
        layers = tuple(replace(layer, mixer=TwinAttention(H, D), ffn=Bilinear(WIDTH)) for layer in found.value.layers)
        return Loaded(replace(found.value, layers=layers))

    monkeypatch.setattr(models, "_of_path", of)


def test_estimate_counts_it_by_hand():
    """Decode of one sequence at 1,000 tokens: 32 layers, keys of 2 heads and values of one, three matrices."""
    step = rk.estimate("llama-3-8b", context=1000, calibration="none").decode
    kernels = {kernel.name: kernel for kernel in step.kernels}
    assert kernels["twin_attention"].kv_read_bytes == 32 * 1000 * 3 * D * 2
    assert kernels["twin_attention"].flops == 32 * 1000 * 2 * H * 3 * D
    assert kernels["bilinear"].weight_bytes == 32 * 2 * WIDTH * 4096 * 2
    assert rk.kv_cache_bytes("llama-3-8b", 1000) == 32 * 1000 * 3 * D * 2


@pytest.mark.parametrize("tp", [1, 2])
def test_shapes_walk_all_of_its_work(tp):
    walk = rk.shapes("llama-3-8b", tokens=6, tp=tp)
    stops = {stop.name: stop for stop in walk.phases[0].sections[1].stops}
    assert next(tensor.letters for tensor in stops["split heads"].outputs) in ("[S, 2·H, d]", "[S, 2·H/tp, d]")
    assert stops["append to the cache"].outputs[0].numbers == "[6, 3, 128]"
    assert (
        stops["twin attention"].outputs[0].name == "unnamed"
        and stops["twin attention"].work.flops == 21 * 2 * H // tp * 3 * D
    )
    assert stops["bilinear"].flops_formula == ("4·N·F·D" if tp == 1 else "4·N·F·D/tp")
    whole = rk.estimate("llama-3-8b", isl=6, osl=2, tp=tp, calibration="none").prefill
    assert walk.phases[0].work.flops == pytest.approx(whole.flops, rel=1e-12)
    assert "twin attention" in [row["step"] for row in walk.to_rows()]


@pytest.mark.parametrize("command", [
    ["estimate", "llama-3-8b", "-v"], ["show", "llama-3-8b"], ["shapes", "llama-3-8b", "--tokens", "6"],
    ["explain", "llama-3-8b", "tpot"], ["explain", "llama-3-8b", "decode.twin_attention"],
    ["explain", "llama-3-8b", "memory"], ["explain", "llama-3-8b", "params"], ["explain", "llama-3-8b", "ttft"],
    ["estimate", "llama-3-8b", "--concurrency", "4", "--requests", "8"],
    ["simulate", "llama-3-8b", "--rate", "1", "--requests", "8"], ["launch", "llama-3-8b"],
])  # fmt: skip
def test_every_command_answers(command):
    result = CliRunner().invoke(app(), command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output


def app():
    from rooflinekit.cli.app import app

    return app


@pytest.mark.slow
@pytest.mark.long
def test_pages_workbooks_and_frames(tmp_path):
    for name, command in {
        "walk.html": ["shapes", "llama-3-8b", "--tokens", "6"],
        "page.html": ["report", "llama-3-8b", "--gpu", "h100-sxm"],
        "levers.csv": ["levers", "llama-3-8b"],
        "book.xlsx": ["workbook", "--model", "llama-3-8b", "--gpu", "h100-sxm"],
    }.items():  # fmt: skip
        result = CliRunner().invoke(app(), [*command, "--out", str(tmp_path / name)])
        assert result.exit_code == 0, (command, result.output)
        assert (tmp_path / name).stat().st_size > 0
    rows = rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b", "llama-3.2-1b"], "batch": [1, 1]}))
    assert (rows["error"] == "").all()
    assert rows["tpot_ms"][0] == pytest.approx(rk.estimate("llama-3-8b", batch=1).tpot_ms, rel=1e-9)


OPTION = r"""
import sys
from importlib.util import find_spec, module_from_spec


def edited(name, old, new):
    # A module of the package with one line more, in place of the module.
    spec = find_spec(name)
    module = sys.modules[name] = module_from_spec(spec)
    text = open(spec.origin, encoding="utf-8").read()
    assert text.count(old) == 1, old
    exec(compile(text.replace(old, old + new), spec.origin, "exec"), vars(module))
    package, _, last = name.rpartition(".")
    setattr(sys.modules[package], last, module)


edited("rooflinekit.model.types.engine", "prefix_caching: str | None = None", "\n    rush: float = 1.0")
edited("rooflinekit.estimation.scenario", "Forming of the engine's steps under load.\"\"\"\n",
       '    rush: Annotated[float, OptionRow("Made-up haste of the scheduler.", 1.0, unit=Unit("rush", {"krush": 1e3}, '
       '"2 or 1krush"), most=1e6, group="Engine")]\n')

import json
import pandas as pd
import rooflinekit as rk
from docs.generate.tables import refreshed, schema
from rooflinekit.cli.app import app
from rooflinekit.cli.command import find
from typer.testing import CliRunner


def said(*words):
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return result.exit_code, result.output


from rooflinekit.estimation.estimator import read_deployment

frame = rk.estimate_frame(pd.DataFrame({"model": ["llama-3-8b"] * 2, "rush": [2.0, -1.0]}))
code, output = said("report", "llama-3-8b", "--rush", "2krush", "--out", sys.argv[1])
print(json.dumps({
    "read": read_deployment({"rush": 2.0}).settings.rush,
    "parsed": find("estimate").options["rush"].parse("2krush"),
    "python": rk.estimate("llama-3-8b", rush=2.0).tpot_ms > 0,
    "line": said("estimate", "llama-3-8b", "--rush", "2krush")[0],
    "bad unit": said("estimate", "llama-3-8b", "--rush", "2km"),
    "too much": said("estimate", "llama-3-8b", "--rush", "1e9"),
    "shown": json.loads(said("estimate", "llama-3-8b", "--rush", "2", "--format", "json")[1])["inputs"].get("rush"),
    "errors": frame["error"].tolist(),
    "page": [code, output],
    "docs": refreshed("<!-- options of estimate -->\n<!-- /options -->"),
    "schema": json.loads(schema())["properties"]["rush"],
}))
"""


@pytest.mark.slow
def test_an_option_is_one_row(tmp_path):
    """A row in the table and a field where it is read: lines, keywords, frames, pages, docs and messages follow."""
    done = subprocess.run(
        [sys.executable, "-c", OPTION, str(tmp_path / "page.html")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["read"], found["parsed"], found["python"], found["line"]) == (2.0, 2000.0, True, 0)
    assert found["bad unit"][0] == 2 and "write 2 or 1krush" in found["bad unit"][1]
    assert found["too much"][0] == 2 and "rush must be from 0 to 1,000,000" in found["too much"][1]
    assert found["shown"] == 2.0
    assert found["errors"][0] == "" and "rush" in found["errors"][1]
    assert found["page"][0] == 0, found["page"]
    options = json_in(unpacked((tmp_path / "page.html").read_text(encoding="utf-8")), "data")["options"]
    assert options == ["--rush", "2000.0"]
    assert "--rush" in found["docs"] and "Made-up haste of the scheduler" in found["docs"]
    assert (found["schema"]["default"], found["schema"]["unit"], found["schema"]["maximum"]) == (1.0, "rush", 1e6)

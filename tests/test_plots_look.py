"""Pictures as they look: words inside and apart from each other, one colour for one thing, on paper and on screen."""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import rooflinekit as rk
from rooflinekit.report.look import BYTES, PALETTES, QUANTITIES, SERIES, hues, hues_of, shades
from rooflinekit.report.plots.front import drawable
from rooflinekit.report.plots.labels import _apart

REPORT = Path(rk.__file__).parent / "report"
CONFIG = """{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
"torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}"""
BATCHES = [1, 8, 64, 256, 512]


def _own(folder):
    """A small model of the user's, at the end of a long path."""
    place = (
        folder / "a-folder-of-experiments-with-a-long-name" / "a-model-that-was-trained-for-a-long-time-000123456789"
    )
    place.mkdir(parents=True)
    (place / "config.json").write_text(CONFIG, encoding="utf-8")
    return str(place / "config.json")


RESULTS = {
    "split": lambda _: rk.estimate("deepseek-v3", "h200-sxm", tp=8, concurrency=64),
    "long": lambda _: rk.estimate("llama-3.1-405b", tp=8, pp=2, weights="fp8", batch=128, isl=99_999, osl=2000,
                                  allow_oom=True),
    "sent": lambda _: rk.estimate("llama-3.3-70b", tp=8, batch=64, isl=4096, kv="fp8", weights="fp8"),
    "tiny": lambda folder: rk.estimate(_own(folder), batch=2, isl=16),
    "bound": lambda _: rk.estimate("llama3-8b", "l40s", calibration="none", weights="fp8", rate=1000.0),
    "ideal": lambda _: rk.estimate("llama3-8b", "b200-sxm", engine="ideal", weights="nvfp4"),
    "levers": lambda _: rk.levers("deepseek-v3", "h200-sxm", tp=8, batch=32),
    "outcome": lambda _: rk.simulate("deepseek-v3", "h200-sxm", tp=8, rate=4.0, requests=60, isl=4096, replicas=3),
    "six": lambda _: rk.sweep("llama3-8b", gpu=["h100-sxm", "h200-sxm", "b200-sxm"], tp=[1, 2], batch=BATCHES,
                              isl=2048),
    "paths": lambda folder: rk.sweep([_own(folder)], gpu=["h100-sxm", "h200-sxm"], batch=[1, 2], isl=[64, 128]),
    "day": lambda _: rk.plan("llama3-8b", profile=[4.0, 40.0, 12.0], tp=[1], price=2.0, isl=512),
    "trace": lambda _: rk.trace(Path(__file__).parents[1] / "docs" / "conversations.jsonl", model="llama3-8b",
                                cache_tier="host=1GB,50GB/s,10us,0.002$/GBh"),
    "users": lambda _: rk.sweep("llama3-8b", gpu="h100-sxm", isl=[128, 512, 2048, 4096, 7000], concurrency=[1, 16]),
    "several": lambda _: [rk.estimate("llama3-8b", batch=b, context=c, calibration="none", allow_oom=True)
                          for b in BATCHES for c in (128, 2048, 8000)],
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every picture of every result, drawn once."""
    found = {}
    for name, make in RESULTS.items():
        result = make(tmp_path_factory.mktemp(name))
        for kind in drawable(tuple(result) if isinstance(result, list) else result):
            found[name, kind] = rk.plot(result, kind)
    return found


@pytest.fixture(scope="module")
def words(drawn):
    """words(result, kind): boxes of all words that are drawn [pixels], by what they say; each picture is drawn once."""
    return cache(lambda *name: words_of(drawn[name]))


def words_of(picture):
    canvas, found, draw = FigureCanvasAgg(picture.figure), [], Text.draw

    def noted(text, renderer):
        if text.get_visible() and text.get_text().strip():
            found.append((text.get_text(), Text.get_window_extent(text, renderer)))
        draw(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", noted)
        canvas.draw()
    return found


def test_no_words_leave_a_picture(drawn, words):
    for name, picture in drawn.items():
        found, edge = words(*name), picture.figure.bbox
        assert len(found) > 5
        for text, box in found:
            assert edge.x0 - 0.5 <= box.x0, (name, text)
            assert box.x1 <= edge.x1 + 0.5, (name, text)
            assert edge.y0 - 0.5 <= box.y0, (name, text)
            assert box.y1 <= edge.y1 + 0.5, (name, text)


@pytest.mark.parametrize(("result", "kinds"), [
    ("six", ("batch",)), ("users", ("batch", "context")), ("several", ("intensity",)), ("split", ("time", "memory")),
    ("day", ("hours",)), ("trace", ("hit-rate",)),
    ("tiny", ("bytes", "memory", "time")), ("long", ("time", "bytes", "memory")), ("paths", ("batch", "context")),
])  # fmt: skip
def test_no_words_lie_on_others(words, result, kinds):
    for kind in kinds:
        for (one, first), (other, second) in combinations(words(result, kind), 2):
            assert not first.padded(-0.5).overlaps(second.padded(-0.5)), (kind, one, other)


@pytest.mark.parametrize("result", ["split", "long", "sent", "tiny", "bound", "ideal"])
def test_no_name_lies_on_a_point_of_the_roofline(drawn, words, result):
    """Names along lines are turned, so that their boxes say nothing; those stand in tests of their own."""
    found = words(result, "roofline")
    axes = drawn[result, "roofline"].figure.axes[0]
    names = {text.get_text() for text in axes.texts if not text.get_rotation()}
    for points in axes.collections:
        ((x, y),), (size,) = axes.transData.transform(points.get_offsets()), points.get_sizes()
        half = np.sqrt(size) / 2 * axes.figure.dpi / 72 - 1
        mark = Bbox.from_extents(x - half, y - half, x + half, y + half)
        for text, box in found:
            assert text not in names or not box.overlaps(mark), (text, points.get_gid())


def test_every_step_is_named_on_the_roofline(words):
    for name in ("split", "long", "sent", "tiny", "bound", "ideal"):
        assert {"prefill step", "decode step"} <= {text for text, _ in words(name, "roofline")}, name


def test_axes_have_numbers(drawn):
    """Narrow ranges of a logarithmic axis, too."""
    for axis in (drawn["paths", "pareto"].figure.axes[0].xaxis, drawn["six", "pareto"].figure.axes[0].yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        assert sum(low <= tick.get_loc() <= high and bool(tick.label1.get_text()) for tick in ticks) >= 2


def test_rings_are_explained_once_and_where_there_are_some(drawn, words):
    for (name, kind), picture in drawn.items():
        if kind in ("batch", "context", "pareto"):
            said = " ".join(text for text, _ in words(name, kind))
            gids = [str(each.get_gid()) for each in picture.figure.findobj(Line2D) if len(each.get_xdata())]
            rings = any(gid.startswith(("misfit", "barred")) for gid in gids)
            assert said.count("rings: ") == rings, (name, kind)


def test_names_at_the_ends_of_lines_keep_their_distance_and_their_order():
    rng = np.random.default_rng(1)
    for count in (1, 2, 5, 9):
        heights = np.sort(rng.uniform(0, 60, count))
        placed = np.array(_apart(list(heights), 10.0, (-200.0, 200.0)))
        assert (np.diff(placed) >= 10.0 - 1e-9).all()
        assert placed.mean() == pytest.approx(heights.mean())
        inside = np.array(_apart(list(heights), 6.0, (0.0, 60.0)))
        assert (np.diff(inside) >= 6.0 - 1e-9).all()
        assert inside.min() >= -1e-9
        assert inside.max() <= 60.0 + 1e-9
    assert _apart([0.0, 30.0, 60.0], 10.0, (-9.0, 90.0)) == [0.0, 30.0, 60.0]


# ---- colours

_SEEN_BY = {  # Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB
    "all cones": np.eye(3),
    "no red cones": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                              [-0.003882, -0.048116, 1.051998]]),
    "no green cones": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                                [-0.011820, 0.042940, 0.968881]]),
    "no blue cones": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                               [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
_TOGETHER = (
    ("weights", "cache", "activations", "engine"),
    ("weights", "cache", "activations", "network"),
    ("decode", "compute", "network", "overhead"),
    (*BYTES, "compute"),
    (*BYTES, "overhead"),
    SERIES,
)
_APART = 9.0  # hundredths of OKLab; Okabe and Ito's vermilion and green are 11 apart for people without green cones


def oklab(colour, seen):
    """Ottosson 2020."""
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    cones = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                      [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
    lab = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                    [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
    return lab @ np.cbrt(cones @ np.clip(_SEEN_BY[seen] @ linear, 0, 1))


@pytest.mark.parametrize("theme", PALETTES)
@pytest.mark.parametrize("seen", _SEEN_BY)
def test_colours_that_stand_together_can_be_told_apart(theme, seen):
    palette = PALETTES[theme]
    for group in _TOGETHER:
        for one, other in combinations(group, 2):
            far = 100 * np.linalg.norm(oklab(palette[one], seen) - oklab(palette[other], seen))
            assert far >= _APART, (one, other, far)


def test_pages_and_the_walk_have_the_colours_of_the_pictures():
    """Their style sheets are written from the table, and name no colour of a quantity themselves."""
    blocks = re.findall(r":root(?::not\(\.paper\))? \{([^}]*)\}", hues())
    for palette, block in zip(PALETTES.values(), blocks, strict=True):
        assert dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) == palette
    for name in ("page/page.css", "walk.html", "page/charts.js", "page/page.js"):
        own = set(re.findall(r"#[0-9a-f]{6}", (REPORT / name).read_text(encoding="utf-8")))
        assert not own & {hue for palette in PALETTES.values() for hue in palette.values()}, name


def test_an_accelerator_has_the_hue_of_its_generation():
    found = hues_of(["h100-sxm", "h200-sxm", "b200-sxm", "gb200", "mi300x", "mi355x", "no such"])
    assert found["h100-sxm"] == found["h200-sxm"] != found["b200-sxm"] == found["gb200"]
    assert found["mi300x"] == found["mi355x"] not in (found["h100-sxm"], found["b200-sxm"])
    assert "no such" not in found and {*found.values()} <= {*SERIES}
    assert len(set(shades(["navy"] * 5))) == 5


def test_lines_of_tables_have_other_colours_than_weights_and_cache():
    tints = re.search(r"const TINTS = (\[[^\]]*\])", (REPORT / "page" / "charts.js").read_text(encoding="utf-8"))
    assert re.findall(r'"([a-z]+)"', tints[1]) == list(SERIES)
    assert not {"weights", "cache"} & set(SERIES)


@pytest.mark.parametrize("theme", PALETTES)
def test_colours_of_accelerators_are_those_of_no_quantity(theme):
    palette = PALETTES[theme]
    for own, quantity in product(SERIES, QUANTITIES):
        far = 100 * np.linalg.norm(oklab(palette[own], "all cones") - oklab(palette[quantity], "all cones"))
        assert far >= 8.0, (own, quantity, far)

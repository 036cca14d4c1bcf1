"""The state of a page in headless Chromium: address, controls and numbers, and what is not there."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.sensitivity.levers import scaled
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.serving.energy import load_power, static_energy
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.document import headed
from rooflinekit.report.page.deployment import facts

from .browser import Browser


def random_states(count: int) -> list[dict[str, Any]]:
    """Static batches, rates of arrivals and users, on deployments that are in the page or not."""
    draw = random.Random(4)
    loads = ({}, {"rate": lambda: round(2 ** draw.uniform(-4, 3), 3)}, {"users": lambda: draw.randint(1, 200)})
    return [{"model": draw.choice(("llama-3-8b", "qwen3-30b-a3b")), "gpu": draw.choice(("h100-sxm", "h200-sxm")),
             "tp": draw.choice((1, 2, 4)), "kv": draw.choice(("own", "fp8")), "weights": draw.choice(("own", "fp8")),
             "engine": draw.choice(("vllm", "vllm", "vllm", "sglang", "trtllm")),
             **{name: value() for name, value in draw.choice(loads).items()},
             "batch": draw.randint(1, 600), "isl": int(2 ** draw.uniform(0, 13)), "osl": int(2 ** draw.uniform(0, 11)),
             "speed": draw.choice((1, 1, 1.5))} for _ in range(count)]  # fmt: skip


def hash_of(state: dict[str, Any]) -> str:
    state = {name: value for name, value in state.items() if name != "batch" or not {"rate", "users"} & set(state)}
    short = {"rate": "r", "users": "u",
             "model": "m", "gpu": "g", "tp": "tp", "weights": "w", "kv": "kv", "engine": "e", "batch": "b",
             "isl": "i", "osl": "o", "speed": "bw"}  # fmt: skip
    return "#" + "&".join(f"{short[name]}={value}" for name, value in state.items())


def expected(state: dict[str, Any]) -> list[float]:
    """TTFT, TPOT [s], tokens/s of a GPU, memory and joules of a token by `estimate`, and on another bandwidth."""
    formats = {name: state[name] for name in ("weights", "kv") if state[name] != "own"}
    keys = {"tp": state["tp"], "engine": state["engine"], **formats}
    work = {name: state[name] for name in ("batch", "isl", "osl")}
    if state["speed"] == 1:
        load = {option: work.pop("batch") and state[name] for name, option in LOADS.items() if name in state}
        told = rk.estimate(state["model"], state["gpu"], allow_oom=True, **work, **load, **keys)
        first = -1.0 if told.ttft_ms is None else told.ttft_ms / 1e3
        rest = told.output_tok_s_per_gpu, told.memory.total_bytes, told.energy.energy_per_output_token_j
        return [first, told.tpot_ms / 1e3, *rest]
    plain = resolve(state["model"], state["gpu"], read_deployment(dict(keys)), None).predictor
    at = Workload(*(float(count) for count in work.values()))
    plain_at = scaled(plain, "bandwidth", state["speed"])
    point = plain_at.evaluate(at)
    rate = point.output_rate(at.batch, at.osl) / state["tp"]
    joules = load_power(static_energy(plain_at, at, point), at.osl, lone=1.0).joules_per_output_token
    return [
        float(value) for value in (point.ttft.expected, point.tpot.expected, rate, point.memory.total_bytes, joules)
    ]


LOADS = {"rate": "rate", "users": "concurrency"}


def test_the_address_is_the_state_and_numbers_are_pythons(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    states = [state for state in random_states(400) if state["speed"] == 1 or not LOADS.keys() & state]
    script = """(hashes) => hashes.map((hash) => { state = read(hash); update();
      const view = answer(state), told = view && felt(view);
      const first = view && (told.stable ?? true) ? told?.ttft.time : -1;
      return told && [first, told.tpot.time, told.rateEach, view.memory.total, told.energy.joules,
        document.getElementById("tiles").textContent.includes(asTime(told.tpot.time)) ? 1 : 0]; })"""
    answers = browser.value(f"({script})({json.dumps([hash_of(state) for state in states])})")
    found = dict.fromkeys(("vllm", "sglang", "trtllm"), 0)
    for state, told in zip(states, answers, strict=True):
        if told is not None:
            found[state["engine"]] += 1
            assert told == pytest.approx([*expected(state), 1], rel=1e-9), state
    assert found["vllm"] >= 70
    assert found["sglang"] > 0 < found["trtllm"]


def test_a_slider_changes_the_numbers_and_the_address(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    before = browser.value("document.getElementById('tiles').textContent")
    browser.value("{ const slider = document.getElementById('in-batch'); slider.focus();"
                  " slider.value = STOPS.batch.indexOf(512);"
                  " slider.dispatchEvent(new Event('input', { bubbles: true })); }")  # fmt: skip
    browser.settle()
    after, batch = browser.value("document.getElementById('tiles').textContent"), browser.value("state.batch")
    assert batch == 512
    assert after != before
    assert browser.value("location.hash") == "#b=512"
    browser.value("document.getElementById('pin').click()")
    browser.value(
        "{ const box = document.getElementById('in-tp'); box.value = '2'; box.dispatchEvent(new Event('change')); }"
    )
    browser.settle()
    assert "Now, pinned, change" in browser.value("document.getElementById('compared').textContent")
    again = browser.value("location.hash")
    told = browser.value("document.getElementById('compared').textContent")
    browser.open(pages["deployment"], again)
    assert browser.value("document.getElementById('compared').textContent") == told
    browser.value("document.getElementById('reset').click()")
    browser.settle()
    assert browser.value("document.getElementById('tiles').textContent") == before
    assert browser.value("document.activeElement.id") == "pin", "a keyboard goes on where it was"


@pytest.mark.long
def test_a_key_moves_every_slider(browser: Browser, pages: dict[str, Path]) -> None:
    """To the next value up and back, from any value that was typed; nothing pulls it back."""
    for page, typed in (("deployment", {"batch": 100, "isl": 777, "cached": 3}), ("against", {"rate": 7.7}),
                        ("fixed", {"osl": 1})):  # fmt: skip
        browser.open(pages[page])
        shown = browser.value("Object.fromEntries(Object.entries(state).filter(([name]) => name in NUMBERS))")
        for name, value in (shown | typed).items():
            browser.value(f"change({{ {name}: {value} }}); document.getElementById('in-{name}').focus()")
            browser.settle()
            seen = [browser.value(f"state.{name}")]
            for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
                browser.press(key)
                browser.settle()
                seen.append(browser.value(f"state.{name}"))
            assert seen[0] < seen[1] < seen[2], (name, seen)
            assert seen[3] == seen[1], (name, seen)


def test_the_heading_and_the_answer_follow_the_controls(browser: Browser, pages: dict[str, Path]) -> None:
    """As `estimate` answers the state; what stays with the first deployment says so, and it comes back."""
    state = {"m": "qwen3-30b-a3b", "g": "h200-sxm", "tp": 2, "b": 64}
    told = rk.estimate("qwen3-30b-a3b", "h200-sxm", tp=2, batch=64)
    browser.open(pages["deployment"])
    first, named = browser.value("document.getElementById('lead').innerText"), browser.value("document.title")
    shown = "[...document.querySelectorAll('.stays')].filter((each) => !each.hidden)"
    assert browser.value(f"{shown}.length") == 0
    assert "llama-3-8b on h100-sxm, vllm" in first
    browser.open(pages["deployment"], "#" + "&".join(f"{key}={value}" for key, value in state.items()))
    lead = browser.value("document.getElementById('lead').innerText").replace("\u00a0", " ")
    assert headed(told) in lead
    assert headed(told) == browser.value("document.title") == browser.value("document.querySelector('h1').innerText")
    assert facts(told)[0] in lead
    times = browser.value(f"[{told.ttft_ms / 1e3}, {told.tpot_ms / 1e3}].map(asTime)")
    assert lead.split("First token after ")[1].startswith(times[0].replace("\u00a0", " "))
    assert f"then {times[1]} (".replace("\u00a0", " ") in lead
    assert "llama-3-8b" not in lead
    stays = browser.value(f"{shown}.map((each) => each.parentElement.querySelector('h2').innerText)")
    assert {"Derivation", "Shapes", "Kernels", "Sources of the numbers"} <= set(stays)
    assert "llama-3-8b on h100-sxm, vllm, batch 16" in browser.value(f"{shown}[0].innerText")
    browser.value("document.getElementById('reset').click()")
    browser.settle()
    assert (browser.value("document.getElementById('lead').innerText"), browser.value("document.title")) == (
        first, named)  # fmt: skip


def test_what_does_not_fit_says_what_would(browser: Browser, pages: dict[str, Path]) -> None:
    """Each remedy, tried by itself, fits."""
    browser.open(pages["deployment"], "#b=1000&i=4000")
    assert "does not fit" in browser.value("byId('headline').innerText")
    assert "output tokens" not in browser.value("byId('tiles').innerText")  # nothing is sold that cannot run
    batch = int(
        re.findall(r"Would fit: a batch of ([\d,]+)", browser.value("byId('under').innerText"))[0].replace(",", "")
    )
    assert rk.estimate("llama-3-8b", batch=batch, isl=4000).memory.fits
    assert not rk.estimate("llama-3-8b", batch=batch + 1, isl=4000, allow_oom=True).memory.fits
    browser.open(pages["deployment"], "#b=500&i=4000")
    gpus = re.findall(r"or (\d+) GPUs", browser.value("byId('under').innerText"))
    assert rk.estimate("llama-3-8b", batch=500, isl=4000, tp=int(gpus[0])).memory.fits
    assert not rk.estimate("llama-3-8b", batch=500, isl=4000, tp=int(gpus[0]) // 2, allow_oom=True).memory.fits


LIMITED: dict[str, Any] = {"max_num_seqs": 64, "max_model_len": 4096, "engine": "trtllm"}


@pytest.mark.parametrize(("load", "state"), [
    ({"batch": 16}, {"batch": 80, "isl": 5000, "osl": 1}),
    ({"concurrency": 16}, {"users": 100, "isl": 200, "osl": 50}),
    ({"rate": 1.0}, {"rate": 60.75, "isl": 3000, "osl": 500, "gpu": "b200-sxm"}),
], ids=["batch", "users", "rate"])  # fmt: skip
def test_every_state_has_the_notes_of_estimate(
    browser: Browser, tmp_path: Path, load: dict[str, Any], state: dict[str, Any]
) -> None:
    """One token out, more users than places, limits of the engine, and a load without a steady state too."""
    few: dict[str, Any] = {"models": [], "gpus": ["b200-sxm"], "walk": False}
    browser.open(rk.write_report(tmp_path / "a.html", "llama-3-8b", isl=512, osl=50, **load, **LIMITED, **few).path)
    browser.value(f"change({json.dumps(state)})")
    browser.settle()
    told = browser.value("[...document.querySelectorAll('#lead .notes li')].map((each) => each.textContent)")
    asked = {{"users": "concurrency"}.get(key, key): value for key, value in state.items()}
    notes = rk.estimate("llama-3-8b", asked.pop("gpu", "h100-sxm"), allow_oom=True, **asked, **LIMITED).warnings
    assert notes
    assert [note for note in told if "static batch" not in note] == list(notes)


BROKEN = (
    "#vs=b%3D1e300%26m%3D__proto__",
    "#vs=%00%00&tp=3.5&kv=constructor",
    "#b=NaN&i=Infinity&bw=-1",
    "#b=0",
    "#b=-3&i=1e99",
    "#m=nothing&tp=x",
    "#vs=a|b",
    "#b=%3Cimg%20src=x%3E&w=",
    "#g=__proto__",
)


@pytest.mark.parametrize("state", BROKEN)
def test_a_broken_address_is_mended(browser: Browser, pages: dict[str, Path], state: str) -> None:
    browser.errors.clear()
    browser.open(pages["deployment"], state)
    assert browser.value("document.getElementById('tiles').children.length") == (4 if "i=1e99" in state else 6)
    assert browser.errors == []


def test_any_name_may_stand_in_an_address(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["named"])
    assert browser.value("document.getElementById('in-model').value") == "a|b&c=<i>{{data}}"
    browser.value("change({ tp: 2 }); document.getElementById('pin').click(); change({ batch: 7 })")
    browser.settle()
    told, again = browser.value("document.getElementById('compared').textContent"), browser.value("location.hash")
    assert "2 × h100-sxm" in told
    browser.open(pages["named"], again)
    assert browser.value("document.getElementById('compared').textContent") == told


def test_what_is_compared_stays_within_the_limits(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["deployment"], "#vs=b%3D123456789%26i%3D0.2")
    assert browser.value("[pinned.batch, pinned.isl]") == [4096, 1]


def test_what_is_not_in_the_page_says_so(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fixed"])
    assert browser.value("document.getElementById('tiles').children.length") == 6
    browser.open(pages["deployment"], "#m=qwen3-30b-a3b&w=fp8")
    assert browser.value("document.getElementById('charts').hidden") is False
    browser.open(pages["deployment"], "#g=h200-sxm&e=sglang")
    assert browser.value("byId('said').textContent") == (
        "llama-3-8b on 1 × h200-sxm with sglang: not in this page, which has llama-3-8b with sglang on h100-sxm."
    )
    browser.open(pages["fixed"], "#tp=8&w=fp8&m=nothing&b=4096&i=1000000")
    assert "does not fit" in browser.value("document.getElementById('tiles').textContent")


def test_choices_say_why_they_are_none(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fixed"], "#tp=8")
    titles = "[...document.getElementById('in-tp').options].map((each) => each.textContent)"
    assert browser.value(titles) == ["1 × (does not fit)", "2 ×", "4 ×", "8 ×", "2 × (tp2 ep2)", "4 × (tp4 ep2)",
                                     "2 × (ep2 dp2)", "4 × (ep4 dp4)", "8 × (ep8 dp8)"]  # fmt: skip
    browser.value("change({ tp: 1, batch: 1 })")
    browser.settle()
    assert "does not fit" in browser.value("document.getElementById('said').textContent")
    assert browser.value("document.getElementById('out-batch').textContent") == "1 sequence"


def test_what_is_compared_goes_with_the_answer(browser: Browser, pages: dict[str, Path]) -> None:
    """A state that is not in the page has no numbers: those of the state before must not stay."""
    browser.open(pages["against"])
    assert "change" in browser.value("document.getElementById('compared').textContent")
    browser.value("Object.assign(state, { tp: 64 }); update()")
    assert "64 × h100-sxm" in browser.value("document.getElementById('said').textContent")
    assert browser.value("[...document.querySelectorAll('#tiles *, #compared *')].length") == 0
    browser.value("Object.assign(state, { tp: 1 }); update()")
    assert "change" in browser.value("document.getElementById('compared').textContent")


def test_a_legend_names_what_is_drawn(browser: Browser, pages: dict[str, Path]) -> None:
    """Of a prefill on one GPU nothing is sent; two send."""
    keys = "[...document.querySelectorAll('#time-key li')].map((each) => each.textContent)"
    browser.open(pages["deployment"])
    browser.value("document.getElementById('tab-prefill').click()")
    browser.settle()
    alone = browser.value(keys)
    assert {"arithmetic", "compute-bound", "overhead-bound"} <= {*alone}
    browser.value("Object.assign(state, { tp: 2 }); update()")
    assert {*browser.value(keys)} == {*alone, "network", "network-bound"}


def test_a_step_is_drawn_to_scale(browser: Browser, pages: dict[str, Path]) -> None:
    """Widths are shares of the step, hatched what is above the bound; a layer is one of its kernels' launches."""
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    browser.value("C.time.paint()")
    shares = browser.value("answer(state).decode.filter(({ time }) => time > 0).map(({ time }) => time)")
    widths = browser.value("[...document.querySelector('.scale').children].map((each) => parseFloat(each.style.width))")
    assert widths == pytest.approx([100 * each / sum(shares) for each in shares], rel=1e-4)
    assert "one of 32" in browser.value("byId('time').textContent")
    hatched = browser.value("parseFloat(document.querySelector('[data-kernel=attention] i').style.width)")
    time, bound = browser.value(
        "(({ time, bound }) => [time, bound])(answer(state).decode.find(({ name }) => name === 'attention'))"
    )
    assert hatched == pytest.approx(100 * (1 - bound / time), rel=1e-4)
    browser.value("document.querySelector('[data-kernel=attention]').click()")
    told = browser.value("byId('picked').textContent")
    assert "attention, 32 launches" in told
    assert "Derivation of the whole time" in told


def test_a_chip_applies_its_change(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(1280, 900)
    browser.open(pages["deployment"])
    chips = "[...document.querySelectorAll('#chips button')]"
    browser.wait(f"{chips}.length")
    said = browser.value(f"{chips}.map((each) => each.textContent)")
    place = next(place for place, text in enumerate(said) if text.startswith("fp8 weights: TPOT"))
    browser.value(f"{chips}[{place}].click()")
    browser.settle()
    assert browser.value("state.weights") == "fp8"
    expected = rk.estimate("llama-3-8b", batch=16, weights="fp8")
    assert browser.value("answer(state).tpot.time") * 1e3 == pytest.approx(expected.tpot_ms, rel=1e-12)
    assert browser.value("asTime(answer(state).tpot.time)") in said[place]


def test_the_command_answers_what_the_page_shows(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["deployment"])
    browser.value("change({ gpu: 'h200-sxm', tp: 2, kv: 'fp8', batch: 9, cached: 7 })")
    browser.settle()
    command = browser.value("commandOf(state)")
    assert command == ("rooflinekit estimate llama-3-8b --gpu h200-sxm --tp 2 --batch 9 --isl 1024 --osl 256 "
                       "--cached 7 --kv fp8")  # fmt: skip
    told = CliRunner().invoke(app, [*command.split()[1:], "--format", "json"])
    assert json.loads(told.output)["tpot_ms"] == pytest.approx(1e3 * browser.value("answer(state).tpot.time"))
    browser.value("change({ gpu: 'h100-sxm', kv: 'own', engine: 'trtllm' })")
    browser.settle()
    command = browser.value("commandOf(state)")
    assert "--gpu h100-sxm --engine trtllm --tp 2" in command
    told = CliRunner().invoke(app, [*command.split()[1:], "--format", "json"])
    assert json.loads(told.output)["tpot_ms"] == pytest.approx(1e3 * browser.value("answer(state).tpot.time"))
    browser.open(pages["fixed"])
    assert browser.value("commandOf(state)").startswith(
        "rooflinekit estimate mixtral-8x7b --gpu h100-sxm --tp 2 --ep 2 "
    )
    picture = browser.value("picture()")
    assert picture.startswith("data:image/png;base64,")
    assert len(picture) > 20_000


def test_the_result_stays_in_sight(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(390, 844)
    browser.open(pages["deployment"])
    browser.value("scrollTo(0, 2000)")
    box = browser.value("(({ top, bottom }) => [top, bottom])(byId('bar').getBoundingClientRect())")
    assert 700 < box[0] < box[1] == 844
    assert browser.value("asTime(answer(state).tpot.time)") in browser.value("byId('bar').textContent")
    browser.size(1280, 900)
    browser.settle()
    top = browser.value("(({ top, height }) => [top, height > 20])(byId('bar').getBoundingClientRect())")
    assert top == [0, True]  # on a wide window above, once the tiles are out of sight
    browser.value("scrollTo(0, 0)")
    browser.wait("getComputedStyle(byId('bar')).display === 'none'")


def test_the_nouns_of_the_sentence_are_the_controls(browser: Browser, pages: dict[str, Path]) -> None:
    """Each control stands once; what it names is what the page answers."""
    browser.size(1440, 900)
    browser.open(pages["deployment"])
    nouns = "[...byId('sentence').querySelectorAll('[id]')].filter((each) => !each.hidden).map(({ id }) => id)"
    assert browser.value(nouns) == [
        "in-model", "in-tp", "in-gpu", "in-engine", "in-weights", "box-batch", "in-traffic", "box-isl",
        "box-osl"]  # fmt: skip
    every = browser.value("[...document.querySelectorAll('[id]')].map(({ id }) => id)")
    assert len(every) == len(set(every))
    word = "(each) => each.selectedOptions?.[0].text ?? each.value ?? each.data"
    parts = "flatMap((each) => each.className ? [...each.childNodes] : [each])"
    spoken = f"[...byId('sentence').childNodes].{parts}.map({word}).join('')"
    browser.value("change({ gpu: 'h200-sxm', tp: 2 })")
    browser.settle()
    assert browser.value(spoken).startswith("llama-3-8b on 2 × h200-sxm with vllm, weights in bf16, as published, ")
    browser.value("{ const box = byId('box-isl'); box.value = '4096'; box.dispatchEvent(new Event('change')); }")
    browser.settle()
    assert browser.value("[state.isl, location.hash]") == [4096, "#g=h200-sxm&tp=2&i=4096"]
    browser.value("{ const box = byId('in-traffic'); box.value = 'users'; box.dispatchEvent(new Event('change')); }")
    browser.settle()
    assert browser.value("[byId('box-batch').hidden, byId('box-users').hidden]") == [True, False]
    assert browser.value("byId('sentence').getBoundingClientRect().top < byId('tiles').getBoundingClientRect().top")


def test_a_load_moves(browser: Browser, pages: dict[str, Path]) -> None:
    """More requests a second, then more than can be served; and back."""
    browser.errors.clear()
    browser.size(1280, 900)
    browser.open(pages["against"])
    assert browser.value("[...document.querySelectorAll('#controls input[type=range]')].map((each) => each.id)") == [
        "in-rate", "in-isl", "in-osl", "in-speed"]  # fmt: skip
    tiles, running = "document.getElementById('tiles').textContent", "answer(state).load.running"
    before, few = browser.value(tiles), browser.value(running)
    browser.value("change({ rate: 40 })")
    browser.settle()
    assert browser.value(running) > few
    assert browser.value("location.hash") == "#r=40"
    browser.value("change({ rate: 9000 })")
    browser.settle()
    assert "overload" in browser.value(tiles)
    browser.value("document.getElementById('reset').click()")
    browser.settle()
    assert browser.value(tiles) == before
    assert browser.errors == []


def test_a_slider_of_a_load_plays_it(browser: Browser, pages: dict[str, Path]) -> None:
    """Tiles, one request to scale, curves and first tokens follow, with the numbers of estimate."""
    browser.errors.clear()
    browser.size(1280, 3000)
    browser.open(pages["against"], "#t=load")
    tiles, one = "byId('tiles').textContent", "byId('one-said').textContent"
    before = browser.value(f"[{tiles}, {one}]")
    browser.value("{ const slider = byId('in-rate'); slider.value = STOPS.rate.indexOf(16);"
                  " slider.dispatchEvent(new Event('input', { bubbles: true })); }")  # fmt: skip
    browser.settle()
    after = browser.value(f"[{tiles}, {one}]")
    assert after[0] != before[0]
    assert after[1] != before[1]
    found = rk.estimate("llama-3-8b", rate=16.0, isl=512, osl=50)
    told = browser.value("[felt(answer(state)).ttft.time, felt(answer(state)).tpot.time, answer(state).load.knee]")
    assert found.load is not None
    assert told == pytest.approx([found.ttft_ms / 1e3, found.tpot_ms / 1e3, found.load.knee_rate], rel=1e-9)
    browser.wait("loads(answer(state)).some((each) => !each.stable) && Boolean(C.ttft.chart)")
    first, token = browser.value("[firstTerms, tokenTerms].map((of) => timeOf(of(answer(state).load)))")
    assert first + 49 * token == pytest.approx(found.e2e_ms / 1e3, rel=1e-9)
    assert browser.value("document.querySelectorAll('#lanes rect').length") > 60
    assert browser.errors == []


def test_no_more_of_a_prompt_is_cached_than_there_is(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["deployment"], "#i=100&c=5000")
    assert browser.value("state.cached") == 99
    assert browser.value("change({ isl: 50 }); state.cached") == 49


@pytest.mark.parametrize("state", ["b=1&tp=2", "m=qwen3-30b-a3b&b=1&tp=4", "m=qwen3-30b-a3b&b=16&i=4096"])
def test_where_the_cache_outweighs_the_weights(browser: Browser, pages: dict[str, Path], state: str) -> None:
    """At the batch that is told both are read alike; more sequences read more experts."""
    browser.open(pages["deployment"], f"#{state}")
    told = browser.value("document.getElementById('said').textContent")
    batch = int(told.rpartition("about ")[2].rstrip(". ").replace(",", ""))
    weights, cache = browser.value(
        f"(() => {{ const read = bytesOf(answer({{ ...state, batch: {batch} }}).decode);"
        " return [read.weights, read.cache]; })()"
    )
    assert cache == pytest.approx(weights, rel=0.02 + 0.5 / batch)


@pytest.mark.parametrize("state", ["b=1", "b=64", "tp=2&b=16&i=4096&kv=fp8", "r=4"])
def test_a_chip_lowers_the_metric_of_its_tab(browser: Browser, pages: dict[str, Path], state: str) -> None:
    """Chips and sentence are the same advice, in the order of `advice`."""
    for tab, metric in (("decode", "tpot"), ("prefill", "ttft"), ("cost", "cost"), ("memory", None)):
        browser.open(pages["deployment"], f"#{state}&t={tab}")
        browser.wait("byId('moves').textContent.includes('tp 4') || byId('moves').textContent.includes('tp 2')")
        found = browser.value("""(() => { const { moves } = adviceOf(answer(state));
          return moves.map(({ metric, title, change, view }) => [metric, title, change, view.memory.fits]); })()""")
        shown = browser.value("[...document.querySelectorAll('#chips button')].map((each) => each.textContent)")
        expected = [title for of, title, *_ in found if of == metric]
        assert [text.split(":")[0] for text in shown] == expected, tab
        assert all(change <= -0.02 and fits for *_, change, fits in found)
        best = browser.value("byId('best').textContent")
        assert all(f"{title}, " in best for title in {of: title for of, title, *_ in reversed(found)}.values())


@pytest.mark.parametrize("state", ["", "r=2", "u=20"])
def test_the_numbers_of_the_headline_stand_on_tiles(browser: Browser, pages: dict[str, Path], state: str) -> None:
    """Under load the medians, beside the means that the charts explain; on paper one request comes first."""
    page = pages["against" if state.startswith("r") else "deployment"]
    browser.open(page, f"#{state}")
    told = browser.value("[...document.querySelectorAll('#headline b')].map((each) => each.textContent)")
    tiles = browser.value("byId('tiles').innerText")
    assert len(told) == 2
    assert all(number.split()[0] in tiles for number in told), (told, tiles)
    first = browser.value("document.querySelector('[role=tabpanel]').id")
    assert first == ("panel-load" if page == pages["against"] else "panel-step")


SUMS = """(() => { const view = answer(%s), tiles = felt(view); return STEPS.map((step) => [
  sum(stepTerms(view, step).parts), tiles[TOLD[step][1]].time]); })()"""


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_the_parts_of_a_chart_sum_to_its_tile(browser: Browser, pages: dict[str, Path], count: int) -> None:
    """Of a static batch and under load, in random states of two models."""
    browser.open(pages["deployment"])
    for state in random_states(count):
        given = {name: value for name, value in state.items() if name != "batch" or not {"rate", "users"} & set(state)}
        if browser.value(f"Boolean(answer({json.dumps(given)}))"):
            for parts, tile in browser.value(SUMS % json.dumps(given)):
                assert parts == pytest.approx(tile, rel=1e-9), given


def test_the_roofline_shows_shares_of_the_roof_and_trails_of_the_batch(
    browser: Browser, pages: dict[str, Path]
) -> None:
    """A key turns FLOP/s into max(FLOP/peak, bytes/bandwidth)/time; a trail's dots are the answers at other batches."""
    browser.size(1280, 20_000)
    browser.open(pages["deployment"], "#b=24")
    browser.value("document.querySelector('[data-lens=share]').focus()")
    browser.press("Enter")
    browser.settle()
    assert browser.value("location.hash") == "#b=24&y=share"
    assert browser.value("document.activeElement.getAttribute('aria-pressed')") == "true"
    heights, trails = browser.value("""(() => {
      const series = C.roofline.chart.getOption().series, gpu = OFFERS.gpus[state.gpu];
      const dots = series.filter(({ name }) => name === 'decode' || name === 'prefill').flatMap(({ data }) => data);
      const trails = series.filter(({ name }) => name === 'trail').map(({ data }) => data);
      const shareAt = (part) => Math.max(part.flops / part.peak, moved(part) / gpu.bandwidth) / part.time;
      const parts = trails[0].map(({ batch }) => answer({ ...state, batch }).decode);
      return [dots.map(({ value, part }) => [value[1], shareAt(part)]),
        trails[0].map(({ value, batch }, place) => [batch, value, parts[place].filter(({ flops }) => flops > 0)
          .map((part) => [part.flops / moved(part), shareAt(part)])])];
    })()""")
    assert len(heights) > 8 and all(shown == pytest.approx(share) and 0.0 < shown < 1.2 for shown, share in heights)
    assert [batch for batch, *_ in trails] == [2**power for power in range(11)]
    assert all(any(value == pytest.approx(other) for other in others) for _, value, others in trails)
    intensity = [value[0] for _, value, _ in trails]
    assert intensity == sorted(intensity)
    browser.value("document.querySelector('[data-lens=rate]').click()")
    browser.settle()
    assert browser.value("location.hash") == "#b=24"


def test_an_objective_shades_who_is_too_slow(browser: Browser, pages: dict[str, Path]) -> None:
    """From the least speed on the axis to the objective; none without one, or with one that is no number."""
    shade = "C.pareto.chart.getOption().series[0].data.map(([x]) => x)"
    browser.size(1280, 20_000)
    browser.open(pages["deployment"], "#t=cost&s=nonsense")
    browser.wait("Boolean(C.pareto.chart)")
    assert browser.value(shade) == []
    box = "document.getElementById('least')"
    browser.value(f"{box}.value = '80'; {box}.dispatchEvent(new Event('change'))")
    browser.settle()
    browser.wait(f"({shade}).length")
    start, end = browser.value(shade)
    assert start == browser.value("C.pareto.chart.getOption().xAxis[0].min") < end == 80
    assert browser.value("location.hash") == "#t=cost&s=80"


def test_a_curve_of_loads_is_worked_out_once_while_the_load_moves(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["deployment"], "#t=load&r=2")
    curve = "loads(answer({ ...state, %s }))"
    assert browser.value(f"{curve % 'rate: 3'} === {curve % 'rate: 4'}")
    browser.value("KEPT.clear()")
    for change in ("isl: 500", "tp: 2", "speed: 2", "engine: 'sglang'"):
        assert browser.value(f"{curve % change} !== {curve % 'rate: 3'}"), change
    assert browser.value(f"{curve % 'rate: 3'}.map((each) => [each.at.rate, each.tpot.time])") == browser.value(
        "curveOf(answer({ ...state, rate: 4 })).map((each) => [each.at.rate, each.tpot.time])"
    )


def test_changes_to_try_under_load_come_after_the_answer(browser: Browser, pages: dict[str, Path]) -> None:
    """Each asks a load of its own: who moves a slider does not wait for them."""
    browser.open(pages["deployment"], "#r=2")
    browser.wait("byId('moves').textContent.includes('tp 2')")
    before = browser.value("byId('moves').textContent")
    at_once = "(() => { state = { ...state, rate: 9 }; update(); return byId('moves').textContent; })()"
    assert browser.value(at_once) == before
    browser.wait(f"byId('moves').textContent !== {json.dumps(before)}")


EXTREME = [
    *(
        "#b=1&i=1&o=1",
        "#b=1000000000&i=1000000000&o=1000000000",
        "#b=0&i=0&o=0",
        "#b=1e308&i=1e308",
        "#b=NaN&i=Infinity",
    ),
    *("#bw=0", "#bw=1e-300", "#bw=1e300", "#bw=-1&b=4096", "#bw=0.01&b=100000&i=131072&o=100000"),
    *("#r=1e-300", "#r=1e300", "#r=0", "#u=1e12", "#u=0", "#u=1&o=1", "#r=5&bw=1e-9", "#c=1e99&i=1"),
]
NOISE = r"\b(?:NaN|Infinity|undefined|null|\[object)"


@pytest.mark.long
def test_extreme_states_are_drawn_without_an_error(browser: Browser, pages: dict[str, Path]) -> None:
    """Addresses beyond each end, and every slider at both of its ends: words and pictures have numbers only."""
    browser.size(1280, 900)
    browser.errors.clear()
    for state in EXTREME:
        browser.open(pages["deployment"], state)
        assert browser.errors == [], state
        assert browser.value(f"(document.body.innerText.match(/{NOISE}/) || [''])[0]") == "", state
    for end in ("min", "max"):
        browser.value(
            "(() => { for (const each of document.querySelectorAll('input[type=range]')) {"
            f" each.value = each.{end}; each.dispatchEvent(new Event('input', {{bubbles: true}})); }} return 1; }})()"
        )
        browser.value("new Promise(done => setTimeout(() => done(1), 300))")
        assert browser.errors == [], end
        assert browser.value(f"(document.body.innerText.match(/{NOISE}/) || [''])[0]") == "", end
        drawn = "[...document.querySelectorAll('svg *')].flatMap(each => [...each.attributes].map(a => a.value))"
        assert browser.value(f"{drawn}.filter(each => /NaN|Infinity|undefined/.test(each)).length") == 0, end

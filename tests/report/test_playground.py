"""The playground: static files on a plain web server, fetched model by model, and Python's numbers in every state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from docs.generate.playground import (
    FIRST,
    _code,
    engine_gpus,
    first_deployment,
    model_file,
    write_app,
    write_playground,
)
from rooflinekit.specs import names

from .browser import Browser, served

GPUS = ("h100-sxm", "h200-sxm", "l40s", "v100-sxm2-32gb")
OTHER = "mixtral-8x7b"
READY = "!!document.querySelector('.tile')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("playground")
    write_playground(out / "site", [FIRST, OTHER], GPUS, out / "store")
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder / "site") as found:
        yield f"{found}/index.html"


def shown(browser: Browser) -> str:
    return str(browser.value("document.getElementById('lead').innerText"))


def test_files_of_models_are_kept_and_the_same_twice(folder: Path, tmp_path: Path) -> None:
    stored = {path.name: path.stat().st_mtime_ns for path in (folder / "store").iterdir()}
    write_playground(tmp_path, [FIRST], GPUS, folder / "store")
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "store").iterdir()} == stored
    first = next((folder / "site" / "models").glob(f"{FIRST}.vllm.*"))
    assert first.read_bytes() == next((tmp_path / "models").glob("*.vllm.*")).read_bytes() == model_file(FIRST, GPUS)


def test_kept_files_depend_on_the_code_that_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions and scenes of deployments, and the moves of advice on them."""
    read = set[str]()

    def noted(path: Path) -> bytes:
        read.add(path.name)
        return b""

    monkeypatch.setattr(Path, "read_bytes", noted)
    _code.__wrapped__()
    assert {"step.py", "offers.py", "table.py", "moves.py", "h100-sxm--vllm.yaml"} <= read


@pytest.mark.parametrize("model", ["deepseek-v3", "minimax-m2"])
def test_a_format_that_some_chips_of_an_engine_lack_is_shown_on_another(model: str) -> None:
    gpus = engine_gpus(names("accelerator"))["llama.cpp"]
    with pytest.raises(rk.DtypeError, match="no fp8 arithmetic"):
        rk.estimate(model, gpus[0], engine="llama.cpp")
    assert first_deployment(model, "llama.cpp", gpus).answer.engine == "llama.cpp"


@pytest.mark.long
def test_the_first_load_has_at_most_800_kb(tmp_path: Path) -> None:
    """Of the site with all models on all accelerators, as a server sends it that packs nothing."""
    write_app(tmp_path, dict.fromkeys(names("model"), "12345678"), names("accelerator"))
    site = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(site) + len(model_file(FIRST, names("accelerator"))) <= 800_000


def test_a_model_is_fetched_when_it_is_chosen(browser: Browser, address: str) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.visit(address, READY)
    asked = [
        request.rpartition("/")[2].rpartition(".vllm.")[0] for request in browser.requests if "/models/" in request
    ]
    assert asked == [FIRST]
    assert f"{FIRST} on h100-sxm, vllm" in shown(browser)
    browser.value(f"{{ const box = byId('in-model'); box.value = '{OTHER}'; box.dispatchEvent(new Event('change')); }}")
    browser.wait(f"document.title.startsWith('{OTHER}')")
    browser.settle()
    assert f"{OTHER} on 2 x h100-sxm (tp2)" in shown(browser)  # the first usual machine that holds it
    expected = rk.estimate(OTHER, "h100-sxm", tp=2, batch=32)
    assert browser.value("answer(state).tpot.time") * 1e3 == pytest.approx(expected.tpot_ms, rel=1e-12)
    browser.value(f"change({{ model: '{FIRST}' }})")
    browser.wait(f"document.title.startsWith('{FIRST}')")
    own = address.rpartition("/")[0]
    assert sum("/models/" in request for request in browser.requests) == 2
    browser.value("{ const box = byId('in-engine'); box.value = 'sglang'; box.dispatchEvent(new Event('change')); }")
    browser.wait("document.title.endsWith('sglang')")
    assert f"/{FIRST}.sglang." in browser.requests[-2] + browser.requests[-1]  # the last one runs its functions
    told = rk.estimate(FIRST, "h100-sxm", tp=2, batch=32, engine="sglang")
    assert browser.value("answer(state).tpot.time") * 1e3 == pytest.approx(told.tpot_ms, rel=1e-12)
    browser.value("change({ gpu: 'v100-sxm2-32gb' })")
    browser.settle()
    assert "not in this page, which has llama-3-8b with sglang on h100-sxm, h200-sxm, l40s" in shown(browser)
    assert all(request.startswith((own, f"blob:{own}", "about:")) for request in browser.requests)
    assert browser.errors == []


def test_an_engine_begins_where_it_has_a_fit(browser: Browser, address: str) -> None:
    browser.visit(address, READY)
    browser.value("change({ gpu: 'v100-sxm2-32gb' })")
    browser.settle()
    browser.value("change({ engine: 'sglang' })")
    browser.wait("document.title === 'llama-3-8b on h100-sxm, sglang'")
    expected = rk.estimate(FIRST, "h100-sxm", batch=32, engine="sglang")
    assert browser.value("answer(state).tpot.time") * 1e3 == pytest.approx(expected.tpot_ms, rel=1e-12)
    browser.wait("location.hash === '#e=sglang'")


def test_an_address_holds_the_state_and_what_it_is_compared_with(browser: Browser, address: str) -> None:
    browser.visit(f"{address}#m={OTHER}&g=h200-sxm&tp=4&w=fp8&b=7&i=300&vs=b%3D5%26g%3Dl40s", READY)
    expected = rk.estimate(OTHER, "h200-sxm", tp=4, weights="fp8", batch=7, isl=300)
    assert browser.value("answer(state).ttft.time") * 1e3 == pytest.approx(expected.ttft_ms, rel=1e-12)
    assert browser.value("[pinned.model, pinned.gpu, pinned.batch]") == [FIRST, "l40s", 5]
    browser.value("change({ batch: 8 })")
    browser.wait("location.hash.includes('b=8')")
    kept = browser.value("location.hash")
    browser.visit(address + kept, READY)
    assert browser.value("[state.model, state.gpu, state.tp, state.weights, state.batch, state.isl]") == [
        OTHER, "h200-sxm", 4, "fp8", 8, 300]  # fmt: skip


def test_of_many_accelerators_those_on_the_front_have_colours(browser: Browser, address: str) -> None:
    """The others are grey, and so is one that nothing recommends; the present one has a colour always."""
    browser.visit(f"{address}#g=l40s", READY)
    browser.value("TINTS.splice(2); update(); pending()")
    named = browser.value("[...byId('pareto-key').children].map((each) => each.textContent)")
    assert named == ["l40s", "h200-sxm", "the rest"]


def test_the_board_has_the_fewest_gpus_that_hold_the_batch(browser: Browser, address: str) -> None:
    """It is open on the first screen; a click goes there."""
    browser.visit(address, READY)
    browser.wait("byId('board').open && Object.keys(BOARD.found).length === 4 && byId('found').children.length > 0")
    browser.value("change({ batch: 200 })")
    browser.wait("BOARD.key.includes('200') && !BOARD.left.length")
    found = browser.value("BOARD.found")
    for gpu in ("h100-sxm", "h200-sxm", "l40s"):
        tp, tpot = found[gpu]["tp"], found[gpu]["tpot"]
        held = rk.estimate(FIRST, gpu, tp=tp, batch=200)
        assert held.memory.fits
        assert tpot * 1e3 == pytest.approx(held.tpot_ms, rel=1e-9)
        if tp > 1:
            assert not rk.estimate(FIRST, gpu, tp=tp // 2, batch=200, allow_oom=True).memory.fits
    assert found["v100-sxm2-32gb"] is None  # it lacks bf16
    words = browser.value(
        "[...document.querySelectorAll('.holders button')].map((each) => each.className + each.innerText)"
    )
    assert any(text.startswith("none") and "lacks the format" in text for text in words)
    browser.value(
        "[...document.querySelectorAll('.holders button')].find((each) => each.innerText.startsWith('h200')).click()"
    )
    browser.wait("state.gpu === 'h200-sxm'")


def test_a_search_finds_models_and_accelerators(browser: Browser, address: str) -> None:
    browser.visit(address, READY)
    texts = "[...document.querySelectorAll('.holders button')].map((each) => each.firstChild.textContent)"
    for words, expected in (("mix 8x", [OTHER]), ("nvidia l4", ["l40s"]), ("zz", [])):
        browser.value(f"byId('find').value = '{words}'; byId('find').dispatchEvent(new Event('input'))")
        assert browser.value(texts) == expected


def test_engines_are_those_of_the_accelerator(browser: Browser, address: str) -> None:
    engines = "[...byId('in-engine').options].filter((each) => !each.hidden).map((each) => each.value)"
    browser.visit(address, READY)
    assert browser.value(engines) == list(engine_gpus(GPUS))
    browser.value("change({ gpu: 'v100-sxm2-32gb' })")
    browser.settle()
    assert browser.value(engines) == ["vllm"]


@pytest.mark.parametrize(
    "state", ["#m=nothing", "#m=constructor&g=__proto__", "#e=constructor", "#tp=3&b=x", "#vs=m%3Dnothing"]
)
def test_a_broken_address_is_mended(browser: Browser, address: str, state: str) -> None:
    browser.errors.clear()
    browser.visit(address + state, READY)
    assert f"{FIRST} on h100-sxm" in shown(browser)
    assert browser.errors == []


def test_a_file_that_is_not_there_is_said(browser: Browser, address: str) -> None:
    browser.visit(address, READY)
    browser.value(f"DATA.files['{OTHER}'] = files['{OTHER}'] = 'none'; change({{ model: '{OTHER}' }})")
    browser.wait(f"document.getElementById('said').textContent.includes('{OTHER} with vllm could not be fetched')")
    browser.errors.clear()


def test_random_states_are_pythons(browser: Browser, address: str, count: int = 40) -> None:
    browser.visit(f"{address}#m={OTHER}&e=trtllm&g=h200-sxm&vs=b%3D5%26e%3Dsglang", READY)
    plans = browser.value("Object.keys(OFFERS.plans).map((label) => label.split(APART))")
    draw = random.Random(4)
    plain = [plan for plan in plans if plan[2].isdigit()]  # experts whole, and attention in replicas, have others
    for model, gpu, tp, weights, kv, engine in draw.choices(plain, k=count):
        at: dict[str, Any] = {
            name: int(2 ** draw.uniform(0, most)) for name, most in (("batch", 9), ("isl", 12), ("osl", 10))
        }
        given = {
            "model": model,
            "gpu": gpu,
            "tp": int(tp),
            "weights": weights,
            "kv": kv,
            "engine": engine,
            "cached": 0,
            "speed": 1,
            **at,
        }
        found = browser.value(
            f"(({{ ttft, tpot, memory }}) => [ttft.time, tpot.time, memory.total])(answer({given!r}))"
        )
        formats = {name: value for name, value in (("weights", weights), ("kv", kv)) if value != "own"}
        expected = rk.estimate(model, gpu, tp=int(tp), engine=engine, allow_oom=True, **formats, **at)
        own = [expected.ttft_ms / 1e3, expected.tpot_ms / 1e3, expected.memory.total_bytes]
        assert found == pytest.approx(own, rel=1e-12), given


@pytest.mark.long
def test_many_random_states_are_pythons(browser: Browser, address: str) -> None:
    test_random_states_are_pythons(browser, address, 500)

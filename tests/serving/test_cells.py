"""A fleet in cells: the whole is what its cells are, wherever they are played, and what a random balancer gives."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from contextlib import suppress

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.simulation import simulate as simulation
from rooflinekit.simulation.ledger import RequestObjective
from rooflinekit.simulation.outcome import Books

ASKED = {"rate": 24.0, "replicas": 4, "requests": 240, "isl": 300, "osl": "uniform:20-60", "calibration": "none"}
SAME = ("requests", "duration_s", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "output_tok_s", "power_w_per_gpu", "steps",
        "replicas", "inputs", "warnings")  # fmt: skip


def plain(outcome):
    return {name: getattr(outcome, name) for name in SAME}


def test_every_request_is_played_once():
    outcome = rk.simulate("llama-3-8b", cells=4, **ASKED)
    assert outcome.requests.finished == outcome.ttft_ms.n == 240
    assert [(use.role, use.replicas) for use in outcome.replicas] == [("serve", 4)]
    assert outcome.inputs["replicas"] == 4
    assert outcome.inputs["rate"] == 24.0


def test_cells_are_what_a_balancer_without_memory_gives():
    """Poisson arrivals dealt at random are Poisson in each cell: the random router's means lie within the errors."""
    asked = ASKED | {"requests": 4000, "rate": 160.0}
    whole = rk.simulate("llama-3-8b", router="random", **asked)
    cells = rk.simulate("llama-3-8b", cells=4, **asked)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        ours, theirs = getattr(cells, name), getattr(whole, name)
        error = math.hypot(ours.errors["mean"], theirs.errors["mean"])
        assert abs(ours.mean - theirs.mean) < 4.0 * error + 0.01 * theirs.mean


@pytest.mark.parametrize("asked", [
    ASKED,
    {"concurrency": 9, "replicas": 2, "isl": 200, "osl": "uniform:5-30", "requests": 90, "calibration": "none"},
    {"sessions": "chat", "rate": 4.0, "replicas": 4, "requests": 60, "prefix_cache": True, "calibration": "none"},
    {"rate": 8.0, "replicas": 2, "prefill_replicas": 2, "requests": 40, "isl": 99, "osl": 9, "calibration": "none"},
])  # fmt: skip
def test_two_processes_give_the_same_bits(asked):
    assert plain(rk.simulate("llama-3-8b", cells=2, **asked)) == plain(
        rk.simulate("llama-3-8b", cells=2, workers=2, **asked)
    )


def test_a_worker_that_dies_loses_nothing():
    """Killed while cells are under way: they are played again elsewhere, to the same bits."""
    asked, killed = ASKED | {"replicas": 8, "requests": 1600}, []

    def kill_one(_: int):
        workers = multiprocessing.active_children()
        if workers and not killed:
            with suppress(ProcessLookupError):  # one that has just ended by itself is no loss
                os.kill(workers[0].pid, signal.SIGKILL)
                killed.append(workers[0].pid)

    found = rk.simulate("llama-3-8b", cells=8, workers=2, progress=kill_one, **asked)
    assert killed
    assert plain(found) == plain(rk.simulate("llama-3-8b", cells=8, **asked))


def test_dask_gives_the_same_bits():
    distributed = pytest.importorskip("distributed", reason="needs the extra: cluster")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        found = rk.simulate("llama-3-8b", cells=4, scheduler=cluster.scheduler_address, **ASKED)
    assert plain(found) == plain(rk.simulate("llama-3-8b", cells=4, **ASKED))


def test_a_trace_is_dealt_out_whole(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = (f"{place / 9},{100 + place},{5 + place % 7}" for place in range(90))
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    outcome = rk.simulate("llama-3-8b", trace=trace, replicas=3, cells=3, calibration="none")
    alone = rk.simulate("llama-3-8b", trace=trace, replicas=3, calibration="none")
    assert outcome.requests.finished == alone.requests.finished == 90
    assert outcome.inputs["trace"] == str(trace)


def test_a_run_that_was_cut_short_goes_on(tmp_path, monkeypatch):
    kept, expected = tmp_path / "kept", plain(rk.simulate("llama-3-8b", cells=4, **ASKED))
    play, calls = simulation._cell, []

    def stopped(model, gpu, given, number):
        calls.append(number)
        if number == 3:
            raise KeyboardInterrupt
        return play(model, gpu, given, number)

    monkeypatch.setattr(simulation, "_cell", stopped)
    cut = rk.simulate("llama-3-8b", cells=4, kept=kept, **ASKED)
    assert cut.interrupted
    assert cut.requests.finished == 180
    kept.write_text(kept.read_text() + '{"cell": 3, "bo')  # the line that was being written
    monkeypatch.setattr(simulation, "_cell", lambda *given: calls.append(given[-1]) or play(*given))
    assert plain(rk.simulate("llama-3-8b", cells=4, kept=kept, **ASKED)) == expected
    assert calls == [1, 2, 3, 3]
    with pytest.raises(rk.InputError, match="cells of another run"):
        rk.simulate("llama-3-8b", cells=4, kept=kept, **ASKED | {"requests": 300})
    kept.write_text(kept.read_text() + '{"cell": 3, "books": {"uses": 1}}\n')
    with pytest.raises(rk.SpecError, match="line 5: is not a finished cell"):
        rk.simulate("llama-3-8b", cells=4, kept=kept, **ASKED | {"workers": 2})


def test_the_same_command_goes_on_after_an_interrupt(tmp_path, monkeypatch):
    out = tmp_path / "run.json"
    asked = "simulate llama-3-8b --rate 9 --requests 120 --isl 64 --osl 8 --replicas 4 --cells 4 --resume --format json"
    command = [*asked.split(), "--out", str(out)]
    play = simulation._cell

    def stopped(*given):
        if given[-1] == 2:
            raise KeyboardInterrupt
        return play(*given)

    monkeypatch.setattr(simulation, "_cell", stopped)
    cut = CliRunner().invoke(app, command)
    assert cut.exit_code == 130
    assert "the same command goes on from there" in cut.stderr
    assert not out.exists()
    monkeypatch.setattr(simulation, "_cell", play)
    assert CliRunner().invoke(app, [*command, "--workers", "2"]).exit_code == 0
    assert json.loads(out.read_text())["requests"]["finished"] == 120
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_books_survive_json():
    books, _ = simulation._played("llama-3-8b", "h100-sxm", ASKED | {"prefix_cache": True}, simulation._Seen())
    again = Books.read(json.loads(json.dumps(books.plain())), RequestObjective())
    assert again.plain() == books.plain()
    assert again.ledger.ttft.quantile(0.9) == books.ledger.ttft.quantile(0.9)


@pytest.mark.parametrize(("options", "said"), [
    ({"replicas": 5}, "replicas=5 cannot be divided evenly among 4 cells"),
    ({"requests": 3}, "requests=3 leaves some of 4 cells without any"),
    ({"burstiness": 2.0}, "cells divide Poisson arrivals"),
    ({"workers": 0}, "workers must be a whole number of at least 1"),
    ({"prefix_cache": True, "cache_tier": "far=1TB,5GB/s,1ms,shared"}, "cells cannot share a cache tier"),
    ({"watch": lambda *_: None}, "nobody can watch them"),
])  # fmt: skip
def test_what_has_no_cells_is_refused(options, said):
    with pytest.raises(rk.InputError, match=said):
        rk.simulate("llama-3-8b", cells=4, **ASKED | options)

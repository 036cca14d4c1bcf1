"""`rk.sweep`: every combination as `estimate` answers it, however it is run."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.sweeping.sweep import Grid, Means, Piece, SweepJob, SweepShard, answer, run, with_costs
from rooflinekit.simulation.execute import _connected, execute

MIXED = Grid.of({
    "model": ["llama-3-8b", "mixtral-8x7b"], "gpu": ["h100-sxm", "l40s"], "tp": [1, 3], "batch": [1, 7, 64],
    "isl": [100, 3000], "osl": [1, 100], "context": [None, 2000], "calibration": [None, "none"],
})  # fmt: skip
LOADED = Grid.of({"model": "llama-3-8b", "rate": [1.0, 4.0, 500.0], "isl": 300, "osl": 30, "calibration": "none"})
SIMULATED = Grid.of({"model": "llama-3-8b", "rate": [1.0, 4.0, -1.0, 9.0, 7.0], "requests": 20, "isl": 64, "osl": 8,
                     "calibration": "none"})  # fmt: skip


def whole(grid, job, means=Means()):  # noqa: B008 - frozen
    return pd.concat(list(run(grid, job, means)))


def test_a_row_is_what_estimate_says():
    table = rk.sweep("llama-3-8b", gpu=["h100-sxm", "l4"], batch=[1, 32], kv=["bf16", "fp8"], allow_oom=True)
    assert table[["gpu", "batch", "kv"]].iloc[[0, 1, 2, 4]].to_numpy().tolist() == [
        ["h100-sxm", 1, "bf16"], ["h100-sxm", 1, "fp8"], ["h100-sxm", 32, "bf16"], ["l4", 1, "bf16"],
    ]  # fmt: skip
    for row in table.to_dict("records"):
        asked = {key: row[key] for key in ("gpu", "batch", "kv")}
        expected = rk.estimate("llama-3-8b", **asked, allow_oom=True)
        assert row["tpot_ms"] == pytest.approx(expected.tpot_ms, rel=1e-12)
        assert row["fits"] == expected.memory.fits


def test_an_impossible_combination_is_a_row():
    table = rk.sweep("llama-3-8b", tp=[1, 3, 2], calibration="none")
    assert [error[:19] for error in table["error"]] == ["", "tp=3 does not divid", ""]
    assert table["tpot_ms"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize(("given", "said"), [
    ({"btch": 1}, "nearest: batch"), ({"batch": []}, "no values"), ({"price": -1}, "price"), ({"price": "x"}, "price"),
    ({"workers": 0}, "workers"), ({"pareto": "tpot_ms"}, "pareto"), ({"rate": 1, "cv": 2}, "unknown option 'cv'"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_at_once(given, said):
    with pytest.raises(rk.InputError, match=said):
        rk.sweep("llama-3-8b", **given)


@pytest.mark.parametrize(("grid", "job"), [(MIXED, SweepJob()), (LOADED, SweepJob()), (SIMULATED, SweepJob(True))],
                         ids=["static", "loaded", "simulated"])  # fmt: skip
def test_shards_give_the_same_bits(grid, job):
    expected = whole(grid, job)
    shards = pd.concat([whole(grid, job, Means(shard=SweepShard(number, 3))) for number in (1, 2, 3)])
    pd.testing.assert_frame_equal(shards, expected, check_exact=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("grid", "job"), [(LOADED, SweepJob()), (SIMULATED, SweepJob(True))], ids=["loaded", "simulated"]
)
def test_processes_give_the_same_bits(grid, job):
    pd.testing.assert_frame_equal(whole(grid, job, Means(workers=2)), whole(grid, job), check_exact=True)


def test_a_piece_depends_on_no_other():
    """Rows of different pieces share nothing: a row alone has the bits that it has among 30,000."""
    grid = Grid.of({"model": "llama-3-8b", "batch": range(1, 101), "isl": range(10, 3010, 10), "context": 900})
    expected = rk.estimate_frame(grid.frame(0, grid.rows))
    for row in (0, 8_191, 8_192, 12_345, 29_999):
        alone = rk.estimate_frame(grid.frame(row, row + 1))
        pd.testing.assert_frame_equal(alone, expected.iloc[[row]], check_exact=True)


def test_dask_gives_the_same_bits():
    distributed = pytest.importorskip("distributed", reason="needs the extra: cluster")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        means = Means(scheduler=cluster.scheduler_address)
        pd.testing.assert_frame_equal(whole(MIXED, SweepJob(), means), whole(MIXED, SweepJob()), check_exact=True)


@pytest.mark.long
def test_two_dask_workers_and_one_that_is_killed():
    distributed = pytest.importorskip("distributed", reason="needs the extra: cluster")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        answers = run(SIMULATED, SweepJob(True), Means(scheduler=cluster.scheduler_address))
        first = next(answers)
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
        table = pd.concat([first, *answers])
    pd.testing.assert_frame_equal(table, whole(SIMULATED, SweepJob(True)), check_exact=True)


@dataclass(frozen=True)
class Deadly:
    """Rows that kill the process that reads them first, or always."""

    start: int
    mark: Path | None

    def __call__(self):
        if self.mark is None or not self.mark.exists():
            if self.mark is not None:
                self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return MIXED.frame(self.start, self.start + 10)


def test_processes_give_the_same_bits_and_a_killed_one_loses_nothing(tmp_path):
    pieces = [Piece(number, Deadly(10 * number, tmp_path / "dead")) for number in range(6)]
    got = pd.concat(list(execute(partial(answer, SweepJob()), pieces, workers=2)))
    pd.testing.assert_frame_equal(got, whole(MIXED, SweepJob()).iloc[:60], check_exact=True)
    assert (tmp_path / "dead").exists()


@pytest.mark.long
def test_rows_that_kill_every_worker_end_the_sweep():
    with pytest.raises(rk.RooflinekitError, match="died 4 times in a row on piece 1"):
        list(execute(partial(answer, SweepJob()), [Piece(0, Deadly(0, None))], workers=2))


@pytest.fixture
def cluster():
    """A dask cluster of one process, whose deaths are not written to the log of the tests."""
    distributed = pytest.importorskip("distributed", reason="needs the extra: cluster")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as started:
        yield started


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_that_kill_every_dask_worker_end_the_sweep(cluster):
    with pytest.raises(rk.RooflinekitError, match="dask workers died again and again on piece 1"):
        list(execute(partial(answer, SweepJob()), [Piece(0, Deadly(0, None))], scheduler=cluster.scheduler_address))


def test_a_dask_cluster_that_gets_no_worker_is_not_waited_for_without_end(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="needs the extra: cluster")
    monkeypatch.setattr("rooflinekit.simulation.execute._IDLE", 0.3)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        pytest.raises(rk.RooflinekitError, match="no dask worker at inproc"),
    ):
        whole(MIXED, SweepJob(), Means(scheduler=cluster.scheduler_address))


def test_a_lost_scheduler_is_said_and_an_error_of_a_piece_is_its_own():
    class Future:
        status = "pending"

    with pytest.raises(rk.RooflinekitError, match="scheduler at tcp://x:1 has gone"), _connected("tcp://x:1", Future()):
        raise OSError("closed")
    Future.status = "error"
    with pytest.raises(FileNotFoundError), _connected("tcp://x:1", Future()):
        raise FileNotFoundError


def test_a_scheduler_that_is_not_there_is_refused():
    pytest.importorskip("distributed", reason="needs the extra: cluster")
    with pytest.raises(rk.InputError, match="no dask scheduler answers at"):
        rk.sweep("llama-3-8b", scheduler="nonsense://x")


class TestCosts:
    def test_by_hand(self):
        row = rk.sweep("llama-3-8b", batch=32, tp=2, price=3.0, calibration="none").iloc[0]
        assert row["usd_per_hour"] == 6.0
        assert row["usd_per_million_output_tokens"] == pytest.approx(6.0 / (row["output_tok_s"] * 3600) * 1e6)
        assert row["price_source"] == "given"

    def test_of_the_accelerators_file(self):
        table = rk.sweep("llama-3-8b", gpu=["h100-sxm", "l40s"], calibration="none")
        quote = rk.load_accelerator("h100-sxm").value.price
        assert table["usd_per_hour"].tolist() == pytest.approx([quote.usd_per_hour, np.nan], nan_ok=True)
        assert quote.date in table["price_source"][0]
        assert table["price_source"][1] == ""

    def test_an_unknown_accelerator_has_none(self):
        rows = pd.DataFrame({"gpu": ["h1000"], "gpus": [np.nan], "output_tok_s": [np.nan]})
        assert with_costs(rows, None)["usd_per_hour"].isna().all()


class TestSimulated:
    def test_a_row_is_what_simulate_says(self):
        table = rk.sweep("llama-3-8b", rate=[2.0, 8.0], requests=30, isl=100, osl=10, ttft=50.0, seed=3, simulate=True)
        for row in table.to_dict("records"):
            same = {"rate": row["rate"], "requests": 30, "isl": 100, "osl": 10, "ttft_ms": 50.0, "seed": 3}
            expected = rk.simulate("llama-3-8b", **same).to_row()
            for name in ("ttft_p99_ms", "tpot_mean_ms", "goodput", "finished", "output_tok_s", "duration_s"):
                assert row[name] == expected[name]

    def test_a_row_that_cannot_run_says_so(self):
        table = rk.sweep("llama-3-8b", rate=[1.0, -1.0], requests=5, isl=64, osl=4, calibration="none", simulate=True)
        assert table["error"].ne("").tolist() == [False, True]
        assert table["finished"].isna().tolist() == [False, True]

    def test_other_keywords_are_those_of_simulate(self):
        with pytest.raises(rk.InputError, match="unknown option 'replica'; nearest: replicas"):
            rk.sweep("llama-3-8b", rate=1, replica=2, simulate=True)


def test_carbon_is_a_column_and_not_of_simulations():
    table = rk.sweep("llama-3-8b", batch=[1, 2], carbon=360.0)
    at_plug = table["energy_per_output_token_j"] * table["plug_w_per_gpu"] / table["power_w_per_gpu"]
    expected = at_plug / 10.0  # 360 g/kWh: 1e-4 g a joule, 0.1 kg a million of them
    assert table["co2_kg_per_million_output_tokens"].tolist() == pytest.approx(expected.tolist())
    with pytest.raises(rk.InputError, match="simulated rows have no energy"):
        rk.sweep("llama-3-8b", batch=[1], simulate=True, carbon=360.0)


def test_what_is_compared_is_named_beside_values_that_do_not_say_it():
    words = ["sweep", "llama-3-8b", "--tp", "1,2", "--batch", "1,8,64"]
    said = CliRunner().invoke(app, words).stdout
    assert "x: over tp 1, *" in said
    assert "tok/s of a user   tp 1" in said
    assert "x: over h100-sxm, *" in CliRunner().invoke(app, [*words[:2], "--gpu", "h100-sxm,l40s", *words[4:]]).stdout

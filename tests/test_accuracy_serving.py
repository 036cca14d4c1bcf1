"""Whole requests against measured tables: figures that belong together, errors that were put in, the shipped table."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.evidence.accuracy_serving import (
    METRICS,
    QUANTILE_METRICS,
    predict_group,
    published_table,
    read_serving_table,
    served_groups,
    serving_accuracy,
)
from rooflinekit.specs.calibration.load import load_calibration

STATIC = {
    "model": "llama-3-8b", "gpu": "h100-sxm", "tp": 2, "engine": "vllm", "load": "static", "isl": 1024, "osl": 256,
    "concurrency": 8, "source_key": "mine",
}  # fmt: skip

MEANS = [metric for metric in METRICS if metric not in QUANTILE_METRICS]


def write(path, rows):
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def predicted(path, calibration=None):
    """Each row's prediction, in the order of the file."""
    found = [(group.table.index, predict_group(group)) for group in groups(path, calibration)]
    size = sum(len(index) for index, _ in found)
    out = np.full(size, np.nan)
    for index, answer in found:
        out[index] = answer.value
    return out


def groups(path, calibration=None):
    unanswered = Counter()
    yield from served_groups(read_serving_table(path), calibration, unanswered)
    assert not unanswered


def figures(path, calibration=None, **row):
    """Every metric of one row."""
    write(path, [STATIC | row | {"metric": metric, "value": 1.0} for metric in MEANS])
    return dict(zip(MEANS, predicted(path, calibration), strict=True))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# --- identities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", [None, "none"])
def test_the_figures_of_a_static_batch_belong_together(tmp_path, calibration):
    f = figures(tmp_path / "rows.csv", calibration)
    assert f["e2e_ms"] == pytest.approx(f["ttft_ms"] + 255 * f["tpot_ms"])
    assert f["output_tok_s_total"] == pytest.approx(8 * 256 / f["e2e_ms"] * 1e3)
    assert f["output_tok_s_per_gpu"] == pytest.approx(f["output_tok_s_total"] / 2)
    assert f["output_tok_s_per_user"] == pytest.approx(1e3 / f["tpot_ms"])
    assert f["prefill_tok_s"] == pytest.approx(8 * 1024 / f["ttft_ms"] * 1e3)


@pytest.mark.parametrize("calibration", [None, "none"])
def test_a_static_row_is_what_estimate_says(tmp_path, calibration):
    f = figures(tmp_path / "rows.csv", calibration)
    e = rk.estimate("llama-3-8b", "h100-sxm", batch=8, isl=1024, osl=256, tp=2, calibration=calibration)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s_per_user", "output_tok_s_per_gpu"):
        assert f[name] == pytest.approx(getattr(e, name), rel=1e-9), name


def test_a_row_without_an_output_length_still_has_a_first_token(tmp_path):
    with_length = figures(tmp_path / "rows.csv")["ttft_ms"]
    assert figures(tmp_path / "rows.csv", osl=np.nan)["ttft_ms"] == with_length


def test_what_does_not_fit_waits_its_turn(tmp_path):
    """Twice what fits takes two passes: twice the time, and the same throughput."""
    room = rk.estimate("llama-3-8b", "h100-sxm", isl=4096, osl=512).memory.max_batch
    once, twice = (
        figures(tmp_path / "rows.csv", tp=1, isl=4096, osl=512, concurrency=users) for users in (room, 2 * room)
    )
    assert twice["e2e_ms"] == pytest.approx(2 * once["e2e_ms"], rel=0.02)
    assert twice["output_tok_s_total"] == pytest.approx(once["output_tok_s_total"], rel=0.02)
    assert twice["tpot_ms"] == pytest.approx(once["tpot_ms"], rel=0.02)


def test_a_queue_that_a_note_counts_ends(tmp_path):
    """One request takes what it takes alone; those of a queue without a count keep all places taken."""
    row = {"engine": "trtllm", "load": "saturated", "metric": "output_tok_s_total", "value": 1.0, "concurrency": None}
    notes = ("offline, 1 requests", "1,000 requests", "all requests at once")
    write(tmp_path / "rows.csv", [STATIC | row | {"notes": note} for note in notes])
    one, some, endless = predicted(tmp_path / "rows.csv")
    assert one == pytest.approx(
        figures(tmp_path / "one.csv", engine="trtllm", concurrency=1)["output_tok_s_total"], rel=0.03
    )
    assert one < some < endless


RATE = {"load": "poisson", "concurrency": None, "osl": 200}


def test_a_load_that_comes_at_a_rate_is_what_estimate_says(tmp_path):
    found = figures(tmp_path / "rows.csv", rate=6.0, **RATE)
    lengths = {"isl": "uniform:935-1113", "osl": "uniform:183-217"}  # the usual client's: 8.7 % either way
    said = rk.estimate("llama-3-8b", gpu="h100-sxm", tp=2, rate=6.0, **lengths)
    assert (found["ttft_ms"], found["tpot_ms"]) == (said.ttft_ms, said.tpot_ms)
    assert found["output_tok_s_total"] == pytest.approx(said.output_tok_s, rel=1e-12)
    assert found["output_tok_s_total"] == pytest.approx(6.0 * 200.0, rel=0.06)


@pytest.mark.parametrize("load", [RATE | {"rate": 6.0}, {"concurrency": 8, "load": "concurrency"}, {"concurrency": 8}])
def test_replicas_share_a_load_evenly(tmp_path, load):
    """Twice the load on two servers is as fast as one of them is, and gives twice the tokens."""
    one = figures(tmp_path / "one.csv", **load)
    twice = {key: 2 * load[key] for key in ("rate", "concurrency") if load.get(key)}
    two = figures(tmp_path / "two.csv", **load | twice, replicas=2, n_gpus=4)
    total, near = ("output_tok_s_total", "prefill_tok_s"), 1e-9 if load.get("load") is None else 0.25  # of chance
    assert two == pytest.approx({name: one[name] * (2 if name in total else 1) for name in one}, rel=near)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rate": 1e4}, "cannot be sustained"),
        ({"rate": None}, "'rate' is empty"),
        ({"rate": -1.0}, "'rate' is empty or not above 0"),
        ({"rate": 1.0, "replicas": 2, "n_gpus": 2}, "n_gpus=2 is not tp·pp·dp·replicas = 4"),
        ({"rate": 1.0, "replicas": 0}, "replicas"),
    ],
)
def test_what_a_rate_cannot_be_is_said(tmp_path, row, said):
    path = write(tmp_path / "rows.csv", [STATIC | RATE | row | {"metric": "ttft_ms", "value": 50.0}])
    (reason,) = serving_accuracy([path]).unanswered
    assert said in reason


@pytest.mark.parametrize("load", ["static", "concurrency"])
def test_nothing_is_faster_than_the_bound(tmp_path, load):
    expected, bound = (figures(tmp_path / "rows.csv", calibration, load=load) for calibration in (None, "none"))
    for metric in MEANS:
        faster = 1 if "tok_s" in metric else -1
        assert faster * (bound[metric] - expected[metric]) >= 0, metric


def test_a_run_of_so_many_requests_ends_at_any_rate(tmp_path):
    """300 requests in a burst: the mean waits for half of the run, as `estimate` says of the same run."""
    row = STATIC | {"load": "poisson", "concurrency": None, "rate": 1e4, "requests": 300, "value": 1.0}
    rows = [row | {"metric": metric} for metric in ("ttft_ms", "e2e_ms")]
    found = predicted(write(tmp_path / "rows.csv", rows))
    same = rk.estimate("llama-3-8b", tp=2, rate=1e4, requests=300, isl=1024, osl=256)
    assert found == pytest.approx([same.ttft_ms, same.e2e_ms], rel=0.05)  # lengths are drawn within 9 %


def test_one_user_of_a_closed_loop_is_a_batch_of_one(tmp_path):
    """Nobody else's prompt is in the way: the step is the static one."""
    loop, batch = (figures(tmp_path / "rows.csv", load=load, concurrency=1) for load in ("concurrency", "static"))
    assert loop["tpot_ms"] == pytest.approx(batch["tpot_ms"], rel=0.05)


@given(users=st.integers(1, 64), osl=st.integers(2, 2048))
def test_more_work_takes_longer(tmp_path_factory, users, osl):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    rows = [(users, osl), (users + 8, osl), (users, osl + 64)]
    write(path, [STATIC | {"concurrency": u, "osl": n, "metric": "e2e_ms", "value": 1.0} for u, n in rows])
    least, wider, longer = predicted(path)
    assert wider >= least
    assert longer > least


# --- scores ---------------------------------------------------------------------------------------------------------


def scored_rows(path, factor=1.0, **row):
    """A table that measured `factor` times what is predicted."""
    rows = [STATIC | row | {"concurrency": users, "metric": "tpot_ms", "value": 1.0} for users in (1, 2, 4, 8, 16, 32)]
    write(path, rows)
    return write(path, [r | {"value": factor * v} for r, v in zip(rows, predicted(path), strict=True)])


def test_errors_are_those_that_were_put_in(tmp_path):
    result = run("accuracy", "serving", scored_rows(tmp_path / "rows.csv", 1.25), "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == ["rows", "answered", "unanswered", "groups", "summary", "version", "calibrations"]
    (group,) = found["groups"]
    assert list(group) == [
        "key",
        "n",
        "answered",
        "median_ape",
        "mape",
        "p90_ape",
        "bias",
        "median_bias",
        "coverage90",
        "coverage80",
        "width",
        "width80",
        "interval_score",
    ]
    assert group["key"] == {"source_key": "mine", "model": "llama-3-8b", "gpu": "h100-sxm", "metric": "tpot_ms"}
    assert group["n"] == group["answered"] == found["rows"] == 6
    assert group["median_ape"] == pytest.approx(0.2)
    assert group["bias"] == pytest.approx(-0.2)
    assert found["summary"]["tpot_ms"]["mape"] == pytest.approx(0.2)


def test_what_is_measured_as_predicted_lies_in_the_interval(tmp_path):
    (group,) = serving_accuracy([scored_rows(tmp_path / "rows.csv")]).groups
    assert group.median_ape == pytest.approx(0.0, abs=1e-9)
    assert group.coverage90 == 1.0
    (group,) = serving_accuracy([scored_rows(tmp_path / "rows.csv", 10.0)]).groups
    assert group.coverage90 == 0.0


def test_the_bound_has_no_interval(tmp_path):
    (group,) = serving_accuracy([scored_rows(tmp_path / "rows.csv")], "none").groups
    assert group.coverage90 is None
    assert group.bias < 0


@pytest.mark.parametrize("style", ["json", "csv", "md", "table"])
def test_every_output_names_the_version_and_the_calibration(tmp_path, style):
    result = run("accuracy", "serving", scored_rows(tmp_path / "rows.csv"), "--format", style)
    assert rk.__version__ in result.stdout
    assert load_calibration("h100-sxm--vllm").hash in result.stdout


def test_the_csv_has_a_row_a_group(tmp_path):
    path = scored_rows(tmp_path / "rows.csv")
    both = pd.concat([pd.read_csv(path), pd.read_csv(path).assign(source_key="other")])
    both.to_csv(path, index=False)
    rows = list(csv.DictReader(io.StringIO(run("accuracy", "serving", path, "--format", "csv").stdout)))
    assert [row["source_key"] for row in rows] == ["mine", "other"]
    assert set(rows[0]) == {
        "source_key", "model", "gpu", "metric", "n", "answered", "median_ape", "mape", "p90_ape", "bias",
        "median_bias", "coverage90", "coverage80", "width", "width80", "interval_score",
        "calibration", "version",
    }  # fmt: skip


@pytest.mark.parametrize("style", ["json", "md", "table"])
def test_rows_without_an_answer_are_counted_and_said(tmp_path, style):
    path = scored_rows(tmp_path / "rows.csv")
    lost = [STATIC | {"metric": "tpot_ms", "value": 1.0} | row for row in ({"tp": 3}, {"tp": 3}, {"model": "gpt-9"})]
    lost.append(STATIC | {"metric": "tpot_ms", "value": np.nan})
    pd.concat([pd.read_csv(path), pd.DataFrame(lost)]).to_csv(path, index=False)
    result = run("accuracy", "serving", path, "--format", style)
    assert result.exit_code == 4
    if style == "json":
        found = json.loads(result.stdout)
        assert (found["rows"], found["answered"]) == (10, 6)
        assert sorted(found["unanswered"].values()) == [1, 1, 2]
    else:
        assert "6 of 10 rows answered" in result.stdout
        assert "2 rows not answered: tp=3" in result.stdout
        assert "unknown model 'gpt-9'" in result.stdout


def test_rows_without_an_answer_stand_in_their_group(tmp_path):
    path = scored_rows(tmp_path / "rows.csv")
    pd.concat([pd.read_csv(path), pd.DataFrame([STATIC | {"tp": 3, "metric": "tpot_ms", "value": 1.0}])]).to_csv(path)
    (group,) = serving_accuracy([path]).groups
    assert (group.n, group.answered) == (7, 6)


def test_a_table_without_any_answer_is_no_crash(tmp_path):
    path = write(tmp_path / "rows.csv", [STATIC | {"metric": "tpot_ms", "value": 1.0, "model": "gpt-9"}])
    for style in ("json", "csv", "md", "table"):
        assert run("accuracy", "serving", path, "--format", style).exit_code == 4


def test_bad_input_is_one_line(tmp_path):
    result = run("accuracy", "serving", tmp_path / "nothing.csv")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "nothing.csv" in result.stderr


def test_a_file_is_never_overwritten_unasked(tmp_path):
    path, out = scored_rows(tmp_path / "rows.csv"), tmp_path / "out.json"
    out.write_text("kept")
    assert run("accuracy", "serving", path, "--out", out).exit_code == 2
    assert out.read_text() == "kept"
    assert run("accuracy", "serving", path, "--format", "json", "--out", out, "--force").exit_code == 0
    assert json.loads(out.read_text())["rows"] == 6


# --- the shipped table ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    return serving_accuracy([published_table()])


def test_every_published_figure_is_answered(published):
    assert (published.answered, published.unanswered) == (published.rows, {})


def test_published_figures_are_met(published):
    """The costs of engines were fitted with these rows among others (docs/accuracy.md): 6 and 16 % when written."""
    static = {row.source_key for row in read_serving_table(published_table()).itertuples() if row.load == "static"}
    errors = [(group.key["source_key"] in static, group.median_ape) for group in published.groups]
    assert np.median([error for alone, error in errors if alone]) < 0.09
    assert np.median([error for alone, error in errors if not alone]) < 0.25
    sides = [(group.key["source_key"] in static, group.key["metric"], group.median_bias) for group in published.groups]
    assert abs(np.median([side for alone, _, side in sides if alone])) < 0.04
    assert abs(np.median([side for alone, metric, side in sides if not alone and "tok_s" in metric])) < 0.05
    first = np.median([side for alone, metric, side in sides if not alone and metric == "ttft_ms"])
    assert -0.35 < first < 0.1  # first tokens under load come later than predicted


def test_no_published_figure_beats_the_bound():
    table = read_serving_table(published_table())
    for group in served_groups(table, "none", Counter()):
        bound, measured = predict_group(group).value, group.column("value")
        rate = group.table["metric"].str.contains("tok_s").to_numpy()
        slack = np.where(rate, bound / measured, measured / bound)
        assert (slack >= 1.0).all(), group.table["id"][slack < 1.0].tolist()


# --- the report -----------------------------------------------------------------------------------------------------


def test_the_docs_say_what_the_report_measured():
    """Medians over groups, from the CSV that the report writes."""
    root = published_table().parents[1]
    errors = pd.read_csv(root / "reports" / "data" / "accuracy-serving.csv")
    block = (root / "docs" / "accuracy.md").read_text(encoding="utf-8").split("<!-- accuracy-serving -->")[1]
    lines = [line.strip("| \n").split(" | ") for line in block.split("<!-- /accuracy-serving -->")[0].splitlines()]
    stated = {tuple(cells[0].split(", tier ")): cells[1:] for cells in lines if ", tier " in cells[0]}
    assert len(stated) == len(errors[["kind", "tier"]].drop_duplicates())
    for (kind, tier), cells in stated.items():
        own = errors[(errors["kind"] == kind) & (errors["tier"] == tier)]
        ways = own[["model_out", "source_out", "bound", "textbook", "derated"]].median()
        assert cells[0] == f"{own['n'].sum():,}"
        stated_errors = [float(cell.removesuffix(" %")) for cell in cells[1:]]
        assert stated_errors == pytest.approx(100.0 * ways.to_numpy(), abs=0.06)  # both are rounded


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_mark_behind_each_row_shifts_no_column(tmp_path, mark):
    """As some spreadsheets write them: rows that end in the mark, whose header does not."""
    plain = write(tmp_path / "plain.csv", [STATIC | {"metric": "tpot_ms", "value": 9.0}])
    header, row = plain.read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text(f"{header}\n{row},\n".replace(",", mark))
    assert predicted(other).tolist() == predicted(plain).tolist()

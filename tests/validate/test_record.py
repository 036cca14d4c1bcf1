"""The measurement file: complete rows survive, two runs never mix, and what cannot be is refused by line."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE, interruptible

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.cli.validate import _drift  # noqa: E402
from rooflinekit.evidence.kernel_fit.groups import kernel_tables, read_measurements  # noqa: E402
from rooflinekit.model.types.errors import InputError, SpecError  # noqa: E402
from rooflinekit.validate import record  # noqa: E402
from rooflinekit.validate.device import Device  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402

CPU = Device(torch.device("cpu"), "test cpu", 1, 2**34, 2**20, {})
TIMED = {"latency_us": 5.0, "p10_us": 4.0, "p90_us": 6.0, "repeats": 3, "samples_us": [4.0, 5.0, 6.0]}


def gemm(m=1, backend="torch linear", key="a", **other):
    return {"op": "gemm", "backend": backend, "dtype": "fp32", "m": m, "n": 64, "k": 64, "key": key, **TIMED, **other}


def head(suite="quick"):
    return header(CPU, suite, "gpt2")


def test_what_is_written_is_read_again(tmp_path):
    with Recorder(tmp_path, head()) as recorder:
        recorder.row(gemm())
        recorder.row({"op": "gemm", "backend": "x", "status": "missing", "detail": "no such kernel"})
        recorder.end("complete")
    found = read_measurements(tmp_path / FILE)
    assert found.header["device"]["name"] == "test cpu"
    assert found.counts == {"ok": 1, "missing": 1}
    assert found.of("gemm")[0]["samples_us"] == [4.0, 5.0, 6.0]
    assert found.ending == "complete"


@pytest.mark.parametrize(("times", "noted"), [((100.0, 104.0), 0), ((100.0, 130.0, 101.0), 1)])
def test_a_machine_that_drifts_is_noted(tmp_path, times, noted):
    with Recorder(tmp_path, head()) as recorder:
        for number, us in enumerate(times):
            recorder.row({"op": "sentinel", "backend": "torch", "kind": "gemm", "key": str(number), **TIMED,
                          "latency_us": us, "p10_us": us, "p90_us": us})  # fmt: skip
    lines = _drift(read_measurements(tmp_path / FILE))
    assert len(lines) == noted
    assert all("the same gemm took 100 to 130 us" in line for line in lines)


def test_a_row_is_on_its_way_to_the_disk_before_the_next_is_measured(tmp_path):
    with Recorder(tmp_path, head()) as recorder:
        recorder.row(gemm())
        assert len(read_measurements(tmp_path / FILE).rows) == 1


def test_half_a_line_is_left_out_and_cut_off_when_the_run_goes_on(tmp_path):
    with Recorder(tmp_path, head()) as recorder:
        recorder.row(gemm())
        run = recorder.run
    with (tmp_path / FILE).open("a") as file:
        file.write('{"type": "row", "op": "ge')
    assert len(read_measurements(tmp_path / FILE).rows) == 1
    with Recorder(tmp_path, head(), resume=True) as recorder:
        assert recorder.done == {"a"}
        assert recorder.run == run
        recorder.row(gemm(m=2, key="b"))
    assert [row["m"] for row in read_measurements(tmp_path / FILE).rows] == [1, 2]


def test_a_run_is_not_overwritten_unless_told(tmp_path):
    with Recorder(tmp_path, head()) as recorder:
        recorder.row(gemm())
    with pytest.raises(InputError, match="exists; add --resume to go on with it, or --force"):
        Recorder(tmp_path, head())
    with Recorder(tmp_path, head(), force=True):
        assert not read_measurements(tmp_path / FILE).rows


def test_another_run_is_not_continued(tmp_path):
    with Recorder(tmp_path, head()):
        pass
    with pytest.raises(InputError, match="another run: suite 'quick', now 'full'"):
        Recorder(tmp_path, head("full"), resume=True)


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    pytest.importorskip("fcntl")
    with Recorder(tmp_path, head()), pytest.raises(InputError, match="another run is writing here"):
        Recorder(tmp_path, head(), force=True)
    with Recorder(tmp_path, head(), force=True):
        pass  # the lock went with the run


def test_a_full_disk_leaves_complete_rows_and_says_so(tmp_path, monkeypatch):
    def full(file, text):
        file.write(text[: len(text) // 2])
        file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Recorder(tmp_path, head()) as recorder:
        recorder.row(gemm())
        monkeypatch.setattr(record, "_append", full)
        with pytest.raises(InputError, match=r"No space left on device; its 1 rows are kept, and --resume"):
            recorder.row(gemm(m=2))
    assert (tmp_path / FILE).read_bytes().endswith(b"\n")
    assert len(read_measurements(tmp_path / FILE).rows) == 1


def write(path: Path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("change", "said"), [
    ({"run": "other"}, "line 2: run 'other' in a file of run"),
    ({"latency_us": 0}, "line 2: latency_us = 0 is not a time above 0"),
    ({"latency_us": "5"}, "line 2: latency_us = '5' is not a time above 0"),
    ({"p90_us": 4.5}, "line 2: latency_us is not between p10_us and p90_us"),
    ({"status": "fine"}, "line 2: status 'fine' is not one of ok, oom, missing, failed"),
    ({"backend": None}, "line 2: backend = None is not a str"),
])  # fmt: skip
def test_a_row_that_cannot_be_is_refused_by_line(tmp_path, change, said):
    first = head()
    row = {"type": "row", "run": first["run"], "status": "ok", "detail": "", **gemm(), **change}
    with pytest.raises(SpecError, match=said):
        read_measurements(write(tmp_path / "a.jsonl", first, row))


@pytest.mark.parametrize(("text", "said"), [
    ("", "line 1 is not the header"),
    ('{"type": "row"}\n', "line 1 is not the header"),
    ("not json\n", "line 1: is not valid JSON"),
    ("[]\n", "line 1: is not a JSON object"),
])  # fmt: skip
def test_a_file_that_is_no_measurement_is_refused(tmp_path, text, said):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_measurements(tmp_path / "a.jsonl")


def test_another_schema_is_refused(tmp_path):
    with pytest.raises(SpecError, match="schema 99; this version reads 1"):
        read_measurements(write(tmp_path / "a.jsonl", {**head(), "schema": 99}))


def test_the_fastest_backend_of_a_shape_is_what_an_engine_would_run(tmp_path):
    with Recorder(tmp_path, head()) as recorder:
        recorder.row(gemm())
        recorder.row(gemm(backend="slow", key="b", latency_us=50.0, p90_us=60.0))
        recorder.row(gemm(m=8, key="c", latency_us=5.5))
    ((name, table),) = kernel_tables(read_measurements(tmp_path / FILE))
    assert name == "gemm"
    assert table["latency_us"].tolist() == [5.0, 5.5]
    assert set(table["residency"]) == {"cold"}
    assert set(table["gpu"]) == {"test cpu"}


RUN = """
import sys
import time
from rooflinekit.validate import plan, record, suite
from rooflinekit.validate.plan import Extent
suite.EXTENTS["cpu", "quick"] = Extent((1, 4), (16, 32), (1, 2), 1, (1e-7, 1e-4), 256)
suite.EXTENTS["cpu", "full"] = suite.EXTENTS["cpu", "quick"]
suite._run_ceilings = lambda run: True
append, rows = record._append, int(sys.argv.pop())

def appended(file, text):  # the head, and so many rows; then it is as slow as a large kernel
    global rows
    append(file, text)
    rows -= 1
    if rows < 0:
        time.sleep(600.0)

record._append = appended
suite._rates = lambda run: suite.Rates(100e9, 20e9)
sys.argv = ["rooflinekit", "validate", "--suite", "kernels", "--device", "cpu", "--model", "gpt2", *sys.argv[1:]]
from rooflinekit.cli import main
main()
"""


def started(tmp_path, *options):
    command = [sys.executable, "-c", RUN, "--out", str(tmp_path), *options, "8"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    )


def wait_for_rows(path: Path, process, count=3):
    for _ in range(int(PATIENCE / 0.05)):
        if process.poll() is not None or (path.is_file() and path.read_bytes().count(b"\n") > count):
            return
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_run_that_is_stopped_leaves_a_readable_file_and_goes_on(tmp_path):
    """Killed; gone on with; interrupted."""
    killed = started(tmp_path)
    wait_for_rows(tmp_path / FILE, killed)
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    found = read_measurements(tmp_path / FILE)
    assert found.ending == ""
    assert len(found.rows) >= 3
    again = started(tmp_path, "--resume")
    wait_for_rows(tmp_path / FILE, again, count=len(found.rows) + 3)
    again.send_signal(signal.SIGINT)
    _, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 130, errors
    found_again = read_measurements(tmp_path / FILE)
    rows = found_again.rows
    assert found_again.ending == "interrupted"
    assert f"interrupted; {len(rows)} rows are kept in {tmp_path / FILE}, and --resume goes on" in errors
    assert len(rows) > len(found.rows)
    assert len({row["key"] for row in rows}) == len(rows)

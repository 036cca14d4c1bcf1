"""A run from end to end at tiny shapes, and what becomes of its file."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.cli.app import app  # noqa: E402
from rooflinekit.evidence.kernel_fit.groups import read_measurements  # noqa: E402
from rooflinekit.specs import load_accelerator  # noqa: E402
from rooflinekit.validate import ceilings, points, suite, timing  # noqa: E402
from rooflinekit.validate.case import TimedCase, TimedWork  # noqa: E402
from rooflinekit.validate.ceilings import collective_rows  # noqa: E402
from rooflinekit.validate.device import Device, open_device  # noqa: E402
from rooflinekit.validate.plan import Extent, kernel_cases  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402
from rooflinekit.validate.spec import cpu_spec  # noqa: E402
from rooflinekit.validate.supervise import Supervisor  # noqa: E402

TINY = Extent((1, 3), (8, 16), (1, 2), 1, (1e-9, 1e-5), 256)


def run(*arguments):
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


@pytest.fixture
def tiny(monkeypatch):
    """The suites at shapes that take no time, without the processes of an all-reduce."""
    threads = torch.get_num_threads()
    monkeypatch.setitem(suite.EXTENTS, ("cpu", "quick"), TINY)
    monkeypatch.setitem(suite.EXTENTS, ("cpu", "full"), TINY)
    monkeypatch.setattr(suite, "_SECONDS", {"quick": 0.0, "full": 0.0})
    monkeypatch.setattr(timing, "_REPEATS", (1, 1))
    monkeypatch.setattr(suite, "kernel_cases", lambda *plan: [case for case in kernel_cases(*plan) if case.bytes < 4e6])
    monkeypatch.setitem(points.GRID, "cpu", ())
    monkeypatch.setattr(suite, "collective_rows", lambda device, quick: iter(()))
    monkeypatch.setattr(ceilings, "_gemm_sizes", lambda device, quick: (512,))  # long beside a turn of a busy core
    monkeypatch.setattr(ceilings, "LARGEST", {"cpu": 24})  # a cache alone would be faster than any memory
    monkeypatch.setattr(Supervisor, "run", lambda self: suite.run_suite(  # another process would not see the above
        suite.SuiteRun(self.device, self.suite, self.model, self.recorder, self.deadline, self.say)
    ))  # fmt: skip
    yield
    torch.set_num_threads(threads)


@pytest.mark.long
def test_from_a_run_to_an_estimate_on_this_machine(tiny, tmp_path):
    """validate, calibrate, estimate, accuracy: the example of the README, at shapes that say nothing about speed."""
    result = run("--device", "cpu", "--model", "smollm2-135m", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = read_measurements(tmp_path / FILE)
    assert found.ending == "complete"
    assert found.counts.keys() == {"ok"}
    assert found.header["device"]["kind"] == "cpu"
    spec = tmp_path / "this-cpu.yaml"
    chip = load_accelerator(str(spec)).value
    assert all(rate > 1e8 for rate in chip.peaks.values())
    assert "measured by rooflinekit validate, run " + found.header["run"] in chip.sources[0].title
    said = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("  rooflinekit ")]
    fit, scores = (CliRunner().invoke(app, words) for words in said)
    assert (fit.exit_code, scores.exit_code) == (0, 0), fit.output + scores.output
    assert "gemm/fp32" in fit.stdout
    assert "not answered" not in scores.stdout
    out = tmp_path / "gpt-fast.yaml"
    formats = [word for name in ("--weights", "--activations", "--kv") for word in (name, "fp32")]
    answer = CliRunner().invoke(
        app, ["estimate", "smollm2-135m", "--gpu", str(spec), "--calibration", str(out), "--engine", "gpt-fast",
              *formats, "--format", "json"],
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["level"] == "expected"


def test_a_disk_that_is_full_for_the_accelerator_file_is_named(tiny, tmp_path):
    (tmp_path / "this-cpu.yaml").mkdir()  # nothing can be written there, as root too
    result = run("--suite", "ceilings", "--device", "cpu", "--out", tmp_path)
    assert result.exit_code == 2
    assert "this-cpu.yaml: Is a directory; the rows are in " in " ".join(result.stderr.split())


def test_a_run_goes_on_where_it_stopped(tiny, tmp_path):
    assert run("--suite", "ceilings", "--device", "cpu", "--out", tmp_path).exit_code == 0
    before = (tmp_path / FILE).read_text().splitlines()
    assert "exists; add --resume" in run("--suite", "ceilings", "--device", "cpu", "--out", tmp_path).stderr
    lines = before[: len(before) // 2]
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    assert run("--suite", "ceilings", "--device", "cpu", "--out", tmp_path, "--resume").exit_code == 0
    rows = read_measurements(tmp_path / FILE).rows
    assert [row["key"] for row in rows] == [json.loads(line)["key"] for line in before[1:-1]]


@pytest.mark.parametrize("name", ["quick", "full", "ceilings", "kernels"])
def test_no_time_is_said_and_is_no_error(tiny, tmp_path, name):
    result = run("--device", "cpu", "--out", tmp_path, "--budget", "0.000001", "--suite", name)
    assert result.exit_code == 0
    assert "were not enough for all; --resume measures the rest" in result.stdout
    assert read_measurements(tmp_path / FILE).ending == "budget"


@pytest.mark.parametrize(("arguments", "said"), [
    (["--suite", "quik", "--out", "x"], "unknown suite 'quik'; nearest: quick"),
    (["--device", "cuda:7", "--out", "x"], "no device 'cuda:7' here"),
    ([], "validate needs --out DIR"),
    (["--out", "x", "--budget", "0"], "budget must be above 0, not 0"),
    (["--out", "x", "--model", "gpt22"], "unknown model 'gpt22'"),
    (["--out", "x", "--force", "--resume"], "give one of them"),
])  # fmt: skip
def test_a_command_line_that_makes_no_sense(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    device = [] if "--device" in arguments else ["--device", "cpu"]
    result = run(*arguments, *device)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "x").exists()


def raises(error):
    def build():
        raise error

    return build


@pytest.mark.parametrize(("build", "status", "said"), [
    (raises(ImportError("No module named 'flashinfer'")), "missing", "flashinfer"),
    (raises(RuntimeError("No available kernel. Aborting execution.")), "missing", "No available kernel"),
    (raises(torch.OutOfMemoryError("CUDA out of memory")), "oom", "out of memory"),
    (raises(MemoryError()), "oom", "out of memory"),
    (raises(RuntimeError("shapes differ")), "failed", "RuntimeError: shapes differ"),
    (lambda: TimedWork(lambda x: x + 1, (torch.ones(4),)), "ok", ""),
])  # fmt: skip
def test_a_kernel_that_does_not_run_is_a_row_and_not_the_end(tmp_path, build, status, said):
    here = open_device("cpu")
    cases = [TimedCase("gemm", "x", {"dtype": "fp32", "m": 1, "n": 1, "k": 1}, 4.0, build)]
    cases.append(
        TimedCase(
            "gemm", "y", {"dtype": "fp32", "m": 1, "n": 1, "k": 1}, 4.0, lambda: TimedWork(torch.neg, (torch.ones(4),))
        )
    )
    with Recorder(tmp_path, header(here, "quick", "gpt2")) as recorder:
        assert suite.run_cases(suite.SuiteRun(here, "quick", "gpt2", recorder, float("inf")), cases)
    first, second = (row for row in read_measurements(tmp_path / FILE).rows if row["op"] != "sentinel")
    assert (first["status"], second["status"]) == (status, "ok")
    assert said in first["detail"]


def test_a_case_larger_than_the_memory_is_not_tried(tmp_path):
    here = open_device("cpu")
    case = TimedCase("gemm", "x", {"dtype": "fp32", "m": 1, "n": 1, "k": 1}, 1e15, raises(AssertionError("tried")))
    with Recorder(tmp_path, header(here, "quick", "gpt2")) as recorder:
        suite.run_cases(suite.SuiteRun(here, "quick", "gpt2", recorder, float("inf")), [case])
    *sentinels, row = read_measurements(tmp_path / FILE).rows
    assert row["status"] == "oom"
    assert [(each["op"], each["kind"]) for each in sentinels] == [("sentinel", "gemm"), ("sentinel", "copy")]


@pytest.mark.parametrize(("visible", "counts"), [(1, []), (2, [2]), (3, [2, 3]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_collectives_run_over_powers_of_two_and_all_visible_gpus(monkeypatch, visible, counts):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(ceilings, "_together", lambda device, gpus, kinds, sizes: [gpus])
    gpu = Device(torch.device("cuda:0"), "test", 1, 2**34, 2**20, {})
    assert list(ceilings.collective_rows(gpu, quick=True)) == counts


def test_two_processes_run_every_collective_on_the_cpu():
    rows = list(collective_rows(open_device("cpu"), quick=True))
    assert [row.get("detail") for row in rows if "detail" in row] == []
    assert [(row["kind"], row["bytes"]) for row in rows] == [
        (kind, 2**exponent) for kind in ceilings.KINDS for exponent in (10, 16, 22)
    ]
    assert all(row["op"] == "ceiling" and row["gpus"] == 2 and row["value"] > 0 for row in rows)


def test_the_spec_of_a_cpu_is_the_best_that_its_ceilings_show(tmp_path):
    here = open_device("cpu")
    timed = {"latency_us": 5.0, "p10_us": 4.0, "p90_us": 6.0, "repeats": 1, "samples_us": [5.0], "backend": "torch"}
    far = 8 * here.cache_bytes
    with Recorder(tmp_path, header(here, "ceilings", "gpt2")) as recorder:
        for kind, size, value in (("copy", 2**16, 9e11), ("copy", far, 2e10), ("read", far, 3e10)):
            recorder.row({"op": "ceiling", "kind": kind, "bytes": size, "value": value, **timed})
        for value in (1e11, 3e11, 2e11):
            recorder.row({"op": "ceiling", "kind": "gemm", "dtype": "fp32", "value": value, **timed})
    (tmp_path / "this-cpu.yaml").write_text(cpu_spec(read_measurements(tmp_path / FILE)))
    chip = load_accelerator(str(tmp_path / "this-cpu.yaml")).value
    assert next(iter(chip.peaks.values())) == pytest.approx(3e11)
    assert chip.memory_bandwidth == pytest.approx(3e10)  # the caches' rate is not memory's
    assert chip.tile_rows == 1
    assert np.isclose(chip.l2_bytes, here.cache_bytes, rtol=1e-3)

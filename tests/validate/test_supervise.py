"""A process that a kernel kills, hangs or leaves without a GPU costs one row, whatever comes after it is measured."""

import os
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue

import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")

from rooflinekit.evidence.kernel_fit.groups import read_measurements  # noqa: E402
from rooflinekit.model.types.errors import InputError  # noqa: E402
from rooflinekit.validate import gpu, supervise  # noqa: E402
from rooflinekit.validate.device import Device  # noqa: E402
from rooflinekit.validate.record import FILE, Recorder, header  # noqa: E402
from rooflinekit.validate.supervise import Supervisor  # noqa: E402

CPU = Device(torch.device("cpu"), "test cpu", 1, 2**34, 2**20, {})

WORKER = """
import json, os, signal, sys, time
job = json.loads(sys.stdin.readline())
def send(**line): print(json.dumps(line), flush=True)
for name in ("first", "second", "third"):
    if name in job["done"]:
        continue
    row = {"op": "gemm", "backend": name, "key": name}
    send(begin=row)
    if name == "second":
        KERNEL
    timed = dict.fromkeys(("latency_us", "p10_us", "p90_us"), 5.0)
    shape = {"dtype": "fp32", "m": 1, "n": 64, "k": 64, "repeats": 1, "samples_us": [5.0]}
    send(row={**row, **shape, **timed, "launch": "eager" if "gemm, " + name in job["eager"] else "graph"})
send(ending="complete")
"""
"""Three kernels, the second of which does what a test puts there."""


def supervised(folder, kernel, *, limit=PATIENCE, resume=False, retry_failed=False, worker=WORKER):
    """Run the three kernels; how the run ended, and its rows by key."""
    script = worker.replace("KERNEL", kernel)
    with Recorder(folder, header(CPU, "kernels", "gpt2"), resume=resume, retry_failed=retry_failed) as recorder:
        run = Supervisor(CPU, "kernels", "gpt2", recorder, time.monotonic() + PATIENCE, limit=limit,
                         worker=(sys.executable, "-c", script))  # fmt: skip
        ending = run.run()
    return ending, read_measurements(folder / FILE).rows


@pytest.mark.parametrize(("kernel", "said"), [
    ("os.kill(os.getpid(), signal.SIGKILL)", "the process was ended by SIGKILL (twice)"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "the process was ended by SIGSEGV (twice)"),
    ("time.sleep(3600)", "took more than 5 s (twice)"),
    ("send(fault='CUDA error: an illegal memory access was encountered'); sys.exit()", "illegal memory access"),
    ("raise RuntimeError('the compiler gave up')", "exit code 1: RuntimeError: the compiler gave up (twice)"),
    ("os.write(1, b'{\"row\": {\"op\"'); os._exit(7)", "the process ended with exit code 7"),
])  # fmt: skip
def test_a_kernel_that_ends_its_process_is_one_row(tmp_path, kernel, said):
    ending, rows = supervised(tmp_path, kernel, limit=5.0)
    assert ending == "complete"
    assert [(row["backend"], row["status"]) for row in rows] == [("first", "ok"), ("second", "failed"), ("third", "ok")]
    assert said in rows[1]["detail"]


def test_what_went_wrong_once_is_tried_once_more(tmp_path):
    flag = tmp_path / "flag"
    kernel = f"(os.path.exists({str(flag)!r}) or (open({str(flag)!r}, 'w').close(), os._exit(1)))"
    ending, rows = supervised(tmp_path, kernel)
    assert ending == "complete"
    assert [row["status"] for row in rows] == ["ok"] * 3


def test_a_kernel_that_no_graph_can_hold_is_timed_without_one(tmp_path):
    kernel = "'gemm, second' in job['eager'] or (send(uncapturable='stream is capturing'), sys.exit())"
    _, rows = supervised(tmp_path, kernel)
    assert [(row["status"], row["launch"]) for row in rows] == [("ok", "graph"), ("ok", "eager"), ("ok", "graph")]


MANY = """
import json, os, sys
job = json.loads(sys.stdin.readline())
for name in ("a", "b", "c", "d"):
    if name in job["done"]:
        continue
    row = {"op": "gemm", "backend": "faulty", "key": name}
    if "gemm, faulty" in job["wrong"]:
        row |= {"status": "failed", "detail": job["wrong"]["gemm, faulty"]}
        print(json.dumps({"row": row}), flush=True)
        continue
    print(json.dumps({"begin": row}), flush=True)
    os._exit(1)
print(json.dumps({"ending": "complete"}), flush=True)
"""
"""Four shapes of one kernel, each of which ends its process until the kernel is left out."""


def test_a_kernel_that_faults_at_every_shape_does_not_use_up_the_time(tmp_path):
    _, rows = supervised(tmp_path, "", worker=MANY)
    assert [row["status"] for row in rows] == ["failed"] * 4
    assert [row["detail"].startswith("left out after 2 shapes") for row in rows] == [False, False, True, True]


def test_a_row_that_does_not_end_in_time_ends_the_run_and_is_nobodys_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE", 0.0)
    with Recorder(tmp_path, header(CPU, "kernels", "gpt2")) as recorder:
        run = Supervisor(CPU, "kernels", "gpt2", recorder, time.monotonic() + 3.0, limit=PATIENCE,
                         worker=(sys.executable, "-c", WORKER.replace("KERNEL", "time.sleep(3600)")))  # fmt: skip
        assert run.run() == "budget"
    assert {row["status"] for row in read_measurements(tmp_path / FILE).rows} <= {"ok"}


CHECKS = """
import json, os, sys
job = json.loads(sys.stdin.readline())
for name in ("sound", "fatal", "wrong"):
    if name in job["skip"]:
        continue
    print(json.dumps({"group": name}), flush=True)
    if name == "fatal":
        os._exit(9)
    said = {"name": name, "kernel": "gemm, " + name, "failed": name == "wrong", "detail": "off by 0.3"}
    print(json.dumps({"check": said}), flush=True)
print(json.dumps({"ending": "complete"}), flush=True)
"""


def test_checks_that_end_their_process_leave_the_others(tmp_path):
    """And a run that goes on does not check again."""
    for worker in (CHECKS, "raise SystemExit('not to be started')"):
        with Recorder(tmp_path, header(CPU, "kernels", "gpt2"), resume=True) as recorder:
            run = Supervisor(CPU, "kernels", "gpt2", recorder, time.monotonic() + PATIENCE, limit=PATIENCE,
                             worker=(sys.executable, "-c", worker))  # fmt: skip
            lines = run.check()
            recorder.row({"op": "gemm", "backend": "x", "key": "x", "status": "missing"})
        assert run.wrong == {"gemm, wrong": "check: off by 0.3"}
        assert any("fatal failed its check: its process ended" in line for line in lines)


def test_the_process_ends_with_the_one_that_started_it():
    """A kernel that hangs in it would keep the GPU from the next run."""
    script = "import sys; from rooflinekit.validate import worker; sys.exit(worker.main())"
    middle = f"""
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {script!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
job = dict(device="cpu", suite="check", model="gpt2", seconds=3600, done=[], best={{}}, eager=[], wrong={{}}, skip=[])
child.stdin.write(json.dumps(job).encode() + b"\\n"); child.stdin.flush(); child.stdout.readline()
print(child.pid, flush=True)
"""
    found = subprocess.run([sys.executable, "-c", middle], capture_output=True, text=True, timeout=PATIENCE, check=True)
    status = Path(f"/proc/{found.stdout.strip()}/status")
    end = time.monotonic() + PATIENCE
    while status.is_file() and "State:\tZ" not in status.read_text() and time.monotonic() < end:
        time.sleep(0.2)
    assert not status.is_file() or "State:\tZ" in status.read_text()


def test_failed_rows_are_measured_again_when_asked(tmp_path):
    supervised(tmp_path, "os._exit(1)")
    _, rows = supervised(tmp_path, "pass", resume=True)
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    _, rows = supervised(tmp_path, "pass", resume=True, retry_failed=True)
    assert [(row["key"], row["status"]) for row in rows[3:]] == [("second", "ok")]


def test_a_process_that_never_begins_ends_the_run_with_its_reason(tmp_path):
    with pytest.raises(InputError, match=r"no kernel could be run: .*no such driver"):
        supervised(tmp_path, "pass", worker="raise SystemExit('no such driver')")


def test_no_row_is_lost_when_the_disk_is_full(tmp_path, monkeypatch):
    from rooflinekit.validate import record

    def full(file, text, write=record._append):
        if b'"second"' in text:
            raise OSError(28, "No space left on device")
        write(file, text)

    monkeypatch.setattr(record, "_append", full)
    with pytest.raises(InputError, match="No space left on device; its 1 rows are kept, and --resume goes on"):
        supervised(tmp_path, "pass")
    monkeypatch.undo()
    _, rows = supervised(tmp_path, "pass", resume=True)
    assert [row["backend"] for row in rows] == ["first", "second", "third"]


def test_a_run_that_ends_first_closes_what_its_process_says_without_a_traceback():
    class Closed:
        def __iter__(self):
            yield b"whole\n"
            raise ValueError("info->buf must not be NULL")

    lines = Queue()
    supervise._read(Closed(), lines)
    assert [lines.get_nowait() for _ in range(2)] == [b"whole\n", b""]


SMALL = """
import sys
from rooflinekit.validate import ceilings, suite, timing, worker
from rooflinekit.validate.plan import Extent
suite.EXTENTS = {("cpu", "quick"): Extent((1,), (8,), (1,), 1, (1e-9, 1e-6), 256)}
suite._SECONDS = {"quick": 0.0}
suite.kernel_cases = lambda *plan, whole=suite.kernel_cases: [case for case in whole(*plan) if case.bytes < 4e6][:12]
suite.collective_rows = lambda device, quick: iter(())
timing._REPEATS = (1, 1)
ceilings._gemm_sizes = lambda device, quick: (128,)
ceilings.LARGEST = {"cpu": 16}
suite._run_model = lambda run: True
worker.CHECKS = worker.CHECKS[:2]
sys.exit(worker.main())
"""


def test_the_real_process_measures_and_checks_what_the_file_then_holds(tmp_path):
    with Recorder(tmp_path, header(CPU, "kernels", "smollm2-135m")) as recorder:
        run = Supervisor(CPU, "quick", "smollm2-135m", recorder, time.monotonic() + 0.6 * PATIENCE, limit=PATIENCE,
                         worker=(sys.executable, "-c", SMALL))  # fmt: skip
        assert run.check() == []
        assert run.run() == "complete"
    rows = read_measurements(tmp_path / FILE).rows
    assert {row["status"] for row in rows} == {"ok"}
    assert {"ceiling", "attention_decode", "kv_append"} <= {row["op"] for row in rows}


def found(seen=True, cuda="13.0"):
    return gpu.TorchPython("/usr/bin/python3", "2.11.0", cuda, seen)


@pytest.mark.parametrize(("pythons", "driver", "device", "chosen"), [
    ([found()], "580.1", "cuda", found()),
    ([found(seen=False), found()], "580.1", "cuda:0", found()),
    ([found(seen=False, cuda="")], "", "cpu", found(seen=False, cuda="")),
    ([], "580.1", "cuda", ""),  # nothing has PyTorch: it is installed
    ([found(seen=False, cuda="")], "580.1", "cuda", ""),  # a build for the CPU
])  # fmt: skip
def test_the_python_that_sees_the_gpu_is_taken(monkeypatch, pythons, driver, device, chosen):
    monkeypatch.setattr(gpu, "driver", lambda: driver)
    assert gpu.choose(pythons, device) == chosen


@pytest.mark.parametrize(("driver", "said"), [
    ("", "no NVIDIA driver answers here"),
    ("470.57", "PyTorch 2.11.0 of /usr/bin/python3 is built for CUDA 13.0, which driver 470.57 does not run"),
])  # fmt: skip
def test_a_machine_that_cannot_run_says_why(monkeypatch, driver, said):
    monkeypatch.setattr(gpu, "driver", lambda: driver)
    assert said in gpu.choose([found(seen=False)], "cuda")


def test_a_checkout_measures_without_being_installed(tmp_path):
    """As on a rented machine: another folder, no installed package, a Python that only has what it needs."""
    root = Path(gpu.__file__).resolve().parents[1]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("needs a checkout")
    command = [sys.executable, str(root / "validate" / "gpu.py"), "--device", "cpu", "--suite", "ceilings"]
    run = subprocess.run(
        [*command, "--budget", "0.0001", "--out", str(tmp_path / "out")], cwd=tmp_path, capture_output=True,
        env=os.environ | {"PATH": ""}, text=True, timeout=PATIENCE, check=False,  # other Pythons need not be asked
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "wrote " in run.stdout
    assert read_measurements(tmp_path / "out" / FILE).ending == "budget"

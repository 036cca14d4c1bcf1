"""Run the harness on this machine's GPU with the PyTorch that is here: python validate/gpu.py --budget 40.

Rented GPU hosts often have PyTorch and no network. This script needs no installation: it looks for a Python whose
PyTorch sees the GPU, and installs PyTorch in a folder of its own only where there is none. It imports nothing but the
standard library. Fitting and reporting need the measurement file alone, and happen wherever it is copied to.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_NEEDED = """import json, numpy, torch, yaml
print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))"""
_IMPORT = 600.0
"""Seconds that importing PyTorch may take: minutes on a busy host, or from a disk behind a network."""


class TorchPython(NamedTuple):
    """A Python with PyTorch: the CUDA version that it was built for ("" for none), and whether it sees a GPU."""

    python: str
    torch: str
    cuda: str
    sees_gpu: bool


def probe(python: str) -> TorchPython | None:
    """What PyTorch a Python has; None for none, or where NumPy or PyYAML is missing."""
    try:
        shown = subprocess.run(
            [python, "-c", _NEEDED], capture_output=True, text=True, check=True, timeout=_IMPORT
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version, cuda, seen = json.loads(shown.strip().splitlines()[-1])
    return TorchPython(python, version, cuda or "", seen)


def driver() -> str:
    """The driver's version as nvidia-smi says it; "" where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return shown.strip().splitlines()[0] if shown.strip() else ""


def choose(found: list[TorchPython], device: str) -> TorchPython | str:
    """The Python to run with, or one line that says why none will do; "" where PyTorch has to be installed."""
    if device == "cpu":
        return found[0] if found else ""
    if seeing := [each for each in found if each.sees_gpu]:
        return seeing[0]
    if not driver():
        return "no NVIDIA driver answers here (nvidia-smi); --device cpu rehearses the run"
    if built := [each for each in found if each.cuda]:
        first = built[0]
        return (
            f"PyTorch {first.torch} of {first.python} is built for CUDA {first.cuda}, which driver {driver()} does not "
            f"run; install a build for an older CUDA, or a newer driver"
        )
    return ""


def install() -> TorchPython | None:
    """PyTorch and this package in .venv-gpu of the checkout."""
    folder = ROOT / ".venv-gpu"
    print(f"no Python here has PyTorch for this device; installing it in {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "-e", str(ROOT)], check=True)
    return probe(python)


def main(words: list[str] | None = None) -> int:
    """Measure; exit code 4 where some kernels failed, 2 where nothing can run."""
    parser = argparse.ArgumentParser(prog="validate/gpu.py", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="40", help="minutes to take at most (40)")
    parser.add_argument("--out", default="measured", help="folder for the measurement file (measured)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu for a rehearsal (cuda)")
    parser.add_argument("--suite", default="full", help="full, quick, ceilings, kernels, model or engine (full)")
    parser.add_argument("--parts", help="folder that validate/stage.py has joined: vLLM's operators, or all of it")
    parser.add_argument("--model", help="the model whose layers are measured")
    parser.add_argument("--check", action="store_true", help="check the kernels, and measure nothing")
    parser.add_argument("--retry-failed", action="store_true", help="measure rows once more that failed")
    said = parser.parse_args(words)
    names = dict.fromkeys(filter(None, (sys.executable, shutil.which("python3"), shutil.which("python"))))
    chosen: TorchPython | str | None = choose([each for name in names if (each := probe(name))], said.device)
    try:
        chosen = chosen or install()
    except (OSError, subprocess.SubprocessError) as error:
        chosen = f"PyTorch could not be installed: {error}"
    if not isinstance(chosen, TorchPython):
        print(f"error: {chosen or 'the PyTorch that was installed does not start'}", file=sys.stderr)
        return 2
    print(f"{chosen.python}: PyTorch {chosen.torch}, CUDA {chosen.cuda or 'none'}, driver {driver() or 'none'}")
    command = [chosen.python, "-m", "rooflinekit", "validate", "--device", said.device]
    command += ["--check"] if said.check else ["--suite", said.suite, "--budget", said.budget, "--out", said.out]
    command += [] if said.check else ["--retry-failed" if said.retry_failed else "--resume"]
    command += ["--model", said.model] if said.model and not said.check else []
    paths = [str(ROOT), *([str(Path(said.parts).resolve())] if said.parts else [])]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

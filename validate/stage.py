"""Build what a bare GPU host needs, in pieces that a narrow connection takes, and join them there.

    python validate/stage.py ops --out parts            # vLLM's shared objects: its kernels beside the host's PyTorch
    python validate/stage.py engine --out parts         # the rest of vLLM and what it imports: for --suite engine
    python validate/stage.py join parts --into site     # on the host: check, join and unpack; then --parts site

Wheels come from the registry that pip is set up with. Every piece is at most --piece MiB and has its SHA-256 in the
manifest. `--host FILE`, made on the host by `pip freeze`, leaves out what is there already. The host needs nothing but
Python's standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

VERSION = "0.24.0"
"""Of vLLM: the release whose kernels the shipped calibrations were measured with; it is built for PyTorch 2.11."""
PIECE = 60
OPS = ("vllm/_C_stable_libtorch*.so", "vllm/vllm_flash_attn/_vllm_fa3_C*.so", "vllm-*.dist-info/METADATA")
"""Members of the wheel: without its __init__.py, vllm is a folder that holds shared objects and imports nothing."""
LEFT_OUT = (
    "vllm/vllm_flash_attn/_vllm_fa2_C*.so", "vllm/third_party/fmha_sm100/*", "vllm/_qutlass_C*.so", "vllm/vllm-rs",
    "*/tests/*", "*.a",
)  # fmt: skip
"""FlashAttention 2 (190 MB) is for GPUs before Hopper, two more for those after it; vllm-rs is a program of its own."""
GLIBC = (17, 36)
"""Minor versions of glibc 2 that wheels may be built for: pip takes none between those that it is told."""
NOT_STAGED = (
    "torch", "triton", "numpy", "transformers", "huggingface-hub", "tokenizers", "safetensors", "nvidia-*", "cuda-*",
    "setuptools",
    "flashinfer-*", "tokenspeed-*", "tilelang", "z3-solver", "opencv-python-headless", "torchaudio", "humming-kernels",
    "quack-kernels", "fastsafetensors", "fastapi-cloud-cli", "pycountry",
)  # fmt: skip
"""Packages that a GPU host with PyTorch and transformers has, in versions that go with those; and packages that vLLM
asks for and a language model on Hopper does not import."""


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _pip(*words: str, python: str) -> None:
    """Run pip for a Linux host with this Python."""
    platforms = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(*GLIBC)))
    options = ["--quiet", "--only-binary", ":all:", "--python-version", python]
    options += [word for each in platforms for word in ("--platform", f"{each}_x86_64")]
    subprocess.run([sys.executable, "-m", "pip", *words, *options], check=True)


def wheels(packages: list[str], folder: Path, python: str) -> list[Path]:
    """Download wheels of these packages, and of none that they depend on."""
    _pip("download", "--no-deps", "--dest", str(folder), *packages, python=python)
    return sorted(folder.glob("*.whl"))


def named(freeze: Iterable[str]) -> set[str]:
    """Names of packages in the lines that `pip freeze` printed, as registries fold them.

    >>> sorted(named(["PyYAML==6.0.2", "huggingface_hub==1.33.0", "# a note", "torch @ file:///torch.whl"]))
    ['huggingface-hub', 'pyyaml', 'torch']
    """
    lines = (re.match(r"[\w.-]+", line.strip()) for line in freeze)
    return {_folded(found[0]) for found in lines if found}


def _folded(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolved(package: str, python: str, host: Collection[str] = ()) -> list[str]:
    """The versions of everything that a package needs that go together, less what the host has or nothing uses."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        target = ("--ignore-installed", "--target", folder)
        _pip("install", "--dry-run", *target, "--report", str(report), package, python=python)
        found = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    versions = sorted((_folded(each["name"]), each["version"]) for each in found)
    left_out = (package.partition("==")[0], *host, *NOT_STAGED)
    return [f"{name}=={version}" for name, version in versions if not _any(name, left_out)]


def members(paths: Iterable[Path], wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Files of wheels by name."""
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if wanted(name) and not name.endswith("/") and not _any(name, LEFT_OUT):
                    yield name, archive.read(name)


def write(what: str, files: Iterable[tuple[str, bytes]], out: Path, piece: int) -> list[Path]:
    """Pack files as one tar.xz, cut into pieces of so many bytes, and write the manifest; the paths of all."""
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob(f"{what}.tar.xz.*"):
        stale.unlink()
    packed = io.BytesIO()
    with lzma.open(packed, "wb", preset=6) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    whole, sums = packed.getvalue(), {}
    for number, start in enumerate(range(0, len(whole), piece)):
        part, name = whole[start : start + piece], f"{what}.tar.xz.{number:03d}"
        (out / name).write_bytes(part)
        sums[name] = hashlib.sha256(part).hexdigest()
    manifest = out / f"{what}.json"
    manifest.write_text(json.dumps({"vllm": VERSION, "pieces": sums}, indent=1), encoding="utf-8")
    return [*(out / name for name in sums), manifest]


def join(parts: Path, into: Path) -> list[str]:
    """Check the pieces of every manifest, join and unpack them; what was unpacked.

    Raises ValueError for a folder without pieces, and for a piece that is missing or was changed on the way.
    """
    manifests = sorted(parts.glob("*.json"))
    if not manifests:
        raise ValueError(f"{parts}: no manifest of pieces is here")
    for manifest in manifests:
        packed = io.BytesIO()
        for name, expected in json.loads(manifest.read_text(encoding="utf-8"))["pieces"].items():
            path = parts / name
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != expected:
                raise ValueError(f"{path}: {'differs from its manifest' if content else 'is missing'}; copy it again")
            packed.write(content)
        packed.seek(0)
        with lzma.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
            archive.extractall(into, **safe)  # type: ignore[arg-type]
    return [manifest.stem for manifest in manifests]


def stage(what: str, out: Path, python: str, host: Collection[str] = (), piece: int = PIECE) -> list[Path]:
    """Download and pack in pieces of so many MiB: `ops`, or what an `engine` needs beside them."""
    other = re.compile(r"\.cpython-(?!" + python.replace(".", "") + r"-)\d+-")  # built for another Python

    def wanted(name: str) -> bool:
        return (_any(name, OPS) == (what == "ops")) and not other.search(name)

    with tempfile.TemporaryDirectory() as folder:
        place, vllm = Path(folder), f"vllm=={VERSION}"
        files = members(wheels([vllm], place / "vllm", python), wanted)
        needed = resolved(vllm, python, host) if what == "engine" else []
        others = wheels(needed, place / "others", python) if needed else []
        return write(what, chain(files, members(others, lambda name: True)), out, piece * 2**20)


def main(words: list[str] | None = None) -> int:
    """Stage, or join on the host."""
    parser = argparse.ArgumentParser(prog="validate/stage.py", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ops", "engine", "join"))
    parser.add_argument("parts", nargs="?", default="parts", type=Path, help="folder of the pieces, for join (parts)")
    parser.add_argument("--out", default="parts", type=Path, help="folder for the pieces (parts)")
    parser.add_argument("--into", default="site", type=Path, help="folder to unpack in, for join (site)")
    parser.add_argument("--python", default="3.12", help="the host's Python (3.12)")
    parser.add_argument("--host", type=Path, help="what the host has: a file that pip freeze wrote there")
    parser.add_argument("--piece", default=PIECE, type=int, help=f"largest piece in MiB ({PIECE})")
    asked = parser.parse_args(words)
    if asked.piece < 1:
        parser.error(f"--piece must be at least 1 MiB, not {asked.piece}")
    if not re.fullmatch(r"3\.\d+", asked.python):
        parser.error(f"--python must be like 3.12, not {asked.python}")
    try:
        if asked.what == "join":
            print(f"unpacked {', '.join(join(asked.parts, asked.into))} in {asked.into}")
            return 0
        host = named(asked.host.read_text(encoding="utf-8").splitlines()) if asked.host else ()
        for path in stage(asked.what, asked.out, asked.python, host, asked.piece):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

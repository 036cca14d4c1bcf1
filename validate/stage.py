"""Build what a bare GPU host needs, in pieces that a narrow connection takes, and join them there.

    python validate/stage.py ops --out parts            # vLLM's shared objects: its kernels beside the host's PyTorch
    python validate/stage.py engine --out parts         # all of vLLM but what the host has: for --suite engine
    python validate/stage.py join parts --into site     # on the host: check, join and unpack; then --parts site

Wheels come from the registry that pip is set up with. Every piece is at most 60 MiB and has its SHA-256 in the
manifest. The host needs nothing but Python's standard library.
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
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

VERSION = "0.24.0"
"""Of vLLM: the release whose kernels the shipped calibrations were measured with; it is built for PyTorch 2.11."""
PIECE = 60 * 2**20
PATTERNS = {
    "ops": (
        "vllm/_C_stable_libtorch*.so", "vllm/vllm_flash_attn/_vllm_fa3_C*.so", "vllm-*.dist-info/METADATA",
    ),
    "engine": ("*",),
}  # fmt: skip
"""Members of the wheel: without its __init__.py, vllm is a folder that holds shared objects and imports nothing."""
LEFT_OUT = ("vllm/vllm_flash_attn/_vllm_fa2_C*.so", "*/tests/*")
"""FlashAttention 2 (190 MB) is for GPUs before Hopper."""
GLIBC = (17, 36)
"""Minor versions of glibc 2 that wheels may be built for: pip takes none between those that it is told."""
NOT_STAGED = (
    "torch", "triton", "numpy", "transformers", "nvidia-*", "cuda-*", "setuptools",
    "flashinfer-cubin", "tokenspeed-*", "tilelang", "z3-solver", "opencv-python-headless", "torchaudio",
)  # fmt: skip
"""Packages that a GPU host with PyTorch has, or cannot take; and those that vLLM asks for and a language model on
Hopper does not import: 650 of the 800 MiB of all."""


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


def resolved(package: str, python: str) -> list[str]:
    """The versions of everything that a package needs that go together, less what the host has or nothing uses."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        target = ("--ignore-installed", "--target", folder)
        _pip("install", "--dry-run", *target, "--report", str(report), package, python=python)
        found = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    folded = re.compile(r"[-_.]+")  # as registries fold names
    named = sorted((folded.sub("-", each["name"]).lower(), each["version"]) for each in found)
    own = package.partition("==")[0]
    return [f"{name}=={version}" for name, version in named if name != own and not _any(name, NOT_STAGED)]


def members(paths: Iterable[Path], patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Files of wheels by name."""
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if _any(name, patterns) and not name.endswith("/") and not _any(name, LEFT_OUT):
                    yield name, archive.read(name)


def write(what: str, files: Iterable[tuple[str, bytes]], out: Path, piece: int = PIECE) -> list[Path]:
    """Pack files as one tar.xz, cut into pieces, and write the manifest; the paths of all."""
    out.mkdir(parents=True, exist_ok=True)
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

    Raises ValueError for a piece that is missing or was changed on the way.
    """
    manifests = sorted(parts.glob("*.json"))
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


def stage(what: str, out: Path, python: str) -> list[Path]:
    """Download and pack."""
    with tempfile.TemporaryDirectory() as folder:
        place, vllm = Path(folder), f"vllm=={VERSION}"
        files = members(wheels([vllm], place / "vllm", python), PATTERNS[what])
        needed = resolved(vllm, python) if what == "engine" else []
        others = wheels(needed, place / "others", python) if needed else []
        return write(what, chain(files, members(others, ("*",))), out)


def main(words: list[str] | None = None) -> int:
    """Stage, or join on the host."""
    parser = argparse.ArgumentParser(prog="validate/stage.py", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ops", "engine", "join"))
    parser.add_argument("parts", nargs="?", default="parts", type=Path, help="folder of the pieces, for join (parts)")
    parser.add_argument("--out", default="parts", type=Path, help="folder for the pieces (parts)")
    parser.add_argument("--into", default="site", type=Path, help="folder to unpack in, for join (site)")
    parser.add_argument("--python", default="3.12", help="the host's Python (3.12)")
    asked = parser.parse_args(words)
    try:
        if asked.what == "join":
            print(f"unpacked {', '.join(join(asked.parts, asked.into)) or 'nothing'} in {asked.into}")
            return 0
        for path in stage(asked.what, asked.out, asked.python):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

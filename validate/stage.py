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
        "vllm/_C_stable_libtorch*.so", "vllm/vllm_flash_attn/_vllm_fa3_C*.so", "vllm/_flashmla_C*.so",
        "vllm-*.dist-info/METADATA",
    ),
    "engine": ("*",),
}  # fmt: skip
"""Members of the wheel: without its __init__.py, vllm is a folder that holds shared objects and imports nothing."""
LEFT_OUT = ("vllm/vllm_flash_attn/_vllm_fa2_C*.so", "vllm/third_party/deep_gemm/_C.cpython-3[0-9]*", "*/tests/*")
"""FlashAttention 2 (190 MB) is for GPUs before Hopper."""
HOST_HAS = ("torch", "triton", "numpy", "transformers", "nvidia-*", "cuda-*", "setuptools")
"""Packages of which no wheel is staged: a GPU host with PyTorch has them, or cannot take them."""
NOT_USED = ("flashinfer-cubin", "tokenspeed-*", "tilelang", "opencv-python-headless", "torchaudio")
"""Packages that vLLM asks for and a language model on Hopper does not import: 650 of the 800 MiB of all."""


def wheels(packages: list[str], folder: Path, python: str, *, alone: bool) -> list[Path]:
    """Download wheels for a Linux host with this Python; `alone`: without what they depend on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", python]
    for platform in ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_34_x86_64"):
        command += ["--platform", platform]
    command += ["--dest", str(folder), *(["--no-deps"] if alone else []), *packages]
    subprocess.run(command, check=True)
    return sorted(folder.glob("*.whl"))


def dependencies(wheel: Path, python: str, extras: Iterable[str] = ()) -> list[str]:
    """What a wheel and its extras ask for on a Linux host with this Python, less what the host has or nothing uses."""
    from pip._vendor.packaging.requirements import Requirement  # noqa: PLC0415 - pip downloads the wheels, so it is here

    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    host = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "os_name": "posix",
        "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # fmt: skip
    chosen = [{**host, "extra": extra} for extra in ("", *extras)]
    asked = [Requirement(line.partition(":")[2].strip()) for line in lines if line.startswith("Requires-Dist:")]
    wanted = [each for each in asked if each.marker is None or any(map(each.marker.evaluate, chosen))]
    named = [
        (each.name, f"[{','.join(sorted(each.extras))}]" if each.extras else "", each.specifier) for each in wanted
    ]
    return [f"{name}{own}{version}" for name, own, version in named if not _left_out(name)]


def _left_out(package: str) -> bool:
    return any(fnmatch(_plain(package), pattern) for pattern in (*HOST_HAS, *NOT_USED))


def _plain(requirement: str) -> str:
    """The package of a requirement, as registries fold names.

    >>> _plain("Typing_Extensions>=4"), _plain("ray[cgraph]>=2.48")
    ('typing-extensions', 'ray')
    """
    return re.sub(r"[-_.]+", "-", re.split(r"[ <>=!~\[(;]", requirement, maxsplit=1)[0]).lower()


def closure(wheel: Path, folder: Path, python: str) -> Iterator[Path]:
    """Wheels of everything that a wheel needs, and of what that needs, without the host's own packages."""
    waiting, seen = dependencies(wheel, python), set[str]()
    while waiting:
        requirement = waiting.pop(0)
        name, extras = _plain(requirement), re.findall(r"\[(.*)]", requirement)
        if name + str(extras) in seen:
            continue
        seen |= {name + str(extras), f"{name}[]"}
        try:  # one by one and alone: else pip would resolve PyTorch and CUDA along
            found = wheels([requirement], folder / name, python, alone=True)
        except subprocess.CalledProcessError:
            print(f"note: no wheel of {requirement}; the engine may not start without it", file=sys.stderr)
            continue
        yield from found
        waiting += [each for one in found for each in dependencies(one, python, ",".join(extras).split(","))]


def members(paths: Iterable[Path], patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Files of wheels by name."""
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                wanted = any(fnmatch(name, pattern) for pattern in patterns)
                if wanted and not name.endswith("/") and not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
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
    whole, paths, sums = packed.getvalue(), [], {}
    for number, start in enumerate(range(0, len(whole), piece)):
        path = out / f"{what}.tar.xz.{number:03d}"
        path.write_bytes(whole[start : start + piece])
        sums[path.name] = hashlib.sha256(whole[start : start + piece]).hexdigest()
        paths.append(path)
    manifest = out / f"{what}.json"
    manifest.write_text(json.dumps({"vllm": VERSION, "pieces": sums}, indent=1), encoding="utf-8")
    return [*paths, manifest]


def join(parts: Path, into: Path) -> list[str]:
    """Check the pieces of every manifest, join and unpack them; what was unpacked.

    Raises ValueError for a piece that is missing or was changed on the way.
    """
    done = []
    for manifest in sorted(parts.glob("*.json")):
        pieces = json.loads(manifest.read_text(encoding="utf-8"))["pieces"]
        packed = io.BytesIO()
        for name, expected in pieces.items():
            path = parts / name
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != expected:
                raise ValueError(f"{path}: {'differs from its manifest' if content else 'is missing'}; copy it again")
            packed.write(content)
        packed.seek(0)
        with lzma.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
            archive.extractall(into, **safe)  # type: ignore[arg-type]
        done.append(manifest.stem)
    return done


def stage(what: str, out: Path, python: str) -> list[Path]:
    """Download and pack."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (wheel,) = wheels([f"vllm=={VERSION}"], place / "vllm", python, alone=True)
        files = members([wheel], PATTERNS[what])
        others = closure(wheel, place, python) if what == "engine" else ()
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

"""Weight files by their headers: sizes and formats of the tensors of a GGUF or safetensors file; no weight is read."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from rooflinekit.model.parameter_count import stored_bytes
from rooflinekit.model.types.dtype import BLOCKS, Dtype
from rooflinekit.model.types.errors import ArchitectureError, DtypeError, SpecError, nearest_of
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Model
from rooflinekit.specs.files import Parsed, table_of
from rooflinekit.specs.gguf_network import network, unread_parts
from rooflinekit.specs.locate import Loaded
from rooflinekit.specs.places import admit

_MOST_HEADER = 256 * 2**20  # bytes: ten times the largest vocabulary known
_MOST_ENTRIES = 2**16  # tensors, or keys: DeepSeek-V3 has 1,100 tensors
_MOST_TEXTS = 2**21  # in a list: eight times the largest vocabulary known
_MOST_PARTS = 1000  # of a split file
_MOST_DIMENSIONS = 4
_MOST_SIZES, _MOST_SIZE = 64, 2**63 - 1  # dimensions of a safetensors tensor, as NumPy has them, and of one of them
_LONGEST_KEPT = 4096  # elements of an array that is kept; a vocabulary is only counted
_LONGEST_TEXT = 2**16 - 1  # bytes of a name (GGUF's own limit), and of a text that is kept
_MOST_JSON = 2**24  # bytes of a safetensors header: 70,000 tensors of one file would have 8 MB
_FOUR_BIT = {Dtype.MXFP4: (32, 17), Dtype.NVFP4: (64, 36)}  # weights of a block and its bytes, as BLOCKS has them
_TOO_FAR = 0.05  # of a file's bytes that may be costed otherwise
_ALIGNED = 32  # bytes, where a GGUF file says nothing else
_ROUNDING = 0.002  # of a checkpoint's size, that padding and tables of rotations may take

# Value types of GGUF: those of one number by their code for `struct`, texts and lists.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


_names = partial(table_of, __file__)
"""Numbers and names that headers use."""


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file: name, sizes with the fastest first as GGUF has it, format, bytes and where they begin."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    bytes: int
    offset: int


@dataclass(frozen=True)
class GGUFHeader:
    """Header of a GGUF file; arrays too long to keep are their length."""

    facts: Parsed
    tensors: tuple[FileTensor, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)


class _Reader:
    """Numbers and texts one after the other, to the end of the header and no further."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file, self.path, self.size = file, path, size

    def check(self, count: int) -> None:
        """Refuse bytes beyond where a header may end, or the file does."""
        if self.file.tell() + count > min(self.size, _MOST_HEADER):
            if self.size <= _MOST_HEADER:
                raise SpecError(f"{self.path}: ends within its header; download it again")
            most = _MOST_HEADER // 2**20
            raise SpecError(f"{self.path}: its header is longer than {most} MiB; it cannot be believed")

    def take(self, count: int) -> bytes:
        self.check(count)
        return self.file.read(count)

    def skip(self, count: int) -> None:
        self.check(count)
        self.file.seek(count, os.SEEK_CUR)

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, what: str, most: int) -> int:
        found = int(self.number("Q"))
        if found > most:
            raise SpecError(f"{self.path}: says it has {found} {what}; more than {most} are not believed")
        return found

    def text(self) -> str:
        return self.take(self.count("bytes in a name", _LONGEST_TEXT)).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            length = self.count("bytes in a text", _MOST_HEADER)
            if length > _LONGEST_TEXT:
                self.skip(length)
                return length
            return self.take(length).decode("utf-8", errors="replace")
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise SpecError(f"{self.path}: holds a value of type {kind}, which GGUF does not have")
        return self.number(_SCALARS[kind])

    def _array(self) -> object:
        kind = self.number("I")
        length = self.count("elements in a list", _MOST_TEXTS if kind == _TEXT else _MOST_HEADER)
        if kind == _ARRAY:
            raise SpecError(f"{self.path}: holds a list of lists, which llama.cpp does not read either")
        if kind in _SCALARS and length > _LONGEST_KEPT:
            self.skip(length * struct.calcsize(f"<{_SCALARS[kind]}"))
            return length
        if kind == _TEXT:
            for _ in range(length):
                self.skip(self.count("bytes in a text", _MOST_HEADER))
            return length
        return [self.value(kind) for _ in range(length)]


def read_gguf(path: Path) -> GGUFHeader:
    """The header of a GGUF file."""
    admit(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        reader = _Reader(file, path, size)
        if size < 4 or file.read(4) != b"GGUF":
            raise SpecError(f"{path}: is no GGUF file: it does not begin with GGUF")
        version = reader.number("I")
        if version not in (2, 3):
            raise SpecError(f"{path}: is GGUF version {version}; known: 2, 3")
        count, keys = reader.count("tensors", _MOST_ENTRIES), reader.count("keys", _MOST_ENTRIES)
        entries = [(reader.text(), reader.value(reader.number("I"))) for _ in range(keys)]
        tensors = tuple(_tensor(reader) for _ in range(count))
        end = file.tell()
    facts = dict(entries)
    _check_once(path, "key", (key for key, _ in entries))
    _check_once(path, "tensor", (tensor.name for tensor in tensors))
    aligned = facts.get("general.alignment", _ALIGNED)
    if not isinstance(aligned, int) or aligned <= 0:
        raise SpecError(f"{path}: general.alignment {aligned!r} is no number of bytes")
    data = -(-end // aligned) * aligned
    last = _end(path, ((tensor.name, tensor.offset, tensor.offset + tensor.bytes) for tensor in tensors))
    if size < data + last and tensors:
        raise SpecError(f"{path}: is cut off: {data + last - size} bytes of its tensors are missing; download it again")
    return GGUFHeader(facts, tensors)


def _check_once(path: Path, what: str, names: Iterable[str]) -> None:
    """Refuse a name that stands twice."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise SpecError(f"{path}: has {what} {twice[0]!r} more than once")


def _end(path: Path, places: Iterable[tuple[str, int, int]]) -> int:
    """End of the last tensor [byte]; refuses tensors that share bytes."""
    end, before = 0, ""
    for name, begin, stop in sorted(places, key=lambda place: place[1:]):
        if begin < end and stop > begin:
            raise SpecError(f"{path}: tensors {before!r} and {name!r} share bytes")
        end, before = max(end, stop), name
    return end


def _tensor(reader: _Reader) -> FileTensor:
    name, dimensions = reader.text(), int(reader.number("I"))
    if not 0 < dimensions <= _MOST_DIMENSIONS:
        raise SpecError(f"{reader.path}: tensor {name!r} has {dimensions} dimensions; GGUF has 1 to {_MOST_DIMENSIONS}")
    shape = tuple(int(reader.number("Q")) for _ in range(dimensions))
    if not all(shape):
        raise SpecError(f"{reader.path}: tensor {name!r} is empty: its sizes are {', '.join(map(str, shape))}")
    kind, offset = int(reader.number("I")), int(reader.number("Q"))
    types = _names()["types"]
    if kind not in types:
        known = ", ".join(f"{number} {stored}" for number, stored in types.items())
        raise DtypeError(f"{reader.path}: tensor {name!r} is of type {kind}, which is not known; known: {known}")
    dtype = Dtype(types[kind])
    weights, size = BLOCKS.get(dtype, _FOUR_BIT.get(dtype, (1, 0)))
    if dtype.in_blocks or dtype in _FOUR_BIT:
        if shape[0] % weights:
            raise SpecError(f"{reader.path}: rows of tensor {name!r} ({shape[0]}) are no whole blocks of {weights}")
        return FileTensor(name, shape, dtype, prod(shape) // weights * size, offset)
    return FileTensor(name, shape, dtype, int(prod(shape) * dtype.bytes), offset)


def model_from_gguf(path: Path) -> Loaded[Model]:
    """The model that a GGUF file holds, each layer's tensors in the formats that the file stores them in."""
    header = _whole(path, read_gguf(path))
    stated = header.facts.get("general.name")
    name = stated if isinstance(stated, str) else path.stem
    model, notes, beside = network(path, name, header.facts, header.tensors)
    tensors = [tensor for tensor in header.tensors if tensor not in beside]
    notes += _unlike(model, tensors, path)
    return Loaded(replace(model, source=f"header of {path.name}", file_bytes=header.bytes), tuple(notes))


def _whole(path: Path, header: GGUFHeader) -> GGUFHeader:
    """The header with the tensors of all parts of a split file, of which the first has the facts."""
    count, number = header.facts.get("split.count", 0), header.facts.get("split.no", 0)
    if not isinstance(count, int) or not 0 <= count <= _MOST_PARTS:
        raise SpecError(f"{path}: split.count {count!r} is no number of parts up to {_MOST_PARTS}")
    if count < 2:
        return header
    stem, ending = path.stem, f"-{1:05}-of-{count:05}"
    if number != 0 or not stem.endswith(ending):
        raise SpecError(f"{path}: is part {number + 1} of {count}; name the first, which ends in {ending}.gguf")
    tensors = list(header.tensors)
    for part in range(2, count + 1):
        other = path.with_name(f"{stem.removesuffix(ending)}-{part:05}-of-{count:05}{path.suffix}")
        if not other.is_file():
            raise SpecError(f"{path}: has {count} parts, and {other.name} is not beside it")
        tensors += read_gguf(other).tensors
    _check_once(path, "tensor", (tensor.name for tensor in tensors))
    return replace(header, tensors=tuple(tensors))


def _unlike(model: Model, tensors: Sequence[FileTensor], path: Path) -> Iterable[str]:
    """The warning that the network as it is costed has other bytes than the file; refuses what is far from it."""
    costed, stored = stored_bytes(model), sum(tensor.bytes for tensor in tensors)
    strange = list(unread_parts(tensors))
    if abs(costed - stored) > _TOO_FAR * stored:
        told = f"tensors {', '.join(strange[:6])}" if strange else "tensors that"
        raise ArchitectureError(
            f"{path}: {told} are not understood: {costed / 1e9:.3f} GB would be costed of "
            f"{stored / 1e9:.3f}; give its config.json"
        )
    if abs(costed - stored) > _ROUNDING * stored:
        yield f"costed with {costed / 1e9:.3f} GB of weights; the tensors of {path.name} have {stored / 1e9:.3f} GB"


def safetensors_bytes(path: Path) -> int:
    """Bytes of all tensors of a safetensors file, by its header."""
    admit(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if length > _MOST_JSON:
            raise SpecError(f"{path}: says its header has {length} bytes; more than {_MOST_JSON} are not believed")
        if not length or 8 + length > size:
            raise SpecError(f"{path}: ends within its header; download it again")
        try:
            tensors = json.loads(file.read(length), object_pairs_hook=partial(_pairs, path))
        except SpecError:
            raise
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{path}: its header is no JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(tensors, dict):
        raise SpecError(f"{path}: its header is no JSON object")
    tensors.pop("__metadata__", None)
    if not tensors:
        raise SpecError(f"{path}: holds no tensors")
    sizes, places = _names()["stored"], []
    for name, entry in tensors.items():
        try:
            kind, shape, (begin, stop) = str(entry["dtype"]), entry["shape"], entry["data_offsets"]
            if len(shape) > _MOST_SIZES or any(
                type(number) is not int or not 0 <= number <= _MOST_SIZE for number in (*shape, begin, stop)
            ):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            wanted = f"in whole numbers below 2^63, of at most {_MOST_SIZES} dimensions"
            raise SpecError(f"{path}: tensor {name!r} lacks dtype, shape or data_offsets {wanted}") from None
        if kind not in sizes:
            known = nearest_of(kind, sizes)
            raise DtypeError(f"{path}: tensor {name!r} is of type {kind!r}, which is not known; nearest: {known}")
        if stop - begin != prod(shape) * sizes[kind]:
            raise SpecError(f"{path}: tensor {name!r} has {stop - begin} bytes, not {prod(shape) * sizes[kind]}")
        places.append((name, begin, stop))
    end = _end(path, places)
    if 8 + length + end > size:
        raise SpecError(f"{path}: is cut off: {8 + length + end - size} bytes of its tensors are missing")
    return sum(stop - begin for _, begin, stop in places)


def _pairs(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, unless a key stands twice in it."""
    _check_once(path, "entry", (key for key, _ in pairs))
    return dict(pairs)

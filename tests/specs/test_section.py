"""A layout says what a section holds, and the one reader refuses whatever else is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.section import Cites, Count, FileLayout, FileSection


class Part(FileLayout):
    size: Annotated[float, "B"]
    note: str | tuple[str, ...] = ()


class Whole(FileLayout):
    kind: Literal["big", "small"]
    cores: Count
    rates: Mapping[Dtype, Annotated[float, "FLOP/s"]]
    parts: tuple[Part, ...] = ()
    edges: tuple[float, ...] = ()
    spare: int = 0
    fast: bool = False
    first: Part | None = None
    source: Cites = ()
    sources: Mapping[str, Any] = {}


GOOD: dict[str, Any] = {
    "kind": "big", "cores": 2, "rates": {"bf16": "1 TFLOP/s"}, "edges": [1, 2.5],
    "parts": [{"size": "1 KiB", "note": "n"}, {"size": "2 B"}],
    "spare": 0, "fast": True, "first": {"size": "3 B", "note": ["a", "b"]}, "source": ["doc"],
    "sources": {"doc": {"title": "t", "url": "u", "read": False}},
}  # fmt: skip


def read(**changed: Any) -> Whole:
    return FileSection(Path("file.yaml"), "", GOOD | changed).with_sources().read(Whole)


def test_each_key_is_read_as_it_is_annotated() -> None:
    whole = read()
    assert (whole.kind, whole.cores, whole.rates, whole.edges) == ("big", 2, {Dtype.BF16: 1e12}, (1.0, 2.5))
    assert [(part.size, part.note) for part in whole.parts] == [(1024.0, "n"), (2.0, ())]
    assert whole.first is not None
    assert (whole.first.note, whole.spare, whole.fast, whole.source) == (("a", "b"), 0, True, ("doc",))
    least = FileSection(Path("f"), "", {key: GOOD[key] for key in ("kind", "cores", "rates")}).read(Whole)
    assert (least.parts, least.first, least.fast) == ((), None, False)


@pytest.mark.parametrize(("changed", "said"), [
    ({"kind": "medium"}, "kind: value 'medium' is not one of big, small"),
    ({"kind": None}, "kind: is missing; add it"),
    ({"core": 2}, "core: unknown key; nearest: cores"),
    ({"cores": 0}, "cores: value 0 is not a whole number above 0"),
    ({"spare": -1}, "spare: value -1 is not a whole number"),
    ({"rates": {"bf17": "1 TFLOP/s"}}, "rates.bf17: unknown key; nearest: bf16"),
    ({"rates": {"bf16": "1 TB"}}, "rates.bf16: '1 TB' is not in FLOP/s; write it like '989.4 TFLOP/s'"),
    ({"parts": {"size": "1 B"}}, "parts: is not a list of sections"),
    ({"parts": [{"size": "1 B"}, {"size": 1}]}, "parts[1].size: 1 has no unit"),
    ({"edges": 1}, "edges: value 1 is not a list of numbers"),
    ({"edges": [1, float("nan")]}, "edges[1]: nan is not a number of at least 0"),
    ({"fast": "yes"}, "fast: value 'yes' is not true or false"),
    ({"first": 3}, "first: value 3 is not a section"),
    ({"first": {"size": "1 B", "note": 1}}, "first.note: value 1 is not a list of texts"),
    ({"source": []}, "source: is empty"),
    ({"source": ["dog"]}, "source: value 'dog' is not under `sources`; nearest: doc"),
    ({"sources": {"doc": {"title": "t", "url": "u"}}}, "sources.doc.read: is missing"),
])  # fmt: skip
def test_a_refusal_names_file_key_and_value(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        read(**changed)
    assert str(refused.value).startswith(f"file.yaml: {said}")

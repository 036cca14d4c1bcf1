"""Frozen dataclasses of our own behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from functools import cached_property
from inspect import signature
from typing import ClassVar

import pytest

from rooflinekit.model.types.frozen import dataclass


@dataclass(frozen=True)
class _Ours:
    first: int
    named: str = "a"
    extra: Mapping[str, float] = field(default_factory=dict, hash=False)
    note: str = field(default="", compare=False, repr=False)
    later: int = field(default=3, kw_only=True)


@dataclass(frozen=True, slots=True)
class _Slotted:
    first: float


@dataclass(frozen=True)
class _Lazy:
    first: float

    @cached_property
    def law(self) -> Callable[[float], float]:
        return lambda x: self.first * x


@dataclasses.dataclass(frozen=True)
class _Standard:
    first: int
    named: str = "a"
    extra: Mapping[str, float] = field(default_factory=dict, hash=False)
    note: str = field(default="", compare=False, repr=False)
    later: int = field(default=3, kw_only=True)


@dataclass(frozen=True)
class _More(_Ours):
    more: int = 0

    def __post_init__(self) -> None:
        if self.more < 0:
            raise ValueError("below 0")


@dataclasses.dataclass(frozen=True)
class _Below(_More):
    below: float = 0.5


@dataclass(frozen=True)
class _Above(_Standard):
    above: float = 0.5


def test_as_the_standard_library() -> None:
    ours, standard = _Ours(1, extra={"a": 1.0}), _Standard(1, extra={"a": 1.0})
    assert repr(ours) == repr(standard).replace("_Standard", "_Ours")
    assert asdict(ours) == asdict(standard)
    assert hash(ours) == hash(standard)
    assert hash(_Slotted(2.0)) == hash((2.0,))
    assert [*signature(_Ours).parameters] == [*signature(_Standard).parameters]
    assert _Ours.__match_args__ == _Standard.__match_args__
    assert [each.name for each in fields(_More)] == ["first", "named", "extra", "note", "later", "more"]


def test_equality_leaves_out_what_is_not_compared() -> None:
    assert _Ours(1, note="x") == _Ours(1, note="y")
    assert _Ours(1) != _Ours(1, later=4)
    assert _Ours(1) != _More(1)
    nan = float("nan")
    assert _Slotted(nan) == _Slotted(nan)  # one object, as in a tuple
    assert _Ours(1).extra is not _Ours(1).extra


@pytest.mark.parametrize("one", [_Ours(1), _Slotted(1.0), _Below(1), _Above(1)])
def test_nothing_can_be_set_or_deleted(one: _Ours | _Slotted | _Above) -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'first'"):
        one.first = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'first'"):
        del one.first


@pytest.mark.parametrize("one", [_Ours(1, extra={"a": 2.0}), _Slotted(1.5), _More(1, more=2), _Below(1), _Above(1)])
def test_copies_are_equal(one: _Ours | _Slotted | _Above) -> None:
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == replace(one) == one
    assert replace(one, first=7).first == 7


def test_checks_after_it_is_made() -> None:
    with pytest.raises(ValueError, match="below 0"):
        _More(1, more=-1)
    with pytest.raises(TypeError):
        _Ours()  # type: ignore[call-arg]


def test_slots_constants_and_shared_defaults() -> None:
    @dataclass(frozen=True, slots=True)
    class Above:
        kind: ClassVar[str] = "above"
        first: float = 1.0

    @dataclass(frozen=True, slots=True)
    class Below(Above):
        second: tuple[int, ...] = field(default=(2,), repr=False)

    one = Below(second=(3,))
    assert [each.name for each in fields(Below)] == ["first", "second"]
    assert (repr(one), one.kind, Below.__slots__) == (f"{Below.__qualname__}(first=1.0)", "above", ("second",))
    assert not hasattr(one, "__dict__")
    with pytest.raises(ValueError, match=r"mutable default .* for field parts"):

        @dataclass(frozen=True)
        class Shared:
            parts: list[int] = []  # noqa: RUF012


def test_a_pickle_holds_fields_alone() -> None:
    """What was worked out since may be functions, which no other process can read."""
    one = _Lazy(2.0)
    assert one.law(3.0) == 6.0
    other = pickle.loads(pickle.dumps(one))
    assert vars(other) == {"first": 2.0}
    assert other == one
    assert other.law(3.0) == 6.0

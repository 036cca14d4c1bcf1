"""Reads the words in which `rooflinekit.load.compiled` hands a named tuple of arrays to compiled code.

A named tuple of ninety arrays costs minutes to compile and microseconds a call, since each call copies all of it. Its
words are one address: a number stands in one word, an array in the word of its address and those of its lengths.
"""

from __future__ import annotations

from typing import Any

from numba import carray, njit, types
from numba.extending import intrinsic


def _pointer_to(kind: Any) -> Any:
    """A function that makes an address a pointer to values of this kind."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(typing: Any, address: Any) -> Any:
        def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), make

    return pointer


_numbers, _counts, _flags = _pointer_to(types.float64), _pointer_to(types.int64), _pointer_to(types.boolean)


@njit  # type: ignore[untyped-decorator]
def number(words: int, at: int) -> float:
    """A number."""
    return _numbers(words)[at]  # type: ignore[no-any-return]


@njit  # type: ignore[untyped-decorator]
def count(words: int, at: int) -> int:
    """A whole number."""
    return _counts(words)[at]  # type: ignore[no-any-return]


@njit  # type: ignore[untyped-decorator]
def flag(words: int, at: int) -> bool:
    """Whether something is so."""
    return _counts(words)[at] != 0  # type: ignore[no-any-return]


@njit  # type: ignore[untyped-decorator]
def numbers(words: int, at: int) -> Any:
    """An array of numbers."""
    own = _counts(words)
    return carray(_numbers(own[at]), (own[at + 1],))


@njit  # type: ignore[untyped-decorator]
def counts(words: int, at: int) -> Any:
    """An array of whole numbers."""
    own = _counts(words)
    return carray(_counts(own[at]), (own[at + 1],))


@njit  # type: ignore[untyped-decorator]
def flags(words: int, at: int) -> Any:
    """An array of what is so."""
    own = _counts(words)
    return carray(_flags(own[at]), (own[at + 1],))


@njit  # type: ignore[untyped-decorator]
def rows(words: int, at: int) -> Any:
    """Arrays of whole numbers."""
    own = _counts(words)
    return carray(_counts(own[at]), (own[at + 1], own[at + 2]))


@njit  # type: ignore[untyped-decorator]
def number_rows(words: int, at: int) -> Any:
    """Arrays of numbers."""
    own = _counts(words)
    return carray(_numbers(own[at]), (own[at + 1], own[at + 2]))


@njit  # type: ignore[untyped-decorator]
def planes(words: int, at: int) -> Any:
    """Arrays of arrays of numbers."""
    own = _counts(words)
    return carray(_numbers(own[at]), (own[at + 1], own[at + 2], own[at + 3]))

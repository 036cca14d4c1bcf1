"""Reads the words in which `rooflinekit.load.compiled` hands a named tuple of arrays to compiled code.

A named tuple of ninety arrays costs minutes to compile and microseconds a call, since each call copies all of it. Its
words are one address: a number stands in one word, an array in the word of its address and those of its lengths.
numba would compile a reader that is a function for each field anew; these are a few instructions at each use.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

Numba: TypeAlias = Any
"""A type, a value or a builder of numba's or LLVM's, which come without annotations."""


def _words(context: Numba, builder: Numba, arguments: Numba, kind: Numba = types.int64) -> Numba:
    """The words from the one that is named on, as pointer."""
    address, at = arguments
    start = builder.inttoptr(address, context.get_value_type(types.CPointer(kind)))
    return builder.gep(start, [at])


def _scalar(kind: Numba) -> Numba:
    """A reader of one number: float64, int64 or boolean, of words that start at an address."""
    stored = types.float64 if kind is types.float64 else types.int64

    @intrinsic  # type: ignore[untyped-decorator]
    def read(typing: Numba, words: Numba, at: Numba) -> Numba:
        def make(context: Numba, builder: Numba, signature: Numba, arguments: Numba) -> Numba:
            return context.cast(builder, builder.load(_words(context, builder, arguments, stored)), stored, kind)

        return kind(types.int64, types.int64), make

    return read


def _array(kind: Numba, dimensions: int) -> Numba:
    """A reader of an array in C order: its address, then its lengths."""
    array = types.Array(kind, dimensions, "C")

    @intrinsic  # type: ignore[untyped-decorator]
    def read(typing: Numba, words: Numba, at: Numba) -> Numba:
        def make(context: Numba, builder: Numba, signature: Numba, arguments: Numba) -> Numba:
            own, made = _words(context, builder, arguments), make_array(array)(context, builder)
            word = [
                builder.load(builder.gep(own, [context.get_constant(types.intp, place)]))
                for place in range(dimensions + 1)
            ]
            size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind)))
            strides = [size]
            for length in word[:1:-1]:
                strides.insert(0, builder.mul(strides[0], length))
            data = builder.inttoptr(word[0], made.data.type)
            populate_array(made, data=data, shape=word[1:], strides=strides, itemsize=size, meminfo=None)
            return made._getvalue()

        return array(types.int64, types.int64), make

    return read


number, count, flag = (_scalar(kind) for kind in (types.float64, types.int64, types.boolean))
numbers, counts, flags = (_array(kind, 1) for kind in (types.float64, types.int64, types.boolean))
rows, number_rows, planes = _array(types.int64, 2), _array(types.float64, 2), _array(types.float64, 3)

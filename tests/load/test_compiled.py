"""The loop that numba compiles: the bits of CPython, and what happens without a cache folder or without numba."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
from random_loads import clients_of, lists, played, random_load, rules_of, state_of, tables_of

import rooflinekit as rk
from rooflinekit.load import compiled
from rooflinekit.load.state import numpy_arrays
from rooflinekit.model.types.errors import MissingExtraError

needs_numba = pytest.mark.skipif(not find_spec("numba"), reason="needs numba")


def differing(load):
    """Fields of the state that are not the same to the last bit."""
    each = clients_of(load), rules_of(load), *tables_of(load)
    plain = lists(played(*each, state_of(load)))
    arrays = [compiled.as_arrays(one) for one in each]
    fast = lists(played(*arrays, state_of(load, numpy_arrays()), compiled.begun))
    return [name for name, value in plain.items() if value != fast[name]]


@needs_numba
def test_compiled_loads_have_the_bits_of_cpython():
    for seed in range(24):
        assert differing(random_load(seed)) == [], seed


@needs_numba
@pytest.mark.long
def test_a_thousand_compiled_loads_have_the_bits_of_cpython():
    assert [seed for seed in range(24, 1024) if differing(random_load(seed))] == []


@needs_numba
def test_lists_and_wrong_arrays_are_refused_before_they_are_read():
    load = random_load(0)
    records = clients_of(load), rules_of(load), *tables_of(load)
    c, k, t, h = (compiled.as_arrays(each) for each in records)
    with pytest.raises(TypeError, match=r"State\.sent is no NumPy array"):
        compiled.begun(c, k, t, h, state_of(load))
    with pytest.raises(TypeError, match=r"Clients\.isl is not 1-dimensional <i8 in C order"):
        compiled.begun(c._replace(isl=c.isl.astype("i4")), k, t, h, state_of(load, numpy_arrays()))


@needs_numba
def test_a_folder_that_cannot_be_written_costs_the_cache_alone(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROOFLINEKIT_CACHE", str(tmp_path / "file"))
    assert compiled._kept() is None
    assert callable(compiled._unkept().play)


@needs_numba
def test_the_copy_says_which_source_it_is_of(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLINEKIT_CACHE", str(tmp_path))
    assert compiled._kept() is not None
    (copy,) = tmp_path.glob("loop_*.py")
    assert copy.read_text("utf-8") == compiled.source(cached=True)


@needs_numba
def test_compiling_is_worth_it_for_many_requests_and_sooner_where_the_cache_has_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLINEKIT_CACHE", str(tmp_path))
    compiled._functions.cache_clear()
    least = [compiled.worth_it(requests) for requests in (100, 50_000, 1_000_000, 2_000_000)]
    assert least == [False, False, False, True]
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / f"{compiled._name()}.play-857.py311.nbi").touch()
    assert [compiled.worth_it(requests) for requests in (100, 30_000, 50_000)] == [False, False, True]
    compiled._functions()
    assert [compiled.worth_it(requests) for requests in (100, 30_000)] == [False, True]
    compiled._functions.cache_clear()


def test_without_numba_there_is_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled._functions.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'rooflinekit\[fast\]'"):
        compiled._functions()
    compiled._functions.cache_clear()


def test_all_fields_of_named_tuples_have_a_reader():
    for record in compiled.records():
        assert compiled._places(record)


@needs_numba
def test_the_rows_of_a_compiled_run_are_plain_numbers():
    """A page writes them as JSON."""
    compiled.prepare(compiled.SHARED)
    outcome = rk.simulate("llama-3-8b", rate=20.0, requests=compiled.LOADED, osl=16)
    assert json.loads(json.dumps(outcome.timeline)) == list(outcome.timeline)

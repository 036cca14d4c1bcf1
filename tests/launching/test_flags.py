"""The tables of settings against what the engines' sources were found to declare.

`options.csv` was extracted from the source distributions on PyPI (the `add_argument` calls and annotated fields of each
version under `read`) without a look at the tables' spans; those of llama.cpp are texts of the wheel of xllamacpp.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.engines import Flag, FlagTable, launchable, load_engine, load_flags, version_key

FOUND = {
    (row["engine"], row["option"]): row["versions"].split()
    for row in csv.DictReader((Path(__file__).parent / "options.csv").read_text(encoding="utf-8").splitlines())
}
CASES = [(engine, version) for engine in ("vllm", "sglang", "llama.cpp") for version in load_flags(engine).read]


def declared(engine: str, option: str, version: str) -> bool:
    """Whether the sources of a version have an option."""
    return version in FOUND[engine, option]


@pytest.mark.parametrize(("engine", "version"), CASES)
def test_every_option_of_a_table_is_declared_by_the_version(engine: str, version: str) -> None:
    options = {flag.spelling for flag in load_flags(engine).flags if flag.known_at(version)}
    assert {option for option in options if not declared(engine, option, version)} == set()


@pytest.mark.parametrize("engine", launchable())
def test_every_table_cites_orders_and_covers(engine: str) -> None:
    table = load_flags(engine)
    assert list(table.read) == sorted(table.read, key=version_key)
    assert all(flag.source for flag in table.flags)
    for flag in table.flags:
        assert version_key(flag.since) <= version_key(flag.last or table.read[-1])
        load_engine(engine, flag.since)  # a prediction can be made for it


@pytest.mark.parametrize("engine", launchable())
def test_a_concept_has_one_setting_at_a_version(engine: str) -> None:
    table = load_flags(engine)
    for version in table.read:
        known = [flag.concept for flag in table.flags if flag.known_at(version)]
        assert len(known) == len(set(known))


@pytest.mark.parametrize(
    ("engine", "concept", "version", "spelling"),
    [
        ("sglang", "eager", "0.5.9", "--disable-cuda-graph"),
        ("sglang", "eager_decode", "0.5.23", "--cuda-graph-backend-decode"),
        ("sglang", "attention_dp", "0.5.9", "--dp-size"),
        ("sglang", "attention_dp", "0.5.23", "--attn-dp-size"),
        ("vllm", "redundant_experts", "0.10.0", "--num-redundant-experts"),
        ("vllm", "redundant_experts", "0.14", "--eplb-config"),
    ],
)
def test_settings_change_their_name_with_the_version(engine: str, concept: str, version: str, spelling: str) -> None:
    flag = load_flags(engine).find(concept, version)
    assert flag is not None
    assert flag.spelling == spelling


def test_what_a_version_lacks_is_not_found() -> None:
    assert load_flags("vllm").find("dp", "0.8.0") is None
    assert load_flags("vllm").find("dp", "0.8.4") is None  # first read at 0.8.5: nothing is known before
    assert load_flags("sglang").find("eager", "0.5.12") is None  # last read at 0.5.9, renamed at 0.5.16


@pytest.mark.parametrize("version", ["0.5.5", "0.34.0", "1.0"])
def test_versions_that_were_not_read_are_refused(version: str) -> None:
    with pytest.raises(InputError, match=r"0\.6\.0 to 0\.33\.0"):
        load_flags("vllm").check(version)


@pytest.mark.parametrize("version", ["0.33.0", "0.33.4", "0.33.0.post1", "0.6", "0.12.3"])
def test_versions_in_between_are_taken(version: str) -> None:
    assert load_flags("vllm").check(version) == version


def test_between_two_versions_that_were_read_what_both_take_is_there() -> None:
    table = load_flags("vllm")
    older, between, newer = (table.find("kv", version) for version in ("0.14.1", "0.16.0", "0.18.1"))
    assert older and between and newer
    assert set(between.values) == set(older.values) & set(newer.values)
    assert table.known("--kv-cache-dtype", "0.16.0")
    assert table.find("redundant_experts", "0.10.2") is None  # an option of its own before, a key of JSON after
    changed = table.find("prefix_cache", "0.7.3")
    assert changed is not None
    assert not changed.default


def test_an_engine_without_a_server_is_refused() -> None:
    with pytest.raises(InputError, match=r"no server settings of gpt-fast are known; nearest: llama\.cpp, sglang, trt"):
        load_flags("gpt-fast")


def test_a_span_ends_where_it_was_last_seen() -> None:
    flag = Flag("x", "--x", "switch", "1.2", "1.4")
    table = FlagTable("e", "E", ("e",), ("1.2", "1.4", "1.6"), (flag,))
    assert [table.known("--x", at) for at in ("1.1", "1.2", "1.3.9", "1.4.0", "1.4.1")] == [0, 1, 1, 1, 0]

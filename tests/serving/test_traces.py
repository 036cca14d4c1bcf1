"""Traces: every format is known by its columns; nothing that cannot be trusted passes, whatever a file holds."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.model.types.errors import InputError, SpecError, UnknownNameError, WorkloadError
from rooflinekit.simulation.reuse import conversations, reuse_of
from rooflinekit.simulation.traces import Trace, load_trace

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"

# Column names and clocks of the published formats; the requests are invented.
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
AZURE_2024 = AZURE.replace("2023-11-16", "2024-05-10").replace("0,4808", "0+00:00,4808")
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.052,3180,8\n0.098189,110,27\n"
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,API log
"""
MOONCAKE = "\n".join(map(json.dumps, [
    {"timestamp": 27000, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 30500, "input_length": 1300, "output_length": 26, "hash_ids": [46, 47, 49]},
    {"timestamp": 30500, "input_length": 600, "output_length": 9, "hash_ids": [50, 51]},
]))  # fmt: skip
BAILIAN = "\n".join(map(json.dumps, [
    {"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 20, "output_length": 5, "type": "text",
     "turn": 1, "hash_ids": [1, 2]},
    {"chat_id": 1, "parent_chat_id": 0, "timestamp": 61.114, "input_length": 33, "output_length": 7, "type": "text",
     "turn": 2, "hash_ids": [1, 2, 3]},
]))  # fmt: skip
PLAIN = "time_s,isl,osl\n0,10,1\n1,20,2\n4,30,3\n"
FORMATS = {
    "azure": (AZURE, "azure", [0.0, 0.052, 0.098189], None),
    "azure 2024": (AZURE_2024, "azure", [0.0, 0.052, 0.098189], None),
    "azure of vidur": (VIDUR, "azure", [0.0, 0.052, 0.098189], None),
    "burstgpt": (BURST, "burstgpt", [0.0, 0.0, 40.0], None),
    "mooncake": (MOONCAKE, "mooncake", [0.0, 3.5, 3.5], 512),
    "bailian": (BAILIAN, "bailian", [0.0, 61.114], 16),
    "plain": (PLAIN, "plain", [0.0, 1.0, 4.0], None),
}


def written(folder, text, name="trace.csv"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_its_columns(tmp_path, name):
    text, known, times, block = FORMATS[name]
    trace = load_trace(written(tmp_path, text))
    assert (trace.format, trace.block_tokens, trace.cleaned) == (known, block, {})
    assert list(trace.time) == pytest.approx(times, abs=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_file_and_one_with_a_byte_order_mark_read_the_same(tmp_path, name):
    text = FORMATS[name][0]
    plain = list(load_trace(written(tmp_path, text)).arrivals())
    assert list(load_trace(written(tmp_path, gzip.compress(text.encode()), "a.gz")).arrivals()) == plain
    assert list(load_trace(written(tmp_path, b"\xef\xbb\xbf" + text.encode(), "b.csv")).arrivals()) == plain


def test_a_parquet_file_reads_as_its_csv(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pd.read_csv(written(tmp_path, PLAIN)).to_parquet(tmp_path / "t.parquet")
    assert list(load_trace(tmp_path / "t.parquet").arrivals()) == list(load_trace(tmp_path / "trace.csv").arrivals())
    written(tmp_path, b"PAR1 and then nothing", "broken.parquet")
    with pytest.raises(SpecError, match=r"broken\.parquet: is not a Parquet file"):
        load_trace(tmp_path / "broken.parquet")


def test_arrivals_carry_lengths_prefix_and_class(tmp_path):
    first = next(load_trace(written(tmp_path, MOONCAKE)).arrivals())
    assert (first.time, first.isl, first.osl, first.hashes, first.priority) == (0.0, 1200, 52, (46, 47, 48), 0)
    classed = load_trace(written(tmp_path, "time_s,isl,osl,priority\n3,10,1,2\n4,11,2,0\n"))
    assert [(a.time, a.priority) for a in classed.arrivals()] == [(0.0, 2), (1.0, 0)]


@pytest.mark.parametrize("speed", [0.5, 1.0, 8.0])
def test_a_replay_keeps_the_work_and_scales_the_clock(tmp_path, speed):
    trace = load_trace(written(tmp_path, PLAIN))
    once, fast = list(trace.arrivals()), list(trace.arrivals(speed))
    assert [a.time / speed for a in once] == [a.time for a in fast]
    assert [a[1:] for a in once] == [a[1:] for a in fast]
    assert len(list(trace.arrivals(speed, count=2))) == 2
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="speed"):
            next(trace.arrivals(wrong))


FLAWS = [  # a row, what is said of it, as what it counts
    ("0.5,20,2", "came before the one above", "out of order"),
    ("2,0,2", "isl is 0", "zero"),
    ("2,20,0", "osl is 0", "zero"),
    ("2,-20,2", "isl is -20", "negative"),
    ("-2,20,2", "time_s is -2", "negative"),
    ("2,99999999999,2", "isl is 1e+11; at most 10,000,000", "huge"),
    ("1e300,20,2", "more than ten years", "huge"),
    ("inf,20,2", "not finite", "huge"),
    ("2,,2", "isl is missing", "missing"),
    ("2,20", "osl is missing", "missing"),
    ("2,nan,2", "isl is not a number", "missing"),
    ("2,twenty,2", "isl 'twenty' is not a number", "unreadable"),
    ("2,20.5,2", "isl '20.5' is not a whole number", "unreadable"),
    ("2,20,2,7", "more cells than the header", "unreadable"),
]


@pytest.mark.parametrize(("row", "said", "kind"), FLAWS)
def test_a_row_that_cannot_be_trusted_is_refused_with_its_line_or_cleaned_and_counted(tmp_path, row, said, kind):
    file = written(tmp_path, f"time_s,isl,osl\n0,10,1\n1,20,2\n{row}\n9,30,3\n")
    with pytest.raises(SpecError) as refused:
        load_trace(file)
    assert f"{file}, line 4: " in str(refused.value)
    assert said in str(refused.value)
    assert "--clean" in str(refused.value)
    trace = load_trace(file, clean=True)
    assert trace.cleaned == {kind: 1}
    times = [arrival.time for arrival in trace.arrivals()]
    assert times == ([0.0, 0.5, 1.0, 9.0] if kind == "out of order" else [0.0, 1.0, 9.0])


def test_equal_rows_are_requests_and_counted(tmp_path):
    """Of a fine clock too: two users may send the same at once; only cleaning drops those."""
    assert load_trace(written(tmp_path, BURST), clean=True).equal == 1
    twice = written(tmp_path, PLAIN + PLAIN.splitlines()[-1] + "\n")
    trace, cleaned = load_trace(twice), load_trace(twice, clean=True)
    assert (len(trace), trace.equal, len(cleaned), dict(cleaned.cleaned)) == (
        len(cleaned) + 1, 1, len(load_trace(written(tmp_path, PLAIN))), {"duplicate": 1},
    )  # fmt: skip
    assert trace.time[-1] == trace.time[-2]
    (note,) = trace.notes
    assert note.endswith("rows that repeat one of their moment: 1; each counts as a request")


def test_a_plan_says_that_rows_of_its_trace_are_equal(tmp_path):
    rows = [f"{time / 8},{500 + time % 7},100" for time in range(400)]
    file = written(tmp_path, "\n".join(["time_s,isl,osl", *rows, rows[-1]]))
    few = {"tp": [1], "disaggregated": False}
    plan = rk.plan("llama-3-8b", "h100-sxm", "p95 ttft<2s", trace=file, **few)
    assert any("repeat one of their moment: 1;" in note for note in plan.warnings)


def test_cleaning_sorts_blocks_and_classes_with_their_requests(tmp_path):
    lines = MOONCAKE.splitlines()
    shuffled = load_trace(written(tmp_path, "\n".join([lines[1], lines[2], lines[0]])), clean=True)
    ordered = load_trace(written(tmp_path, MOONCAKE))
    assert shuffled.cleaned == {"out of order": 1}
    assert list(shuffled.arrivals()) == list(ordered.arrivals())
    rows = ["3,10,1,2", "1,11,2,0", "2,12,3,1"]
    mended = load_trace(written(tmp_path, "\n".join(["time_s,isl,osl,priority", *rows])), clean=True)
    assert [(a.time, a.isl, a.priority) for a in mended.arrivals()] == [(0.0, 11, 0), (1.0, 12, 1), (2.0, 10, 2)]


@pytest.mark.parametrize(("content", "said"), [
    ("", "is empty"), ("\n\n", "is empty"), ("time_s,isl,osl\n", "is empty"),
    ("time,in,out\n1,2,3\n", "those of no known trace"), (b"\xff\xfe\x00t", "is not UTF-8"),
    (b"\x1f\x8b\x08broken", "cannot be read"), ('{"timestamp": 1}', "no known trace"),
    ('{"timestamp": 1', "line 1: is not valid JSON"), ('{"a": ' * 20_000, "line 1: is not valid JSON"),
    (MOONCAKE + "\n[1]", "line 4: is not a JSON object"),
    (MOONCAKE.replace("[50, 51]", '"many"'), "line 3: hash_ids 'many' is not a list"),
    (MOONCAKE.replace("[50, 51]", "[50, 1.5]"), "line 3: hash_ids holds 1.5"),
    ("time_s,isl,osl\n0,0,1\n0,1,0\n", "line 2"),
])  # fmt: skip
def test_a_file_that_is_no_trace_is_one_line(tmp_path, content, said):
    with pytest.raises(SpecError, match=said.replace("[", r"\[")) as refused:
        load_trace(written(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_a_trace_of_which_nothing_is_left_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"no request is left \(2 zero\)"):
        load_trace(written(tmp_path, "time_s,isl,osl\n0,0,1\n0,1,0\n"), clean=True)
    with pytest.raises(SpecError, match="no such file"):
        load_trace(tmp_path / "nowhere.csv")


cells = st.one_of(
    st.integers(-5, 5000).map(str),
    st.floats().map(str),
    st.sampled_from(["", "nan", "inf", "1e999", "9" * 5000, "x", '"', "\x00", "1,2", "true", "null", "-0", " 7 ", "٣"]),
)


@given(st.data(), st.booleans())
def test_no_table_of_cells_makes_anything_but_a_trace_or_one_line(tmp_path_factory, data, clean):
    """Fuzz: what is left is in order, positive and finite; what is not says its line."""
    header = FORMATS[data.draw(st.sampled_from(["azure", "azure of vidur", "burstgpt", "plain"]))][0].splitlines()[0]
    width = header.count(",") + 1
    rows = data.draw(st.lists(st.lists(cells, min_size=1, max_size=width + 1), min_size=1, max_size=8))
    text = "\n".join([header, *(",".join(row) for row in rows)])
    file = written(tmp_path_factory.mktemp("fuzz"), text.encode("utf-8", "surrogatepass"))
    check(file, clean)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(st.fixed_dictionaries(
    {"timestamp": st.one_of(st.integers(0, 9), values), "input_length": st.one_of(st.integers(1, 9), values),
     "output_length": st.one_of(st.integers(1, 9), values)},
    optional={"hash_ids": st.one_of(st.lists(st.integers(), max_size=3), values), "chat_id": values},
), min_size=1, max_size=6), st.booleans())  # fmt: skip
def test_no_json_makes_anything_but_a_trace_or_one_line(tmp_path_factory, rows, clean):
    check(written(tmp_path_factory.mktemp("fuzz"), "\n".join(map(json.dumps, rows))), clean)


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_make_a_traceback(tmp_path_factory, content, clean):
    check(written(tmp_path_factory.mktemp("fuzz"), content), clean)


def check(file, clean):
    try:
        trace = load_trace(file, clean)
    except InputError as error:
        assert str(error).startswith(str(file))
        if not clean and "line" not in str(error):
            assert any(
                word in str(error) for word in ("no known trace", "is empty", "UTF-8", "cannot be read", "Parquet")
            )
        return
    arrivals = list(trace.arrivals())
    assert len(arrivals) == len(trace) >= 1
    times = [arrival.time for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert np.isfinite(times).all()
    assert all(1 <= a.isl <= 10**7 and 1 <= a.osl <= 10**7 for a in arrivals)
    assert clean or trace.cleaned == {}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the Azure traces are not here")
@pytest.mark.parametrize(("name", "requests", "burstiness"), [("conversation", 19_366, 1.1), ("code", 8_819, 13.1)])
def test_the_azure_traces_of_2023(name, requests, burstiness):
    """Counts as published; the code trace comes in bursts, the conversations nearly as Poisson."""
    trace = load_trace(SHARED / f"azure_2023_{name}.csv")
    gaps = np.diff(trace.time)
    assert len(trace) == requests
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.02)


@pytest.mark.parametrize("text", [
    "time_s;isl;osl\n0;100;10\n1.5;100;9\n", "time_s\tisl\tosl\n0\t100\t10\n1.5\t100\t9\n",
    "time_s,isl,osl\n0,100,10,\n1.5,100,9,\n", "time_s,isl,osl\n1700000000,100,10\n1700000001.5,100,9\n",
])  # fmt: skip
def test_tables_as_spreadsheets_write_them_and_clocks_since_1970(tmp_path, text):
    trace = load_trace(written(tmp_path, text))
    assert (list(trace.time), list(trace.isl), list(trace.osl)) == ([0.0, 1.5], [100, 100], [10, 9])


@pytest.mark.parametrize(("text", "said"), [
    ("time_s,isl,isl,osl\n0,100,10,1\n", "has the column 'isl' twice"),
    ("time_s,isl,osl\n5,100,10\n1700000001,100,10\n", "more than ten years after the one above"),
])  # fmt: skip
def test_columns_and_clocks_that_contradict_themselves(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        load_trace(written(tmp_path, text))


# --- prefix reuse -------------------------------------------------------------------------------------------------

CONVERSATIONS = Path(__file__).parents[2] / "docs" / "conversations.jsonl"
MOONCAKE_TRACES = SHARED.parent / "sessions"


def by_hand(trace, blocks):
    """Prompt tokens that a cache of so many blocks finds: a dictionary in order of use, one request after the other."""
    held, saved = OrderedDict(), 0
    for index in range(len(trace)):
        ids = trace.prefix(index)
        prefixes = [ids[: end + 1] for end in range(len(ids))]
        hits = next((n for n, each in enumerate(prefixes) if each not in held), len(ids))
        saved += min(hits * trace.block_tokens, trace.isl[index])
        for each in reversed(prefixes):
            held[each] = None
            held.move_to_end(each)
            while len(held) > blocks:
                held.popitem(last=False)
    return saved


def test_the_hit_rate_of_seven_requests_counted_by_hand():
    """0 + 512 + 1,024 + 1,024 + 2,048 + 512 + 3,072 of 15,700 tokens."""
    reuse = reuse_of(load_trace(CONVERSATIONS))
    assert reuse.most == 8192 / 15_700
    assert reuse.share(512 * 3) == by_hand(load_trace(CONVERSATIONS), 3) / 15_700
    # Block 0 comes back with each request; the last prompt's other five blocks are a minute old.
    assert sorted(reuse.ages.tolist()) == [5.0, 15.0, *[20.0] * 3, *[30.0] * 2, 35.0, *[40.0] * 3, *[60.0] * 5]


@pytest.mark.skipif(not MOONCAKE_TRACES.is_dir(), reason="the Mooncake traces are not here")
@pytest.mark.parametrize(
    ("name", "requests", "share"), [("conversation", 12_031, "37.4"), ("synthetic", 3_993, "65.1")]
)
def test_the_mooncake_traces_repeat_themselves_as_counted_elsewhere(name, requests, share):
    trace = load_trace(MOONCAKE_TRACES / f"mooncake_{name}.jsonl.gz")
    reuse = reuse_of(trace)
    assert len(trace) == requests
    assert f"{100 * reuse.most:.1f}" == share
    assert reuse.share(reuse.size(1.0)) == reuse.most
    assert reuse_of(trace, 4, "random").most < reuse_of(trace, 4).most == pytest.approx(reuse.most, rel=0.01)


@given(
    prompts=st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 4)), min_size=1, max_size=25),
    blocks=st.integers(1, 30),
)
def test_one_pass_finds_what_caches_of_every_size_find(prompts, blocks):
    """The stack against a cache that is played; ids may repeat within a prompt, and mean other blocks elsewhere."""
    isl = [max(4 * len(ids) - 4 + last, 1) for ids, last in prompts]
    ids = [block for ids, _ in prompts for block in ids] or [0]
    ends = np.cumsum([len(ids) for ids, _ in prompts]).tolist()
    ends[-1] = len(ids)
    trace = Trace("t", "mooncake", [float(at) for at in range(len(isl))], isl, [1] * len(isl), (), ids, ends, 4)
    reuse = reuse_of(trace)
    for size in {1, 2, blocks, 1000}:
        assert reuse.share(4 * size) * sum(isl) == pytest.approx(by_hand(trace, size))


def test_conversations_stay_together_and_a_shared_prompt_is_nobodys():
    """Three conversations of the file: A five times, B twice, C; block 0 is everybody's."""
    assert conversations(load_trace(CONVERSATIONS)) == [0, 1, 0, 1, 0, 5, 0]
    with pytest.raises(UnknownNameError, match="prefix-affinity"):
        rk.trace(CONVERSATIONS, router="afinity")


def test_a_trace_without_ids_has_no_hit_rate(tmp_path):
    answer = rk.trace(written(tmp_path, PLAIN), model="llama-3-8b")
    assert answer.hit_rate is None and answer.memories == ()
    assert "no block ids" in answer.warnings[0]
    with pytest.raises(WorkloadError, match="no block ids"):
        reuse_of(load_trace(written(tmp_path, PLAIN)))


def test_what_each_memory_finds_adds_up_and_a_farther_one_is_kept_longer():
    tiers = ["host=1GB,50GB/s,10us,0.002$/GBh", "nvme=10GB,5GB/s,1ms,0.0001$/GBh"]
    answer = rk.trace(CONVERSATIONS, model="llama-3-8b", kv="bf16", cache_tier=tiers, price=3.0)
    own, host, nvme = answer.memories
    assert own.hit_rate == answer.hit_rate  # the pool is larger than the trace
    assert (host.from_here, nvme.from_here) == (0.0, 0.0)
    assert host.tokens - own.tokens == pytest.approx(1e9 / 131_072)
    assert host.keep_s * 20 == pytest.approx(nvme.keep_s)
    assert host.load_gb_s == pytest.approx(131_072 / (own.keep_s / own.tokens) / 1e9)
    assert own.usd_per_million < host.usd_per_million < nvme.usd_per_million  # nothing comes from them, and they cost


# Of splitwise-sim, Vidur and Azure's multimodal trace of 2025; a client of ServeGen; a conversation of ShareGPT's form.
SPLITWISE = """request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,1,1,4096,32
1,2,0,3,1,2048,8
"""
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n2015,156,2171,12.92\n"
SERVEGEN = """0,1.33,8.6,Weibull,0.375,0.397
600,0,0,,0,0
1200,0.27,6.0,Weibull,0.495,3.381
1800,0.15,4.07,Gamma,0.0604,103.65
"""
MULTIMODAL = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 00:00:00.1,2,1200,30
2024-10-15 00:00:01.1,0,200,30
"""


def test_splitwise_has_its_own_columns(tmp_path):
    trace = load_trace(written(tmp_path, SPLITWISE))
    assert (trace.format, list(trace.time), list(trace.isl), list(trace.osl)) == (
        "splitwise",
        [0, 2],
        [4096, 2048],
        [32, 8],
    )


def test_lengths_alone_come_at_a_rate_or_by_users(tmp_path):
    file = written(tmp_path, LENGTHS)
    trace = load_trace(file)
    assert (trace.timed, list(trace.isl)) == (False, [3772, 2015])
    with pytest.raises(InputError, match="lengths and no times; add --rate, or --concurrency"):
        rk.simulate("llama-3-8b", trace=file, calibration="none")
    for load in ({"rate": 2.0}, {"concurrency": 2}):
        assert rk.simulate("llama-3-8b", trace=file, calibration="none", **load).requests.finished == 2
    with pytest.raises(InputError, match="lengths and no times, and nothing to sum up"):
        rk.trace(file)
    both = load_trace(written(tmp_path, "isl,osl\n" + "10,1\n" * 4000)).coming(5.0)
    assert both.time[-1] / 4000 == pytest.approx(0.2, rel=0.05)
    with pytest.raises(InputError, match="says when requests come; leave --rate out"):
        rk.simulate("llama-3-8b", trace=written(tmp_path, PLAIN), rate=2.0)


def test_a_client_of_servegen_has_rates_and_takes_lengths(tmp_path):
    file = written(tmp_path, SERVEGEN)
    trace = load_trace(file)
    assert (trace.sized, trace.timed) == (False, True)
    first = sum(1 for time in trace.time if time < 600.0)
    assert first == pytest.approx(1.33 * 600, rel=0.5)  # gaps vary 8.6 times their mean
    assert not any(600.0 <= time < 1200.0 for time in trace.time)
    outcome = rk.simulate("llama-3-8b", trace=file, isl=200, osl=8, requests=20, calibration="none")
    assert outcome.requests.finished == 20
    assert not any("no part here" in note for note in outcome.warnings)
    with pytest.raises(InputError, match="rates and no lengths"):
        rk.plan("llama-3-8b", trace=file, gpus="h100-sxm", slo="tpot<50ms")


def test_conversations_are_counted_by_their_letters_and_it_is_said(tmp_path):
    turns = [
        {"from": "human", "value": "x" * 400},
        {"from": "gpt", "value": "y" * 800},
        {"from": "human", "value": "z"},
    ]
    short = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello there, what can I do?"}]
    file = written(tmp_path, json.dumps([{"id": "a", "conversations": turns}, {"id": "b", "conversations": short}]))
    trace = load_trace(file)
    assert (list(trace.isl), list(trace.osl)) == ([100], [200])
    assert "4 letters a token (an assumption)" in trace.notes[0]


def test_images_of_azure_s_trace_are_noted(tmp_path):
    trace = load_trace(written(tmp_path, MULTIMODAL))
    assert list(trace.isl) == [1200, 200]
    assert "1 requests show images; their tokens are in ContextTokens" in trace.notes[0]


def test_a_trace_with_block_ids_uses_the_prefix_cache_as_its_engine_does(tmp_path):
    rows = [{"timestamp": 200 * n, "input_length": 6758, "output_length": 20,
             "hash_ids": [*range(12), 100 + n, 1000 + n]} for n in range(40)]  # fmt: skip
    file = written(tmp_path, "\n".join(map(json.dumps, rows)), "trace.jsonl")

    def first_token(**said):
        outcome = rk.simulate("llama-3-8b", trace=file, calibration="none", **said)
        return outcome.ttft_ms.mean, outcome.warnings

    plain, notes = first_token()
    assert any(note.startswith("the prefix cache is on, as vllm has it by default") for note in notes)
    assert plain == first_token(prefix_cache=True)[0] == first_token(engine="vllm@0.10.0")[0]
    whole, _ = first_token(prefix_caching="off")
    assert whole > 3.0 * plain  # of 14 blocks, two are new
    assert first_token(engine="vllm@0.6.3")[0] == pytest.approx(whole, rel=0.2)  # off by default then
    with pytest.raises(InputError, match="exclude each other"):
        first_token(prefix_cache=True, prefix_caching="off")


def test_tokens_that_nobody_drafts_are_refused_as_in_estimate():
    with pytest.raises(InputError, match="draft_tokens needs a draft"):
        rk.simulate("llama-3-8b", rate=1.0, requests=5, draft_tokens=3)
    with pytest.raises(InputError, match="draft_tokens needs a draft"):
        rk.estimate("llama-3-8b", draft_tokens=3)


def test_conversations_that_are_all_too_short_are_not_called_an_empty_file(tmp_path):
    path = tmp_path / "chat.json"
    path.write_text('[{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}]')
    with pytest.raises(SpecError, match="no conversation has 4 to 1,024 tokens in"):
        load_trace(path)


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(SpecError, match="is a folder, not a file"):
        load_trace(tmp_path)

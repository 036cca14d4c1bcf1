"""Sessions: turns that wait for each other, and what caches find of them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.simulation.requests import Job
from rooflinekit.simulation.reuse import reuse_of
from rooflinekit.simulation.sessions import BLOCK, SessionSource, parse_sessions, session_laws, session_trace
from rooflinekit.simulation.simulate import make_load

CHAT = "chat:turns=6,wait=20,first=500,asked=60,system=256"
SERVED = {"rate": 2.0, "requests": 400, "osl": 40, "kv_tokens": 60_000, "prefix_cache": True, "calibration": "none"}


@pytest.mark.parametrize("name", session_laws())
def test_a_turn_begins_with_all_that_was_said_before(name):
    """Prompts of a session: what was sent and answered is the beginning of the next, unless the context is full."""
    law, seen = session_laws()[name], defaultdict(list)
    source = SessionSource(law, Fixed(100), 200_000, users=5, requests=300)
    trace = session_trace(source)
    for at in range(len(trace)):
        assert trace.isl[at] + trace.osl[at] <= 200_000
        blocks = trace.prefix(at)
        assert len(blocks) == (trace.isl[at] + trace.osl[at]) // BLOCK
        seen[blocks[-1] >> 36].append((trace.time[at], trace.isl[at], blocks))
    for turns in seen.values():
        for (time, isl, blocks), (later, longer, more) in pairwise(turns):
            assert later > time
            if longer > isl:
                assert more[: len(blocks)] == blocks


@pytest.mark.parametrize(("name", "turns"), [("chat", 1.83), ("coding-agent", 211.0), ("swe-bench", 15.3)])
def test_sessions_have_the_turns_that_were_counted(name, turns):
    assert session_laws()[name].mean_turns == pytest.approx(turns, rel=0.08)
    assert parse_sessions(f"{name}:turns=9").mean_turns == pytest.approx(9.0, rel=0.05)


def test_a_stream_of_sessions_is_steady_from_its_start():
    """As many requests come in the first fifth of an hour as in the others: some sessions are under way."""
    law = parse_sessions("chat:turns=8,wait=60")
    trace = session_trace(SessionSource(law, Fixed(50), 100_000, rate=2.0, requests=7000, seed=3))
    times = trace.time[trace.former :]
    counts = [sum(600 * part <= time < 600 * part + 600 for time in times) for part in range(5)]
    assert all(count == pytest.approx(1200, rel=0.2) for count in counts), counts


@pytest.mark.parametrize("kind", ["chat", "chat:turns=6,wait=60", "swe-bench"])
def test_the_first_seconds_of_a_stream_are_as_busy_as_all_others(kind):
    """Waits under way are met in proportion to their length; what is left of them brings no burst at the start."""
    counts = [0, 0, 0]
    for seed in range(3):
        trace = session_trace(
            SessionSource(parse_sessions(kind), Fixed(50), 131_072, rate=30.0, requests=1200, seed=seed)
        )
        for time in trace.time[trace.former :]:
            if time < 30.0:
                counts[int(time // 10.0)] += 1
    assert counts == pytest.approx([900.0] * 3, rel=0.25)


def test_what_is_left_of_a_time_under_way():
    """E[W²]/(2·E[W]) in the mean, from samples of W itself."""
    law, draw = session_laws()["chat"].wait, Random(1)
    whole = [law.at(draw.random()) for _ in range(60_000)]
    left = [law.left(draw) for _ in range(60_000)]
    wanted = sum(each**2 for each in whole) / sum(whole) / 2.0
    assert sum(left) / len(left) == pytest.approx(wanted, rel=0.05)


def test_the_simulator_finds_what_the_stack_says():
    """One replica that keeps up: hits of the run against the trace of the same sessions, whose answers take as long."""
    outcome = rk.simulate("llama-3-8b", sessions=CHAT, **SERVED)
    assert outcome.requests.finished == outcome.requests.arrived == pytest.approx(400, rel=0.2)
    law = parse_sessions(CHAT)
    trace = session_trace(SessionSource(law, Fixed(40), 8192, rate=2.0, requests=400))
    found = reuse_of(trace)
    small = rk.simulate("llama-3-8b", sessions=CHAT, **(SERVED | {"kv_tokens": 9000}))
    assert outcome.replicas[0].prefix_hit_rate == pytest.approx(found.share(60_000), abs=0.04)
    assert small.replicas[0].prefix_hit_rate == pytest.approx(found.share(9000), abs=0.08)
    assert small.replicas[0].prefix_hit_rate < outcome.replicas[0].prefix_hit_rate - 0.1
    tiers = rk.simulate("llama-3-8b", sessions=CHAT, cache_tier="host=100GB", **(SERVED | {"kv_tokens": 9000}))
    assert tiers.replicas[0].prefix_hit_rate == pytest.approx(found.most, abs=0.04)
    assert tiers.replicas[0].tiers["host"] > 0.1


def test_sessions_stay_with_their_replica_under_affinity_alone():
    computed = {
        router: sum(use.prompt_tokens for use in rk.simulate(
            "llama-3-8b", sessions=CHAT, replicas=3, router=router, **SERVED).replicas)
        for router in ("prefix-affinity", "random")
    }  # fmt: skip
    assert computed["prefix-affinity"] < 0.7 * computed["random"]


def test_users_hold_one_session_each_and_the_warm_up_is_not_counted():
    outcome = rk.simulate("llama-3-8b", sessions=CHAT, concurrency=4, requests=40, warmup=10, calibration="none")
    assert (outcome.requests.arrived, outcome.requests.measured) == (50, 40)
    load, _ = make_load({"sessions": "chat", "concurrency": 3, "requests": 5, "osl": 20}, most=4096)
    assert load.hash_tokens == BLOCK and load.longest == 4096 and load.sessions is not None
    assert len(list(load.sessions.start())) == 3


def test_users_leave_who_wait_longer_than_their_patience():
    """With an equal wait w of all turns each is the last with 1 − exp(−w/θ): geometric, cut at the law's own."""
    law, wait = parse_sessions("chat:turns=6,wait=1,first=100,asked=10,patience=8"), 2.0
    source = SessionSource(law, Fixed(10), 8192, users=1, requests=4000)
    sent, job = 0, None
    queue = [arrival for arrival, _ in source.start()]
    while queue:
        sent, job = sent + 1, Job(0, queue.pop())
        job.made, job.first = job.osl, job.arrived + wait
        queue += [arrival for arrival, _ in source.after_end(job.first, job)]
    stays = math.exp(-wait / 8.0)
    said = sum((1.0 - stays**turns) / (1.0 - stays) for turns in law.counts) / len(law.counts)
    assert sent / (job.session + 1) == pytest.approx(said, rel=0.05)
    assert source.gave_up / (job.session + 1) == pytest.approx(
        sum(1.0 - stays ** (turns - 1) for turns in law.counts) / len(law.counts), rel=0.05)  # fmt: skip


def test_a_server_that_is_too_slow_loses_turns():
    slow = SERVED | {"rate": 12.0, "calibration": "none", "engine": "ideal", "max_num_seqs": 1}
    outcome = rk.simulate("llama-3-8b", sessions=f"{CHAT},patience=1", **slow)
    patient = rk.simulate("llama-3-8b", sessions=CHAT, **slow)
    assert outcome.requests.arrived < patient.requests.arrived
    assert any("a patience of 1 s in the mean ended" in note for note in outcome.warnings)
    assert not any("patience" in note for note in patient.warnings)


@pytest.mark.parametrize(("text", "said"), [
    ("chat:patience=-1", "patience must be"),
    ("chats", "unknown kind of sessions 'chats'; nearest: chat"), ("chat:turns=0.5", "turns must be at least 1"),
    ("chat:turns=0", "turns must be at least 1"), ("chat:patience=0", "patience must be"),
    ("chat:most=0", "most must be"), ("chat:system=-5", "system must be"),
    ("chat:wait=-1", "wait must be"), ("chat:most=1.5", "most must be"), ("chat:gap=3", "takes no 'gap'"),
])  # fmt: skip
def test_sessions_that_make_no_sense_are_refused(text, said):
    with pytest.raises(WorkloadError, match=said):
        parse_sessions(text)


def test_sessions_come_by_a_rate_or_users_and_nothing_else():
    with pytest.raises(InputError, match="--rate of requests, or --concurrency"):
        make_load({"sessions": "chat", "arrivals": "poisson:rate=1"})
    words = ["simulate", "llama-3-8b", "--sessions", "chat:first=500,asked=50", "--rate", "2", "--requests", "40"]
    run = CliRunner().invoke(app, [*words, "--format", "json"])
    asked = json.loads(run.stdout)["inputs"]
    assert (asked["sessions"], asked["osl"]) == ("chat:first=500,asked=50", "343")
    assert "sessions chat" in CliRunner().invoke(app, words).stdout


def test_first_prompts_beyond_the_context_are_said():
    """A note, in the simulator and in a plan; none where they fit."""
    asked = {"rate": 2.0, "osl": 40, "calibration": "none"}
    for first, told in ((100_000, True), (500, False)):
        kind = f"chat:turns=3,first={first}"
        notes = rk.simulate("llama-3-8b", requests=40, sessions=kind, **asked).warnings
        assert sum("are cut to 8,192" in each for each in notes) == told
    answer = rk.plan("llama-3-8b", sessions="chat:turns=3,first=100000", tp=[1], aggregated_only=True, slo="ttft<60s",
                     **asked)  # fmt: skip
    assert sum("are cut to 8,192" in each for each in answer.warnings) == 1


def test_an_open_stream_of_sessions_says_how_many_requests_came():
    found = rk.simulate("llama-3-8b", sessions="chat", rate=2.0, requests=300, calibration="none")
    assert found.requests.arrived != 300
    assert any(
        f"{found.requests.arrived} requests came in the 150 s in which 300 come" in note for note in found.warnings
    )
    closed = rk.simulate("llama-3-8b", sessions="chat", concurrency=4, requests=60, calibration="none")
    assert closed.requests.arrived == 60
    assert not any("in the mean" in note for note in closed.warnings)

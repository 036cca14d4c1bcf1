"""The script and the command: quoting, files, plans, exit codes."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.launching.launch import launch_script
from rooflinekit.specs import load_model

Run = Callable[..., Result]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 256,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
HOSTILE = [
    "a b", "it's", 'say "hi"', "$(touch INJECTED)", "`touch INJECTED`", "; touch INJECTED", "&& touch INJECTED #",
    "-rf", "#x", "*", "~", "é–µ", "END_OF_FILE", "$HOME",
]  # fmt: skip
SINGLE = {"scenario": {"model": "llama-3-8b", "batch": 4}, "replicas": 2}
SPLIT = {role: {"scenario": {"model": "llama-3-8b"}, "replicas": count} for role, count in
         (("prefill", 3), ("decode", 1))}  # fmt: skip


def split_on(engine: str) -> dict[str, Any]:
    """A split candidate on an engine."""
    return {role: {**part, "scenario": {**part["scenario"], "engine": engine}} for role, part in SPLIT.items()}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`rooflinekit launch …` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["launch", *map(str, words)])


def hostile_model(folder: Path, name: str) -> Path:
    """A model in a folder with such a name."""
    place = folder / name
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return place


class TestQuoting:
    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
    def test_no_name_breaks_out(self, tmp_path: Path, name: str, engine: str) -> None:
        """The script runs with a stand-in for the engine, which writes down what it was given."""
        place = hostile_model(tmp_path, name)
        made = rk.launch(place, engine=engine, replicas=2)
        stand_in = tmp_path / "bin"
        stand_in.mkdir()
        program = stand_in / made.servers[0].program[0]
        program.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done >> seen.$CUDA_VISIBLE_DEVICES\n')
        program.chmod(0o755)
        work = tmp_path / "work"
        work.mkdir()
        bash = shutil.which("bash")
        if bash is None:
            pytest.skip("no bash here")
        (work / "launch.sh").write_text(launch_script(made), encoding="utf-8")
        run = subprocess.run([bash, "launch.sh"], cwd=work, check=True, capture_output=True,
                             env={"PATH": f"{stand_in}:/usr/bin:/bin", "HOME": "/nowhere"})  # fmt: skip
        assert run.stderr == b""
        assert not list(tmp_path.rglob("INJECTED"))
        for number in range(2):
            seen = (work / f"seen.{number}").read_text(encoding="utf-8").split("\0")[:-1]
            assert tuple(seen) == made.servers[0].args(number)[1:]
            assert str(place.resolve()) in seen

    @pytest.mark.parametrize("name", ["two\nlines", "tab\there", "\x1b[31m"])
    def test_control_characters_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(rk.InputError, match="control characters"):
            rk.launch(hostile_model(tmp_path, name))

    def test_a_comment_stays_one(self, tmp_path: Path) -> None:
        made = rk.launch(hostile_model(tmp_path, "x\u2028touch INJECTED"))
        lines = launch_script(made).split("\n")  # as a shell sees lines
        assert not [line for line in lines if line.strip().startswith("touch")]

    def test_the_script_says_what_the_arguments_say(self) -> None:
        made = rk.launch("llama-3-70b", tp=4, draft="ngram", draft_tokens=2, acceptance=0.5)
        code = "\n".join(line for line in launch_script(made).splitlines() if not line.startswith("#"))
        assert tuple(shlex.split(code.replace("\\\n", " "))) == made.commands[0]


class TestCheckpoint:
    @pytest.mark.parametrize(
        ("given", "argument"),
        [
            ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
            ("META-LLAMA/meta-llama-3-8b-instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
            ("qwen3-8b", "Qwen/Qwen3-8B"),
            ("palm-8b", "/path/to/palm-8b"),
        ],
    )
    def test_the_id_that_was_meant(self, given: str, argument: str) -> None:
        assert rk.launch(given).servers[0].positional == (argument,)

    def test_a_placeholder_is_said(self) -> None:
        assert any("replace /path/to/palm-8b" in note for note in rk.launch("palm-8b").notes)

    def test_a_file_of_ones_own_is_not_a_checkpoint(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.yaml"
        source = Path(load_model("smollm2-135m").value.origin)
        mine.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        made = rk.launch(mine)
        assert made.servers[0].positional == ("/path/to/mine",)
        assert any("holds no weights" in note for note in made.notes)


class TestReplicas:
    def test_ports_and_devices_count_up(self) -> None:
        (server,) = rk.launch("llama-3-8b", tp=2, replicas=9).servers
        assert (server.per_host, server.hosts) == (4, 3)
        assert [server.env(n)["CUDA_VISIBLE_DEVICES"] for n in range(4)] == ["0,1", "2,3", "4,5", "6,7"]
        assert [server.args(n)[-1] for n in range(4)] == ["8000", "8001", "8002", "8003"]

    def test_a_replica_of_several_hosts(self) -> None:
        made = rk.launch("llama-3-8b", tp=8, host_gpus=4, engine="sglang")
        assert ("--nnodes", "2") in [setting.args for setting in made.servers[0].settings]
        assert ("--dist-init-addr", "HEAD-HOST:5000") in made.servers[0].options()
        assert any("--node-rank 0 to 1" in note for note in made.notes)

    @pytest.mark.parametrize(
        ("model", "asked", "joined"),
        [
            ("llama-3-8b", {"tp": 8}, True),
            ("llama-3-8b", {"tp": 4}, False),
            ("qwen3-30b-a3b", {"dp": 8, "ep": 8}, False),
        ],
    )
    def test_ray_joins_hosts_that_share_one_attention_replica(
        self, model: str, asked: dict[str, int], joined: bool
    ) -> None:
        server = rk.launch(model, host_gpus=4, engine="vllm", **asked).servers[0]
        assert (("--distributed-executor-backend", "ray") in server.options()) is joined

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_several_replicas_need_a_load_balancer(self, replicas: int) -> None:
        notes = rk.launch("llama-3-8b", replicas=replicas).notes
        assert any("load balancer" in note for note in notes) is (replicas > 1)

    def test_attention_replicas_over_several_hosts(self) -> None:
        made = rk.launch("qwen3-30b-a3b", dp=16, ep=16, engine="vllm")
        found = [setting.args for setting in made.servers[0].settings]
        assert ("--data-parallel-size-local", "8") in found
        assert ("--data-parallel-address", "HEAD-HOST") in found
        assert any("--headless" in note for note in made.notes)

    @pytest.mark.parametrize(("users", "limit", "largest"), [(8, None, "128"), (8, 32, "32")])
    def test_graphs_are_captured_for_what_runs_and_for_128_at_least(
        self, users: int, limit: int | None, largest: str
    ) -> None:
        server = rk.launch("llama-3-8b", engine="sglang", concurrency=users, max_num_seqs=limit).servers[0]
        assert ("--cuda-graph-max-bs-decode", largest) in [setting.args for setting in server.settings]

    @pytest.mark.parametrize("replicas", [2, 8])
    def test_attention_replicas_of_sglang_lie_inside_its_ranks(self, replicas: int) -> None:
        (server,) = rk.launch("qwen3-30b-a3b", dp=replicas, ep=replicas, engine="sglang").servers
        found = [setting.args for setting in server.settings]
        assert ("--tp-size", str(replicas)) in found
        assert ("--attn-dp-size", str(replicas)) in found

    def test_one_replica_needs_no_devices(self) -> None:
        assert rk.launch("llama-3-8b").servers[0].env() == {}


class TestPlan:
    def test_the_best_and_the_others(self) -> None:
        plan = {"best": SINGLE, "candidates": [SINGLE, {"fleet": [SINGLE, SPLIT]}]}
        assert [s.role for s in rk.launch(plan=plan).servers] == ["serve"]
        assert [s.role for s in rk.launch(plan=plan, candidate=2).servers] == [
            "part-1-serve", "part-2-prefill", "part-2-decode",
        ]  # fmt: skip

    def test_a_split_in_vllm(self) -> None:
        prefill, decode = rk.launch(plan={"best": SPLIT, "candidates": []}).servers
        told = [{setting.flag: setting.value for setting in server.settings} for server in (prefill, decode)]
        roles = [json.loads(str(values["--kv-transfer-config"])) for values in told]
        assert [role["kv_role"] for role in roles] == ["kv_producer", "kv_consumer"]
        channels = [prefill.env(n)["VLLM_NIXL_SIDE_CHANNEL_PORT"] for n in range(3)]
        assert len({*channels, decode.env()["VLLM_NIXL_SIDE_CHANNEL_PORT"]}) == 4

    def test_a_split_in_sglang(self) -> None:
        prefill, decode = rk.launch(plan={"best": split_on("sglang"), "candidates": []}).servers
        assert ("--disaggregation-mode", "prefill") in prefill.options()
        assert ("--disaggregation-bootstrap-port", "8999") in prefill.options(1)
        assert ("--disaggregation-mode", "decode") in decode.options()

    def test_a_split_in_trtllm(self) -> None:
        made = rk.launch(plan={"best": split_on("trtllm"), "candidates": []})
        front = yaml.safe_load(made.files["disagg.yaml"])
        assert front["context_servers"] == {"num_instances": 3, "urls": [f"localhost:{8100 + n}" for n in range(3)]}
        assert front["generation_servers"]["urls"] == ["localhost:8200"]
        assert made.servers[0].config["cache_transceiver_config"]["backend"] == "DEFAULT"
        assert ("--extra_llm_api_options", "prefill.yaml") in made.servers[0].options()
        script = launch_script(made, with_files=True)  # `<<-` drops the tab before a line of a file, and no space
        assert "\n\thostname: localhost\n" in script
        assert "\n  trtllm-serve " in script

    def test_lengths_and_load_are_those_of_the_traffic(self) -> None:
        traffic = {"rate": 3.0, "users": None, "isl_mean": 499.6, "osl_mean": 100.0, "isl_cv": 0.5, "osl_cv": 0.0,
                   "arrival_cv": 1.0}  # fmt: skip
        best = {"scenario": {"model": "llama-3-8b"}, "replicas": 2, "load": 1.5}
        best["predicted"] = {"ttft_ms": {"p95": 80.04}, "tpot_ms": {"p95": 9.0}}
        made = rk.launch(plan={"best": best, "candidates": [], "traffic": traffic})
        prediction = made.servers[0].prediction
        assert (prediction.isl, prediction.osl) == (500, 100)
        assert prediction.load == "1.5 requests/s, Poisson, mean lengths (cv 0.5 in, 0 out)"
        assert prediction.tpot_ms == rk.estimate("llama-3-8b", rate=1.5, isl=500, osl=100, isl_cv=0.5).tpot_ms
        assert made.notes[0] == "the plan predicts p95 TTFT 80.0 ms, p95 TPOT 9.0 ms at its peak"
        turn = rk.launch(plan={"best": {**best, "burstiness": 0.5}, "candidates": [], "traffic": traffic})
        assert turn.servers[0].prediction.load == "1.5 requests/s, gamma, cv 0.5, mean lengths (cv 0.5 in, 0 out)"
        users = rk.launch(plan={"best": best, "candidates": [], "traffic": {**traffic, "users": 3.0}})
        load = "closed loop of 2 users, 20 requests, mean lengths (cv 0.5 in, 0 out)"
        assert users.servers[0].prediction.load == load
        own = {**best, "scenario": {"model": "llama-3-8b", "batch": 7, "isl": 64}}
        assert rk.launch(plan={"best": own, "candidates": [], "traffic": traffic}).servers[0].prediction.batch == 7

    def test_halves_that_cannot_exchange_a_cache(self) -> None:
        mixed = {"prefill": split_on("sglang")["prefill"], "decode": SPLIT["decode"]}
        with pytest.raises(rk.DeploymentError, match="both need the same engine"):
            rk.launch(plan={"best": mixed, "candidates": []})

    def test_an_old_version_has_no_connector(self) -> None:
        with pytest.raises(rk.DeploymentError, match=r"0\.9\.0 to 0\.33\.0 have one"):
            rk.launch(plan={"best": split_on("vllm@0.8.5"), "candidates": []})

    @pytest.mark.parametrize(
        ("plan", "options", "message"),
        [
            ({}, {}, "no list of candidates"),
            ({"best": None, "candidates": [SINGLE]}, {}, "choose one with candidate, 1 to 1"),
            ({"best": SINGLE, "candidates": [SINGLE]}, {"candidate": 2}, "it has 1 to 1"),
            ({"best": SINGLE, "candidates": [SINGLE]}, {"candidate": 0}, "candidate"),
            ({"best": SINGLE, "candidates": [7]}, {"candidate": 1}, "not an object"),
            ({"best": {}, "candidates": []}, {}, "has no scenario"),
            ({"best": {"prefill": SINGLE}, "candidates": []}, {}, "prefill and no decode"),
            ({"best": {"fleet": []}, "candidates": []}, {}, "not a list of candidates"),
            ({"best": {"fleet": [{"fleet": [SINGLE]}]}, "candidates": []}, {}, "part 1 is not a candidate"),
            ({"best": {"scenario": {}}, "candidates": []}, {}, "needs a model"),
            ({"best": {"scenario": {"model": "x y z"}}, "candidates": []}, {}, "unknown model"),
            ({"best": {**SINGLE, "replicas": 0}, "candidates": []}, {}, "replicas"),
            ({"best": SINGLE, "candidates": []}, {"tp": 2}, "own model and options"),
            ({"best": SINGLE, "candidates": []}, {"replicas": 2}, "own number of replicas"),
        ],
    )
    def test_what_is_no_plan_is_refused(self, plan: dict[str, Any], options: dict[str, Any], message: str) -> None:
        with pytest.raises(rk.InputError, match=message):
            rk.launch(plan=plan, **options)


class TestCommand:
    def test_a_script_on_the_terminal(self, run: Run) -> None:
        result = run("llama-3-8b", "--tp", 2, "--batch", 32)
        assert result.exit_code == 0
        assert "TTFT" in result.stdout
        assert "flags checked for vllm 0.33.0" in result.stdout
        comments = [line for line in result.stdout.splitlines() if line.startswith("#")]
        assert max(map(len, comments)) <= 80

    def test_what_does_not_fit_exits_3_and_writes_nothing(self, run: Run, tmp_path: Path) -> None:
        for out in ("x.sh", "folder/"):
            assert run("llama-3-70b", "--out", out).exit_code == 3
        assert list(tmp_path.iterdir()) == []

    def test_a_file_is_not_overwritten(self, run: Run, tmp_path: Path) -> None:
        assert run("llama-3-8b", "--out", "x.sh").exit_code == 0
        before = (tmp_path / "x.sh").read_text()
        assert run("llama-3-8b", "--tp", 2, "--out", "x.sh").exit_code == 2
        assert (tmp_path / "x.sh").read_text() == before
        assert run("llama-3-8b", "--tp", 2, "--out", "x.sh", "--force").exit_code == 0
        assert (tmp_path / "x.sh").read_text() != before

    def test_a_folder_gets_every_file_or_none(self, run: Run, tmp_path: Path) -> None:
        words = ("llama-3-8b", "--engine", "trtllm", "--kv", "fp8", "--out", "made")
        assert run(*words).exit_code == 0
        made = tmp_path / "made"
        assert {path.name for path in made.iterdir()} == {"launch.sh", "serve.yaml"}
        assert made.joinpath("launch.sh").stat().st_mode & 0o111
        made.joinpath("launch.sh").unlink()
        assert run(*words).exit_code == 2
        assert {path.name for path in made.iterdir()} == {"serve.yaml"}
        assert run(*words, "--force").exit_code == 0

    @pytest.mark.parametrize("format", ["json", "csv", "md"])
    def test_other_formats(self, run: Run, format: str) -> None:
        result = run("llama-3-8b", "--format", format)
        assert result.exit_code == 0
        assert "--gpu-memory-utilization" in result.stdout
        if format == "json":
            assert json.loads(result.stdout) == rk.launch("llama-3-8b").to_dict()

    def test_a_plan_from_a_file(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "plan.json").write_text(json.dumps({"best": SINGLE, "candidates": [SPLIT]}))
        assert run("--plan", "plan.json").stdout == launch_script(rk.launch(plan={"best": SINGLE, "candidates": []}))
        assert "kv-transfer-config" in run("--plan", "plan.json", "--candidate", 1).stdout

    @pytest.mark.parametrize(
        "words",
        [
            (), ("llama-3-8b", "--plan", "plan.json"), ("--plan", "missing.json"), ("--plan", "."),
            ("llama-3-8b", "--candidate", "1"), ("llama-3-8b", "--replicas", "0"), ("llama-3-8b", "--host-gpus", "0"),
            ("llama-3-8b", "--engine", "vllm@x"), ("llama-3-8b", "--format", "json", "--out", "folder/"),
            ("llama-3-8b", "--out", "no/such/x.sh"), ("llama-3-8b", "--out", "no/such/"),
            ("--plan", "plan.json", "--tp", "2"), ("--plan", "plan.json", "--gpu", "l4"),
        ],
    )  # fmt: skip
    def test_bad_input_is_one_line(self, run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
        (tmp_path / "plan.json").write_text(json.dumps({"best": SINGLE, "candidates": []}))
        result = run(*words)
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert result.stdout == ""
        assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]

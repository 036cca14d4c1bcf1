"""The action, the pre-commit hook, the workflow, the image and its compose file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import MAKEFILE
from test_guard import pytest_benchmark

ROOT = Path(__file__).parents[2]
ACTION: Any = yaml.safe_load((ROOT / "action" / "action.yml").read_text())
WORKFLOW: Any = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())
GUARD = next(step for step in ACTION["runs"]["steps"] if step.get("id") == "guard")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Benchmark files, and a `rooflinekit` in the path."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "rooflinekit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rooflinekit "$@"\n')
    (bin_ / "rooflinekit").chmod(0o755)
    main = pytest_benchmark()
    slower = json.loads(json.dumps(main))
    for row in slower["benchmarks"]:
        row["stats"] = {key: value * 2 if isinstance(value, float) else value for key, value in row["stats"].items()}
    (tmp_path / "main.json").write_text(json.dumps(main))
    (tmp_path / "now one.json").write_text(json.dumps(main))
    (tmp_path / "slow.json").write_text(json.dumps(slower))
    return tmp_path


def run_guard(folder: Path, **told: str) -> tuple[int, str, str]:
    """The exit code of the action's script, its summary and its outputs."""
    names = {"FILES": "", "BASELINE": "", "OPTIONS": "", "JUNIT": ""} | told
    assert set(GUARD["env"]) == set(names)
    env = {**os.environ, **names, "PYTHONPATH": str(ROOT), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
           "GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_OUTPUT": str(folder / "output")}  # fmt: skip
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", GUARD["run"]]  # GitHub's own, of `shell: bash`
    done = subprocess.run(shell, check=False, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, (folder / "summary").read_text(), (folder / "output").read_text()


class TestAction:
    @pytest.mark.slow
    def test_it_passes_what_is_no_slower_and_fails_what_is(self, folder: Path) -> None:
        code, _, output = run_guard(folder, FILES="now one.json\n", BASELINE="main.json\n", JUNIT="guard.xml")
        assert (code, output) == (0, "regressed=false\n")
        assert (folder / "guard.xml").read_text().startswith("<testsuite")
        code, summary, output = run_guard(folder, FILES="slow.json", BASELINE="main.json", OPTIONS="--noise=0.01\n")
        assert (code, output.splitlines()[-1]) == (4, "regressed=true")
        assert "regressed" in summary

    @pytest.mark.slow
    def test_a_file_that_is_not_there_is_no_regression(self, folder: Path) -> None:
        code, _, output = run_guard(folder, FILES="none.json; echo $(id)", BASELINE="main.json")
        assert (code, output) == (2, "regressed=false\n")

    def test_inputs_reach_no_script_but_as_variables(self) -> None:
        for step in ACTION["runs"]["steps"]:
            assert "${{" not in step.get("run", "")
        used = set(re.findall(r"inputs\.(\w+)", (ROOT / "action" / "action.yml").read_text()))
        assert used == set(ACTION["inputs"])


def test_the_hook_runs_the_command() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "rooflinekit guard"
    assert re.search(hook["files"], "benchmarks/now.json")


def test_the_workflow_calls_the_checks_and_targets_that_exist() -> None:
    runs = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in runs
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    assert all(run.split()[1] in targets for run in runs if run.startswith("make "))
    assert WORKFLOW["permissions"] == {"contents": "read"}
    lowest = WORKFLOW["jobs"]["checks"]["strategy"]["matrix"]["python"][0]
    assert f'requires-python = ">={lowest}"' in (ROOT / "pyproject.toml").read_text()


def tool(name: str) -> str:
    """A program beside this Python or in the path; skips where there is none."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return found or pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(
    ("schema", "name"),
    [("github-workflows", ".github/workflows/checks.yml"), ("github-actions", "action/action.yml"),
     ("compose-spec", "compose.yaml")],
)  # fmt: skip
def test_the_published_schemas_hold_it(schema: str, name: str) -> None:
    words = [tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", name]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


class TestImage:
    def test_the_linter_of_dockerfiles_finds_nothing(self) -> None:
        done = subprocess.run([tool("hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")

    def test_docker_compose_takes_its_file_with_a_token_and_not_without(self) -> None:
        words = [tool("docker-compose"), "--file", "compose.yaml", "config", "--quiet"]
        for token, code in (("secret", 0), ("", 1)):
            env = os.environ | {"ROOFLINEKIT_TOKEN": token}
            done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
        assert "choose a token" in done.stderr

    def test_it_serves_as_nobody_special(self) -> None:
        lines = (ROOT / "Dockerfile").read_text().splitlines()
        words = [line.split(maxsplit=1) for line in lines if line and line[0].isupper()]
        assert words[0][1].startswith("python:3")
        assert "-slim" in words[0][1]
        user = next(rest for word, rest in words if word == "USER")
        assert user not in ("root", "0")
        (command,) = (json.loads(rest) for word, rest in words if word == "CMD")
        assert command[0] == "serve"

    def test_the_compose_file_mounts_what_there_is(self) -> None:
        compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
        assert {"rooflinekit", "prometheus", "grafana"} <= set(compose["services"])
        for service in compose["services"].values():
            assert "latest" not in service.get("image", "")
            assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))
            for mount in service.get("volumes", ()):
                source = mount.partition(":")[0]
                assert not source.startswith("./") or (ROOT / source).exists(), mount

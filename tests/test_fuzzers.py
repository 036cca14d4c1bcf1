"""Random command lines, damaged files and random deployments: an answer that obeys physics, or a refusal of one line.

A sample runs in `make test`, all in `make test-long`. A failure names its number, from which the same is drawn again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.cli.command import find
from rooflinekit.model.types.errors import InputError
from rooflinekit.simulation.traces import load_trace
from rooflinekit.specs import load_accelerator, load_model, spec_dir
from rooflinekit.specs.calibration.load import read_calibration
from rooflinekit.specs.hardware import load_system

MODELS = ("llama-3-8b", "opt-125m", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "gemma-3-27b")
GPUS = ("h100-sxm", "t4", "mi300x", "l40s", "b200-sxm", "a100-sxm-80gb", "gb200")
NAMES = {
    "model": MODELS, "accelerator": GPUS, "engine": ("vllm", "sglang", "trtllm", "gpt-fast", "ideal", "vllm@0.6.3"),
    "format": ("bf16", "fp8", "int4", "nvfp4", "fp32", "int8"),
}  # fmt: skip
ODD = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "9" * 400, "abc", "--", "é", "\x1b[31m", "2K", "1,000", "1.5", "[]",
    "none", "null", "=", ",", "a=b", "uniform:1-2", "uniform:9-1", "../..", "0x10", "1e-9", "true",
)  # fmt: skip
WHOLE = ("1", "2", "3", "4", "8", "17", "64", "256", "1000")
FILES = {"path", "folder"}
COMMANDS = {  # and what each command needs besides its options
    "estimate": ["MODEL"], "explain": ["MODEL", "tpot"], "shapes": ["MODEL"], "levers": ["MODEL"], "cost": ["MODEL"],
    "launch": ["MODEL"], "show": ["MODEL"], "models": [], "gpus": [], "sweep": ["MODEL"],
    "simulate": ["MODEL", "--requests", "40"], "plan": ["MODEL", "--aggregated-only", "--tp", "1,2"],
}  # fmt: skip


def value(option, draw):
    """A text for an option: mostly one that it may take."""
    if draw.random() < 0.15:
        return draw.choice(ODD)
    if isinstance(option.complete, tuple) and option.complete:
        return draw.choice(option.complete)
    if option.complete:
        return draw.choice(NAMES[option.complete])
    match option.kind:
        case "count" | "loose count" | "counts" | "length":
            return draw.choice(WHOLE)
        case "number" | "loose" | "price":
            return draw.choice(("0.3", "0.9", "1", "2.5", "20", "90"))
        case _:
            return draw.choice(("0.2,0.8", "p95 ttft<1s", "h100-sxm=2", "tpot<40ms", "4"))


def command_line(number):
    """A command with up to six of its options."""
    draw = random.Random(number)
    name = draw.choice(list(COMMANDS))
    words = [draw.choice(MODELS) if word == "MODEL" else word for word in COMMANDS[name]]
    rows = {key: row for key, row in find(name).options.items() if row.kind not in FILES and key != "scheduler"}
    for key in draw.sample(sorted(rows), min(draw.randrange(7), len(rows))):
        words.append("--" + key.replace("_", "-"))
        if rows[key].kind != "flag":
            words.append(value(rows[key], draw))
    if draw.random() < 0.05:
        words.insert(draw.randrange(len(words) + 1), draw.choice(ODD))
    return [name, *words]


def check_command(number):
    words = command_line(number)
    result = CliRunner().invoke(app, words)
    told = f"{number}: {words} gives {result.exit_code}: {result.output[-300:]}"
    assert result.exit_code in {0, 2, 3, 4}, told
    assert "Traceback" not in result.output, told
    if result.exit_code == 0 and "json" in words and words[words.index("json") - 1] == "--format":
        json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{told}: {text} is not JSON"))


@pytest.mark.parametrize("number", range(40))
def test_a_command_line_is_answered_or_refused(number):
    check_command(number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
def test_thousands_of_command_lines_are_answered_or_refused(number):
    for each in range(1000 + 150 * number, 1000 + 150 * (number + 1)):
        check_command(each)


# --- damaged files ----------------------------------------------------------------------------------------------------


def table(rows):
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


SCENARIOS = table([
    ("model", "gpu", "batch", "isl", "osl", "tp"),
    ("llama-3-8b", "h100-sxm", 1, 128, 32, 1), ("opt-125m", "t4", 4, 64, 8, 1),
])  # fmt: skip
TRACE = table([("time_s", "isl", "osl"), *((at / 4, 100 + at, 10 + at) for at in range(30))])
CONFIG = json.dumps({
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}, indent=1)  # fmt: skip


def spec(kind, name):
    return (spec_dir(kind) / f"{name}.yaml").read_text(encoding="utf-8")


def swept(path):
    """What `sweep` says of a table, on the command line as people call it."""
    result = CliRunner().invoke(app, ["sweep", str(path), "--format", "csv"])
    assert result.exit_code in {0, 2, 3, 4}, f"{path.read_bytes()!r} gives {result.exit_code}: {result.output[-300:]}"
    assert "Traceback" not in result.output


KINDS = {
    "model": (".yaml", lambda: spec("model", "mixtral-8x7b"), load_model),
    "accelerator": (".yaml", lambda: spec("accelerator", "h100-sxm"), load_accelerator),
    "system": (
        ".yaml", lambda: spec("system", "hgx-h100"), lambda path: load_system(path, load_accelerator("h100-sxm").value)
    ),
    "calibration": (
        ".yaml", lambda: (spec_dir("accelerator") / "calibrations/l40s--vllm.yaml").read_text(encoding="utf-8"),
        read_calibration,
    ),
    "config": (".json", lambda: CONFIG, load_model),
    "scenarios": (".csv", lambda: SCENARIOS, swept),
    "trace": (".csv", lambda: TRACE, load_trace),
}  # fmt: skip


def damaged(text, draw):
    """The bytes of a file to which one thing happened."""
    lines, at = text.splitlines(keepends=True), draw.randrange(len(text))
    line = draw.randrange(len(lines))
    match draw.randrange(8):
        case 0:
            text = text[:at]
        case 1:
            text = "".join(lines[:line])
        case 2:
            text = "".join(lines[:line] + lines[line + 1 :])
        case 3:
            text = "".join(lines[: line + 1] + lines[line:])
        case 4:
            draw.shuffle(lines)
            text = "".join(lines)
        case 5:
            text = text[:at] + draw.choice(ODD) + text[at + 1 :]
        case 6:
            text = text[:at] + draw.choice(":,{}[]\"'\t\n\r;-%&*!|>#@`\\") + text[at:]
        case _:
            return (
                text[:at].encode() + draw.choice((b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80")) + text[at:].encode()
            )
    return text.encode()


def check_file(kind, number, folder):
    ending, text, load = KINDS[kind]
    path = folder / f"damaged-{number}{ending}"
    path.write_bytes(damaged(text(), random.Random(f"{kind} {number}")))
    try:
        load(path)
    except InputError as error:
        assert "\n" not in str(error), f"{kind} {number}"
        assert len(str(error)) < 1000, f"{kind} {number}"
    finally:
        path.unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_one_line(kind, tmp_path):
    for number in range(25):
        check_file(kind, number, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_damaged_files_are_read_or_refused_in_one_line(kind, tmp_path):
    for number in range(1000, 1500):
        check_file(kind, number, tmp_path)


def check_cuts(paths, load, folder):
    """What is left of a spec file that was cut at the end of any line is refused."""
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for count in range(1, len(lines)):
            cut = folder / f"{path.stem}-{count}.yaml"
            cut.write_text("".join(lines[:count]), encoding="utf-8")
            with pytest.raises(InputError):
                load(cut)
            cut.unlink()


@pytest.mark.parametrize(("kind", "load"), [("model", load_model), ("accelerator", load_accelerator)])
def test_a_spec_that_was_cut_is_refused(kind, load, tmp_path):
    check_cuts(random.Random(1).sample(sorted(spec_dir(kind).glob("*.yaml")), 4), load, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "load"), [("model", load_model), ("accelerator", load_accelerator)])
def test_every_spec_that_was_cut_is_refused(kind, load, tmp_path):
    check_cuts(sorted(spec_dir(kind).glob("*.yaml")), load, tmp_path)


# --- relations --------------------------------------------------------------------------------------------------------

_SLACK = 1.0 + 1e-9  # rounding of sums


def check_relations(number):
    """One random deployment, and the same with one thing changed."""
    draw = random.Random(number)
    model, gpu, tp = draw.choice(MODELS), draw.choice(GPUS), draw.choice((1, 2, 4, 8))
    work = {
        "batch": draw.choice((1, 3, 16, 100)),
        "isl": draw.choice((16, 500, 1500)),
        "osl": draw.choice((2, 64, 400)),
    }
    shared = {"tp": tp, "allow_oom": True, "engine": draw.choice(("vllm", "sglang", "trtllm", "ideal"))}
    try:
        plain = rk.estimate(model, gpu, **work, **shared)
    except InputError as error:
        assert "\n" not in str(error)
        return
    told = f"{number}: {model} on {gpu}, {work}, {shared}"
    answer = plain.to_dict()
    bound = rk.estimate(model, gpu, calibration="none", **work, **shared)
    for metric in ("ttft_ms", "tpot_ms"):
        expected, least = answer[metric], answer["bound"][metric]
        assert 0.0 < least <= expected * _SLACK < math.inf, told
        low, high = (answer["interval"] or {metric: (expected, expected)})[metric]
        assert low <= expected * _SLACK, told
        assert expected <= high * _SLACK, told
        assert math.isclose(bound.to_dict()[metric], least, rel_tol=1e-9), told
    memory = answer["memory"]
    parts = sum(memory[f"{part}_bytes"] for part in ("weight", "kv", "activation", "overhead"))
    assert math.isclose(parts, memory["total_bytes"], rel_tol=1e-9), told
    assert memory["fits"] <= (work["batch"] <= memory["max_batch"]), told
    more = rk.estimate(model, gpu, **(work | {"batch": work["batch"] + 1}), **shared)
    longer = rk.estimate(model, gpu, **(work | {"isl": work["isl"] + 128}), **shared)
    for other in (more, longer):
        assert other.to_dict()["bound"]["ttft_ms"] * _SLACK >= answer["bound"]["ttft_ms"], told
        assert other.to_dict()["bound"]["tpot_ms"] * _SLACK >= answer["bound"]["tpot_ms"], told
        assert other.to_dict()["memory"]["kv_bytes"] * _SLACK >= memory["kv_bytes"], told
        assert other.to_dict()["memory"]["weight_bytes"] == memory["weight_bytes"], told


@pytest.mark.parametrize("number", range(12))
def test_a_random_deployment_obeys_physics(number):
    check_relations(number)


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_thousands_of_deployments_obey_physics(number):
    for each in range(1000 + 200 * number, 1000 + 200 * (number + 1)):
        check_relations(each)

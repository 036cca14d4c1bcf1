"""Sentences on a CPU or a TPU do not call it a GPU."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.specs import counted_chips, load_accelerator, names, noun_of

CPU = ["--gpu", "cpu-xeon-8480-2s", "--engine", "llama.cpp"]


def test_every_accelerator_has_a_word_of_its_kind():
    nouns = {name: load_accelerator(name).value.noun for name in names("accelerator")}
    assert set(nouns.values()) == {"CPU", "GPU", "accelerator"}
    assert (nouns["cpu-xeon-8480-2s"], nouns["mi300x"], nouns["tpu-v6e"]) == ("CPU", "GPU", "accelerator")
    assert counted_chips(2, "cpu-xeon-8480-2s") == "2 CPUs"
    assert noun_of("of-nobody") == "accelerator"


@pytest.mark.parametrize(
    "command",
    [
        ["estimate", "llama-3-8b", *CPU, "-v"],
        ["simulate", "llama-3-8b", *CPU, "--rate", "0.1", "--requests", "100", "--replicas", "2"],
        ["levers", "llama-3-8b", *CPU],
        ["plan", "llama-3-8b", *CPU, "--rate", "0.3", "--slo", "p95 tpot<500ms", "--tp", "1"],
    ],
    ids=lambda command: command[0],
)
def test_sentences_on_a_cpu_say_cpu(command):
    """Heads of tables keep the name of the column; the sentences do not."""
    text = CliRunner().invoke(app, command).output
    assert re.search(r"\bCPUs?\b", text)
    for line in text.splitlines():
        if "tok/s/GPU" not in line and "GPUs $/month" not in line and not re.search(r"  GPUs  ", line):
            assert not re.search(r"\d GPUs?\b|\b(a|each|per) GPU\b", line), line

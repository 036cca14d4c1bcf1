"""One browser and one page of each kind, for all that looks at them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rooflinekit as rk

from .browser import CHROMIUM, Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A tab; whoever asks for it is skipped where there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def odd_model(folder: Path) -> Path:
    """A small model in a folder whose name has what labels, addresses and markup are made of."""
    path = folder / "a|b&c=<i>{{data}}"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 32000,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "tie_word_embeddings": False}), encoding="utf-8")  # fmt: skip
    return path


@pytest.fixture(scope="session")
def made_plan() -> dict[str, Any]:
    """A plan as its JSON."""
    found = rk.plan("llama-3-8b", ["h100-sxm"], "p95 ttft<1s, p95 tpot<40ms", rate=20, isl=1000, osl=200, tp=[1, 2],
                    disaggregated=False, token_budget=[8192], max_num_seqs=[256])  # fmt: skip
    return found.to_dict()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    outcome = rk.simulate("llama-3-8b", rate=8.0, requests=60, isl="512", osl="uniform:20-80")
    columns = pd.DataFrame({"model": "m", "gpu": ["a", "b"] * 5000, "batch": range(10_000),
                            "tpot_ms": [1.0 + place / 7 for place in range(10_000)],
                            "output_tok_s_per_user": [900.0 / (1 + place % 97) for place in range(10_000)],
                            "output_tok_s_per_gpu": [30.0 * (1 + place % 89) for place in range(10_000)],
                            "fits": [place % 9 > 0 for place in range(10_000)]})  # fmt: skip
    few: dict[str, Any] = {"models": ["qwen3-30b-a3b"], "gpus": ["h200-sxm"]}
    made = {
        "deployment": rk.write_report(folder / "a.html", "llama-3-8b", batch=16, **few),
        "against": rk.write_report(folder / "b.html", "llama-3-8b", rate=8.0, isl=512, osl=50, against="h200-sxm",
                                   simulation=outcome, models=[], gpus=[]),
        "named": rk.write_report(folder / "n.html", odd_model(folder), models=[], gpus=[]),
        "fixed": rk.write_report(folder / "c.html", "mixtral-8x7b", tp=2, ep=2, models=[], gpus=[], walk=False),
        "sweep": rk.write_report(folder / "d.html", sweep=columns),
    }  # fmt: skip
    return {name: report.path for name, report in made.items()}

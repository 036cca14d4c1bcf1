"""The same question gives the same bytes in every process, however Python's hashes fall."""

from __future__ import annotations

import os
import subprocess
import sys

ASKED = """
import json
import rooflinekit as rk

for model, gpu, asked in (
    ("llama-3-8b", "h100-sxm", {"pp": 2, "batch": 8}),
    ("mixtral-8x7b", "h100-sxm", {"pp": 2, "microbatches": 2, "batch": 8}),
    ("gpt-oss-120b", "h200-sxm", {"pp": 2, "tp": 2, "rate": 1.0, "requests": 40}),
    ("gemma-3-27b", "h100-sxm", {"pp": 2, "tp": 2, "concurrency": 6, "requests": 24}),
):
    print(json.dumps(rk.estimate(model, gpu, **asked).to_dict(), default=str))
    if "batch" not in asked:
        print(json.dumps(rk.simulate(model, gpu, **asked).to_dict(), default=str))
"""


def test_pipelined_deployments_answer_alike_under_any_order_of_hashes():
    answers = {
        subprocess.run(
            [sys.executable, "-c", ASKED], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1

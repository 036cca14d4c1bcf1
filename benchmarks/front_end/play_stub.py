"""Play the loads that real front ends were measured under, before the stub of 10 ms a step, and compare first tokens.

    python benchmarks/front_end/play_stub.py [SHARE ...]

SHARE: of a front end for requests while it has more tokens than it can send (`LEAST_LEFT`), the shipped one if none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.load import loop
from rooflinekit.load.arrays import Clients
from rooflinekit.load.loop import LEAST_LEFT
from rooflinekit.load.played import play
from rooflinekit.load.policies import Limits, rules_of
from rooflinekit.load.table import constant_table

LOADS = Path(__file__).parents[2] / "validate" / "measurements" / "front-end-2026-11-29" / "loads.csv"
STEP = 0.010  # [s], of the stub
REQUEST = 1.0e-3  # [s], of these machines
PROMPT_TOKEN = {"vllm": 1.9e-6, "sglang": 3.3e-6}  # [s]; SGLang's with 1,280 tokens
ANSWER_TOKEN, TOGETHER = 51e-6, 21e-6  # [s]; each alone, and with ten together
HOP = 2e-3  # [s]
MANY = 1 << 24  # places, blocks and tokens of a step: the stub has no limit


def main() -> None:
    loads = pd.read_csv(LOADS, keep_default_na=False)
    loads = loads[(loads["osl"] > 1) & (loads["users"] >= 64)]
    for share in [float(word) for word in sys.argv[1:]] or [LEAST_LEFT]:
        vars(loop)["LEAST_LEFT"] = share
        ratios = np.array([mean_ttft(row) / row["ttft_mean_ms"] for _, row in loads.iterrows()])
        print(f"share {share}: played over measured, rms of its logarithm {np.sqrt(np.mean(np.log(ratios) ** 2)):.2f}")
        for (_, row), ratio in zip(loads.iterrows(), ratios, strict=True):
            words = f"{row['engine']} {row['options']}".strip()
            print(f"{words:28}{row['users']:5} users, {row['osl']:5} tokens: {ratio:.2f}")


def mean_ttft(row: pd.Series) -> float:
    """Mean time to first token of a load, played [ms]."""
    count = int(row["requests"])
    work = REQUEST + PROMPT_TOKEN[row["engine"]] * row["prompt_tokens"]
    stream = TOGETHER if "interval" in row["options"] else ANSWER_TOKEN
    beside = PROMPT_TOKEN["vllm"] if row["engine"] == "vllm" else 0.0  # a thread of its own tokenises
    zeros = [0] * count
    clients = Clients(
        int(row["users"]), 0, [0.0] * count, [int(row["prompt_tokens"])] * count, [int(row["osl"])] * count, zeros,
        zeros, [work] * count, [],
    )  # fmt: skip
    limits = Limits(max_num_seqs=4096, token_budget=MANY, overlap=0)
    rules = rules_of(limits, blocks=MANY, block=16, stream=stream, tokeniser=beside, hop=HOP)
    return 1e3 * float(np.mean(play(clients, rules, constant_table(STEP).arrays).ttft))


if __name__ == "__main__":
    main()

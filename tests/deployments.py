"""Deployments of every kind, whose coefficients are compared with the models themselves."""

from __future__ import annotations

from typing import Any

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.operating_point import Predictor

CASES: tuple[tuple[str, str, dict[str, Any], str | None], ...] = (
    ("llama-3.1-8b", "h100-sxm", {}, None),  # dense
    ("llama-3.1-8b", "h100-sxm", {"engine": "gpt-fast"}, None),  # decode without graphs
    ("llama-3.3-70b", "b200-sxm", {"tp": 8, "weights": "fp8", "kv": "fp8", "engine": "trtllm"}, None),  # quantised
    ("qwen3-30b-a3b", "h200-sxm", {"tp": 2, "engine": "sglang"}, None),  # experts
    ("gpt-oss-120b", "h100-sxm", {}, None),  # windows, MXFP4
    ("deepseek-v3.2", "h200-sxm", {"tp": 8}, None),  # latent and sparse attention
    ("qwen3-next-80b-a3b", "h100-sxm", {"tp": 2}, None),  # recurrent layers
    ("mixtral-8x7b", "a100-sxm-80gb", {"tp": 2}, "none"),  # the bare bound
    ("llama-3.1-8b", "l40s", {"tp": 4}, None),  # over PCI Express
)


def predictor_of(case: int) -> Predictor:
    """What predicts the case of that number."""
    model, gpu, keys, calibration = CASES[case]
    return resolve(model, gpu, read_deployment(dict(keys)), calibration).predictor

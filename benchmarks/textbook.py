"""Two rules of thumb that predictions of whole requests are compared with, for all rows of a deployment at once.

Textbook: a prompt takes 2·P FLOP a token at MFU 50 %, a step of decoding reads all weights and the cache at MBU 60 %
(C. Chen, Transformer Inference Arithmetic, 2022, https://kipp.ly/transformer-inference-arithmetic/, for the two counts;
A. Agarwal et al., LLM Inference Performance Engineering: Best Practices, 2023,
https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices, for MBU, of which 50 to 60 % were
observed; MFU 50 % is what large training runs reach at best, A. Chowdhery et al., PaLM, 2022, arXiv:2204.02311, 46 %).
The batch is what the row says, or what memory holds; queues, interference, collectives and hosts take no time.

Hand derates: the datasheet roofline, kernel by kernel, with every rate times a round constant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rooflinekit.evidence.accuracy_serving import ServedGroup, predict_group
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.step import make_plan

MFU, MBU = 0.5, 0.6
PEAK, BANDWIDTH, LINKS = 0.7, 0.8, 0.7  # hand derates: assumptions, of the size that calculators come with


def textbook(group: ServedGroup) -> np.ndarray:
    """Every row by the counts of parameters and cache bytes, in the row's own unit; NaN for a model that does not fit.

    A mixture of experts computes with the active parameters, and reads all of them, or those that the batch can visit.
    """
    plan, memory = group.resolved.plan, group.resolved.predictor.memory
    accelerator, count = plan.system.accelerator, count_parameters(plan.model)
    weights = getattr(plan.precision.formats, plan.model.matrices[-1])
    peak = accelerator.peak(plan.precision.compute(weights))
    gpus, isl = plan.deployment.gpus, group.column("isl")
    osl = np.nan_to_num(group.column("osl"), nan=1.0)
    room = np.maximum(np.broadcast_to(memory.max_batch(isl + osl / 2, isl), isl.shape), 1.0)
    users = group.column("concurrency")
    batch = np.fmin(np.where(np.isnan(users), room, users), room)
    ttft = 2.0 * count.active * batch * isl / (gpus * peak * MFU)
    read = np.fmin(float(count.total), count.active * batch) * weights.bytes
    cache = batch * (isl + osl / 2) * memory.kv_bytes_per_token
    tpot = (read + cache) / (gpus * accelerator.memory_bandwidth * MBU)
    whole = (ttft + (osl - 1.0) * tpot) * np.fmax(np.nan_to_num(users) / batch, 1.0)
    total = np.fmax(np.nan_to_num(users), batch) * osl / whole
    values = {
        "ttft_ms": 1e3 * ttft, "tpot_ms": 1e3 * tpot, "e2e_ms": 1e3 * whole, "output_tok_s_total": total,
        "output_tok_s_per_gpu": total / gpus, "output_tok_s_per_user": 1.0 / tpot, "prefill_tok_s": batch * isl / ttft,
    }  # fmt: skip
    metric = group.table["metric"].to_numpy()
    return np.select([metric == name for name in values], list(values.values()), np.nan)


def derated(group: ServedGroup) -> np.ndarray:
    """Every row of a group at level bound, with the rates of its accelerator and links times constants."""
    plan = group.resolved.plan
    chip, system = plan.system.accelerator, plan.system
    slower = replace(
        chip,
        peaks={dtype: PEAK * peak for dtype, peak in chip.peaks.items()},
        memory_bandwidth=BANDWIDTH * chip.memory_bandwidth,
        link_bandwidth=LINKS * chip.link_bandwidth,
    )
    system = replace(system, accelerator=slower, link_bandwidth=LINKS * system.link_bandwidth)
    other = make_plan(plan.model, plan.deployment, system, None, plan.engine)
    predictor = Predictor(other, group.resolved.predictor.memory)
    return predict_group(replace(group, resolved=replace(group.resolved, predictor=predictor))).value

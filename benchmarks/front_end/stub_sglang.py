"""SGLang 0.5.6's server with a scheduler that runs no model: a step takes STUB_STEP seconds, one token a sequence.

python stub_sglang.py --model-path FOLDER --device cpu --skip-server-warmup --context-length 65536

A prompt is computed in the step in which it comes. Modules that need a GPU (sgl_kernel, flashinfer, torchvision) were
replaced by empty ones before the import.
"""

import dataclasses
import os
import random
import sys
import time

import zmq

STEP = float(os.environ.get("STUB_STEP", "0.01"))


def scheduler(server_args, ports, gpu_id, tp_rank, moe_ep_rank, pp_rank, dp_rank, ready):
    from sglang.srt.managers import io_struct

    context = zmq.Context(1)
    requests, detokeniser = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    requests.connect(ports.scheduler_input_ipc_name)
    detokeniser.connect(ports.detokenizer_ipc_name)
    ready.send({"status": "ready", "max_total_num_tokens": 1 << 24, "max_req_input_len": 65536})
    fields = [each.name for each in dataclasses.fields(io_struct.BatchTokenIDOutput)]
    running, coming = {}, []
    while True:
        end = time.perf_counter() + STEP
        while (left := end - time.perf_counter() if running or coming else 1.0) > 0.0:
            if not requests.poll(left * 1e3):
                continue
            told = requests.recv_pyobj()
            for each in getattr(told, "batch", None) or [told]:
                if isinstance(each, io_struct.TokenizedGenerateReqInput):
                    end = end if running or coming else time.perf_counter() + STEP
                    coming.append(each)
        for each in coming:
            running[each.rid] = [0, each.sampling_params.max_new_tokens, len(each.input_ids)]
        coming.clear()
        names, n = list(running), len(running)
        for name in names:
            running[name][0] += 1
        tokens = [[random.randrange(1000, 30000)] for _ in names]
        ends = [{"type": "length", "length": most} if made >= most else None for made, most, _ in running.values()]
        told = dict.fromkeys(fields) | dict(
            rids=names,
            http_worker_ipcs=[None] * n,
            finished_reasons=ends,
            decoded_texts=[""] * n,
            decode_ids=tokens,
            read_offsets=[0] * n,
            output_ids=tokens,
            skip_special_tokens=[True] * n,
            spaces_between_special_tokens=[True] * n,
            no_stop_trim=[False] * n,
            prompt_tokens=[isl for _, _, isl in running.values()],
            completion_tokens=[made for made, _, _ in running.values()],
            cached_tokens=[0] * n,
            retraction_counts=[0] * n,
            spec_verify_ct=[],
            spec_accepted_tokens=[],
            queue_time=[0.0] * n,
            forward_entry_time=[0.0] * n,
            prefill_launch_delay=[0.0] * n,
            prefill_launch_latency=[0.0] * n,
        )
        if names:
            detokeniser.send_pyobj(io_struct.BatchTokenIDOutput(**told))
        for name, over in zip(names, ends, strict=True):
            if over:
                del running[name]


if __name__ == "__main__":
    from sglang.srt.entrypoints import engine, http_server
    from sglang.srt.server_args import prepare_server_args

    engine.run_scheduler_process = scheduler
    http_server.launch_server(prepare_server_args(sys.argv[1:]))

"""An executor for vLLM 0.19 that runs no model: a step takes STUB_STEP seconds, and every sequence gets one token.

vllm serve FOLDER --distributed-executor-backend stub_vllm.StubExecutor --max-num-seqs 1024 \\
    --max-num-batched-tokens 8192 --no-enable-prefix-caching

FOLDER holds a config.json of one small layer and a tokenizer.json of 32,000 entries, trained on Python's own sources.
vLLM's wheel is told that it is one for CPUs (version 0.19.0+cpu), so that it wants no GPU.
"""

import os
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

STEP = float(os.environ.get("STUB_STEP", "0.01"))


class StubExecutor(Executor):
    def _init_executor(self):
        self.pool, self.prompt, self.done, self.free_at = ThreadPoolExecutor(1), {}, {}, 0.0

    max_concurrent_batches = property(lambda self: 2 if self.scheduler_config.async_scheduling else 1)

    @classmethod
    def supports_async_scheduling(cls):
        return True

    def initialize_from_config(self, kv_cache_configs):
        pass

    def determine_available_memory(self):
        return [1 << 36]

    def get_kv_cache_specs(self):
        return [{"layers.0": FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)}]

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        return [("generate",)] if method == "get_supported_tasks" else [None]

    def check_health(self):
        pass

    def shutdown(self):
        pass

    def execute_model(self, scheduled, non_block=False):
        for new in scheduled.scheduled_new_reqs:
            self.prompt[new.req_id], self.done[new.req_id] = len(new.prompt_token_ids), new.num_computed_tokens
        ids, sampled = [], []
        for name, tokens in scheduled.num_scheduled_tokens.items():
            self.done[name] += tokens
            ids.append(name)
            sampled.append([random.randrange(1000, 30000)] if self.done[name] >= self.prompt[name] else [])
        out = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: place for place, name in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        until = self.free_at = max(time.perf_counter(), self.free_at) + STEP

        def wait():
            time.sleep(max(until - time.perf_counter(), 0.0))
            return out

        self.wait, ready = wait, Future()
        ready.set_result(None)
        return ready if non_block else None

    def sample_tokens(self, grammar_output, non_block=False):
        return self.pool.submit(self.wait) if non_block else self.wait()

    def take_draft_token_ids(self):
        return None

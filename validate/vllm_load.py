"""vLLM under load: its server's engine, in a process of its own as `vllm serve` starts it, with random weights.

What HTTP and a tokenizer add is not measured: requests are token ids and go to vLLM's AsyncLLM.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rooflinekit.model.types.errors import InputError
from rooflinekit.validate.closed_loop import Answered, Asking
from rooflinekit.validate.device import Device, version_of
from rooflinekit.validate.engine_run import LONGEST, SHARE, config_folder
from rooflinekit.validate.vllm_ops import without_flashinfer

_PAUSE = 0.2
"""Seconds before users begin, while their requests are made."""


@contextmanager
def vllm_serving(model: str, device: Device, folder: Path) -> Iterator[Vllm]:
    """A started engine, ended with the block. Raises InputError where vLLM is not installed."""
    if not version_of("vllm"):
        raise InputError("vllm is not installed beside this PyTorch")
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # the host may have no network
    without_flashinfer()
    with asyncio.Runner(loop_factory=_event_loop()) as runner:
        served = Vllm(str(config_folder(model, folder)), device, runner)
        try:
            yield served
        finally:
            served.engine.shutdown()


def _event_loop() -> Any:
    """That of vLLM's server, where it is installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return None
    return new_event_loop


class Vllm:
    """An engine with the limits that `vllm serve` sets by itself."""

    def __init__(self, folder: str, device: Device, runner: asyncio.Runner) -> None:
        self._device, self._runner, self._numbers = device, runner, itertools.count()
        self.engine = runner.run(_start(folder))
        config = self.engine.vllm_config
        limits, cache = config.scheduler_config, config.cache_config
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.facts = {
            "backend": "vllm", "server_version": version_of("vllm"), "device": {"name": device.name, **device.facts},
            "token_budget": limits.max_num_batched_tokens, "max_num_seqs": limits.max_num_seqs,
            "kv_tokens": (cache.num_gpu_blocks or 0) * cache.block_size, "memory_fraction": SHARE,
            "protocol": "AsyncLLM, no HTTP, no tokenizer",
        }  # fmt: skip

    def watched(self) -> AbstractContextManager[dict[str, Any]]:
        """Power, clocks and temperature of the board."""
        return self._device.watched()

    def serve(self, users: Sequence[Asking]) -> list[Answered]:
        """One task a user."""
        return self._runner.run(self._all(users))

    async def _all(self, users: Sequence[Asking]) -> list[Answered]:
        start = time.perf_counter() + _PAUSE
        found = await asyncio.gather(*(self._user(mine, start) for mine in users))
        return [answered for each in found for answered in each]

    async def _user(self, mine: Asking, start: float) -> list[Answered]:
        await asyncio.sleep(start + mine.begins - time.perf_counter())
        return [await self._ask(prompt, count) for prompt, count in mine.requests]

    async def _ask(self, prompt: list[int], count: int) -> Answered:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        asked = SamplingParams(max_tokens=count, ignore_eos=True, detokenize=False, temperature=0.0,
                               output_kind=RequestOutputKind.DELTA)  # fmt: skip
        tokens, first, sent = 0, 0.0, time.perf_counter()
        async for output in self.engine.generate({"prompt_token_ids": prompt}, asked, f"{next(self._numbers)}"):
            tokens += len(output.outputs[0].token_ids)
            first = first or time.perf_counter()
        if tokens != count:
            raise InputError(f"vllm answered {tokens} of {count} tokens")
        return Answered(sent, first, time.perf_counter(), count)


async def _start(folder: str) -> Any:
    """The engine, within the event loop that reads its answers."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    asked = AsyncEngineArgs(
        model=folder, load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False,
        max_model_len=LONGEST, gpu_memory_utilization=SHARE,
    )  # fmt: skip
    return AsyncLLM.from_engine_args(asked, usage_context=UsageContext.OPENAI_API_SERVER)

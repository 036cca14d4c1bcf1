"""A real engine in this process, with random weights: TTFT and TPOT of whole steps, and where three of them went.

vLLM's `LLM` and SGLang's `Engine` take a folder with a config.json, load dummy weights and need no tokenizer.
Nothing is served over HTTP: what is measured is the engine's own step. Letters: B sequences, T tokens of each.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rooflinekit.model.types.errors import ArchitectureError, InputError
from rooflinekit.model.types.model import Attention, DenseFFN
from rooflinekit.specs import load_model
from rooflinekit.validate.attribution import attribute, profile_step
from rooflinekit.validate.device import Device, version_of
from rooflinekit.validate.points import GRID, StepPoint
from rooflinekit.validate.timing import summary
from rooflinekit.validate.vllm_ops import without_flashinfer

_LEAD, _NEW = 16, 32
"""Tokens of a sequence before decode steps are timed, and steps that their time is the mean of.

Prompts of a large batch take several steps, in which the first sequences already decode. Steps are timed from when
every sequence has the first 16 tokens until every one has 32 more.
"""
_MOST_AHEAD = 512
"""Tokens that the first sequence of a batch may have more than the last."""
_REPEATS, _SECONDS = (3, 10), 5.0
"""Times that a point is measured, at least and at most, and the seconds after which no other one begins."""
_CAPTURED = (256, 512)
"""Tokens of a step that vLLM's graphs hold besides the batches of the grid: 512 are the most by default, and prompts of
fewer tokens are padded to the next size. Each size takes a fifth of a second to capture; by default there are 51."""
_PROFILED = 3
"""Points of which one step is profiled: the first ones, of both phases."""
SHARE, LONGEST = 0.85, 8192
"""Of the GPU's memory, for the engine; tokens that a sequence may have: longer ones need long prompts to be filled."""

Served = Callable[[list[list[int]], Sequence[int]], Sequence[float]]
"""An engine that answers prompts of token ids, all at once: served(prompts, counts) are the seconds until every one of
them had so many tokens, for each of the rising counts."""


Started = tuple[Served, dict[str, Any]]
"""An engine, and what it says of the limits that it has set itself."""


def _vllm(folder: str) -> Started:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the profiler sees kernels of this process alone
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # the host may have no network
    without_flashinfer()
    from vllm import LLM, SamplingParams  # noqa: PLC0415

    engine = LLM(
        model=folder, load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False,
        max_model_len=LONGEST, gpu_memory_utilization=SHARE, disable_log_stats=True,
        compilation_config={"cudagraph_capture_sizes": sorted({*_CAPTURED, *(point.batch for point in GRID["cuda"])})},
    ).llm_engine  # fmt: skip
    numbers, config = itertools.count(), engine.vllm_config
    limits = {
        "token_budget": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "kv_tokens": (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
        "memory_fraction": SHARE, "graph_tokens": max(config.compilation_config.cudagraph_capture_sizes),
    }  # fmt: skip

    def generate(prompts: list[list[int]], counts: Sequence[int]) -> list[float]:
        """For several counts sequences end together, when the last one has them: those before it have some more.

        For one count each ends with it: no step of the next tokens is under way when the answer is complete.
        """
        most = counts[-1] + (_MOST_AHEAD if len(counts) > 1 else 0)
        asked = SamplingParams(max_tokens=most, ignore_eos=True, detokenize=False, temperature=0.0)
        have = {f"{next(numbers)}": 0 for _ in prompts}
        torch.cuda.synchronize()  # a step of the batch before may still be under way
        start, reached = time.perf_counter(), list[float]()
        for name, ids in zip(have, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": ids}, asked)
        while len(reached) < len(counts):
            for output in engine.step():
                have[output.request_id] = len(output.outputs[0].token_ids)
            least, now = min(have.values()), time.perf_counter() - start
            reached += [now] * sum(count <= least for count in counts[len(reached) :])
        engine.abort_request(list(have))
        while engine.has_unfinished_requests():
            engine.step()
        return reached

    return generate, limits


def _sglang(folder: str) -> Started:
    import sglang  # noqa: PLC0415

    engine = sglang.Engine(
        model_path=folder, load_format="dummy", skip_tokenizer_init=True, disable_radix_cache=True,
        context_length=LONGEST, mem_fraction_static=SHARE,
    )  # fmt: skip

    def generate(prompts: list[list[int]], counts: Sequence[int]) -> list[float]:
        """One run for each count: the difference of two is full steps alone where sequences end one by one."""
        reached = []
        for count in counts:
            start = time.perf_counter()
            engine.generate(
                input_ids=prompts,
                sampling_params={"max_new_tokens": count, "ignore_eos": True, "temperature": 0.0},
            )
            reached.append(time.perf_counter() - start)
        return reached

    return generate, {"memory_fraction": SHARE}


_KINDS: dict[str, Callable[[str], Started]] = {"vllm": _vllm, "sglang": _sglang}


def engine_points() -> tuple[StepPoint, ...]:
    """The grid of B and T, without the longest contexts."""
    return tuple(point for point in GRID["cuda"] if point.context + _LEAD + _NEW <= LONGEST)


def key_of_step(engine: str, model: str, point: StepPoint) -> str:
    """What tells a step's row from all others of a file."""
    return f"serving {engine} {model} {point.phase} {point.batch} {point.context}"


def open_engine(engine: str, model: str, device: Device, folder: Path) -> EngineBench:
    """Start an engine on the model's config.json.

    Raises InputError where the engine is not installed.
    """
    if not (version := version_of(engine)):
        raise InputError(f"{engine} is not installed beside this PyTorch")
    served, limits = _KINDS[engine](str(config_folder(model, folder)))
    return EngineBench(engine, version, model, load_model(model).value.depth, served, device, limits)


@dataclass(frozen=True)
class EngineBench:
    """An engine that is ready to be timed, on a model of `depth` layers."""

    engine: str
    version: str
    model: str
    depth: int
    served: Served
    device: Device
    limits: Mapping[str, Any] = field(default_factory=dict)

    def label(self, point: StepPoint) -> dict[str, Any]:
        """What is measured at one point."""
        return {
            "op": "serving_step", "backend": f"{self.engine} {self.version}", "engine": self.engine,
            "engine_version": self.version, "kernel_source": self.engine, "model": self.model, "mode": "graph",
            "dtype": "bf16", **point._asdict(), "layers_run": self.depth, "layers": self.depth, **self.limits,
            "key": key_of_step(self.engine, self.model, point),
        }  # fmt: skip

    def measure(self, point: StepPoint) -> dict[str, Any]:
        """TTFT of a batch of prompts, or the mean time of a decode step: what 32 tokens more take [us]."""
        with self.device.watched() as board:
            samples = tuple(self._samples(point))
        if point.phase == "decode":
            board.pop("power_w", None)  # of prompts and steps together
        row, profiled = summary(samples), point in engine_points()[:_PROFILED]
        return {**row, "whole_us": row["latency_us"], **(self._spent(point) if profiled else {}), **board}

    def _samples(self, point: StepPoint) -> Iterator[float]:
        self.served(self._prompts(point), (2,))  # compiles and captures what is still missing
        end = time.perf_counter() + _SECONDS
        for number in range(_REPEATS[1]):
            if number >= _REPEATS[0] and time.perf_counter() > end:
                return
            if point.phase == "prefill":
                yield self.served(self._prompts(point), (1,))[0]
            else:
                short, long = self.served(self._prompts(point), (_LEAD, _LEAD + _NEW))
                yield max(long - short, 1e-9) / _NEW

    def _prompts(self, point: StepPoint) -> list[list[int]]:
        """Prompts that share nothing; those of decode end so that the mean step is at the point's context."""
        decode = point.phase == "decode"
        length = max(point.context - _LEAD - _NEW // 2, 1) if decode else point.context
        return torch.randint(10, 1000, (point.batch, length)).tolist()

    def _spent(self, point: StepPoint) -> dict[str, Any]:
        """Time [us] by class of work and by name of the twenty longest kernels: of a prompt, or of a step.

        A step is what lies between two answers.
        """
        found = self._profiled(point, 1 if point.phase == "prefill" else _LEAD + _NEW)
        if point.phase == "decode":
            short = self._profiled(point, _LEAD)
            found = {name: max(us - short.get(name, 0.0), 0.0) / _NEW for name, us in found.items()}
        busy, gap, names = ({name: us for (kind, name), us in found.items() if kind == each}
                            for each in ("class", "gap", "name"))  # fmt: skip
        longest = sorted(names.items(), key=lambda each: -each[1])[:20]
        return {
            "busy_us": busy, "launch_us": gap["launch"], "host_us": gap["host"],
            "kernel_names": {name[:120]: round(us, 1) for name, us in longest},
        }  # fmt: skip

    def _profiled(self, point: StepPoint, count: int) -> dict[tuple[str, str], float]:
        """Time by class, in gaps and by name, while a batch gets answers of so many tokens [us]."""
        events = profile_step(partial(self.served, self._prompts(point), (count,)), self.device.torch)
        spent = attribute(events)
        found: dict[tuple[str, str], float] = {("gap", "launch"): spent.launch, ("gap", "host"): spent.host}
        found |= {("class", name): us for name, us in spent.busy.items()}
        for event in events:
            if event.kind == "kernel":
                found["name", event.name] = found.get(("name", event.name), 0.0) + event.end - event.start
        return found


def config_folder(model: str, folder: Path) -> Path:
    """The folder of a model's config.json: its own, or one written here for a dense model of Llama's kind.

    Raises ArchitectureError for a shipped model of another kind: an engine needs its own config.json for those.
    """
    given = Path(model)
    if given.exists():
        return given if given.is_dir() else given.parent
    spec = load_model(model).value
    mixer, ffn = spec.layers[0].mixer, spec.layers[0].ffn
    if not isinstance(mixer, Attention) or not isinstance(ffn, DenseFFN) or len(spec.layer_counts) > 1 or (
        mixer.qkv_bias or mixer.q_norm or mixer.window or not ffn.gated or spec.layers[0].norm != "rmsnorm"
    ):  # fmt: skip
        raise ArchitectureError(f"{model}: an engine needs its config.json; give the folder that holds it as --model")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": spec.hidden,
        "num_hidden_layers": spec.depth, "num_attention_heads": mixer.heads, "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim, "intermediate_size": ffn.width, "vocab_size": spec.vocab, "hidden_act": "silu",
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        "tie_word_embeddings": spec.tied, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder

"""Results of benchmark tools, of which tools.yaml says where each puts what we read, as measurements."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from rooflinekit.evidence.measurement import Fields, MeasuredRun, MeasuredSpread, RunFacts
from rooflinekit.evidence.startup import formats_of, gguf_format
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.files import table_of
from rooflinekit.specs.foreign import number_or

_tables = partial(table_of, __file__)
"""Tools by the keys that they write, and what others write."""

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt": "trtllm", "llama.cpp": "llama.cpp"}

ALL_AT_ONCE = "all requests came at once"
_SEVERAL = re.compile(r"^(\d+) ?[x×*]_? ?(?=\D)|(?<=[\d\s])[x×*] ?(\d{1,3})$", re.IGNORECASE)
_METRICS = ("ttft", "tpot", "itl", "e2e")
_DISAGGREGATED = (
    "{}: prompts and answers were computed by pools apart, which compare does not play; "
    "`rooflinekit simulate --prefill-replicas` does"
)
_MAKERS = re.compile(r"[-_](nv|amd|nvidia)$")  # behind the names of InferenceX
_GGUF = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_QUANT = re.compile(r"[-._](UD-)?((I?Q\d\w*)|TQ\d\w*|BF16|FP?16|F32|MXFP4\w*|NVFP4)$", re.IGNORECASE)


class How(NamedTuple):
    """Facts that all results of a tool share: its engine, the unit of its times, and how its requests come."""

    tool: str
    engine: str | None = None
    seconds: bool = False
    static: bool = False
    all_at_once: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> How:
        """Read a row of a table."""
        return cls(**{name: row[name] for name in cls._fields if name in row})


def engine_of(name: str | None) -> str | None:
    """The engine behind a client's backend or a framework; None for a protocol such as openai.

    >>> engine_of("TensorRT-LLM"), engine_of("openai-chat")
    ('trtllm', None)
    """
    said = (name or "").lower()
    return next((engine for word, engine in _ENGINES.items() if said.startswith(word)), None)


def accelerators(text: str | None) -> tuple[str | None, int | None]:
    """The name of an accelerator and how many there are, where the text counts them.

    >>> accelerators("4xNVIDIA_L40S"), accelerators("H100 x8"), accelerators("RTX 4090")
    (('NVIDIA_L40S', 4), ('H100', 8), ('RTX 4090', None))
    """
    hit = _SEVERAL.search(text or "")
    if not text or hit is None:
        return text, None
    return (text[: hit.start()] + text[hit.end() :]).strip(" _"), int(hit[1] or hit[2])


def from_tool(source: str, data: Mapping[str, Any]) -> Iterator[MeasuredRun]:
    """The run in one JSON document of the tools of the table; none of any other."""
    for row in _tables()["refused"]:
        if all(isinstance(data.get(key), Mapping) for key in row["marks"]) and _holds(data, row["inside"]):
            raise SpecError(f"{source}: {row['says']}")
    for row in _tables()["tools"]:
        if all(data.get(key) is not None for key in row["marks"]):
            flat = {**data, **data[row["inside"]]} if isinstance(data.get(row.get("inside")), Mapping) else data
            read = {name: next(filter(_said, (_at(flat, path) for path in paths)), None)
                    for name, paths in row["fields"].items()}  # fmt: skip
            yield measurement_of(source, How.of(row), {name: value for name, value in read.items() if _said(value)})
            return
    if {"n_prompt", "n_gen", "avg_ts"} <= data.keys():
        yield _llama_bench(Fields(source, data))


def refuse_text(source: str, text: str) -> None:
    """Raise SpecError for a text that a tool without times wrote."""
    for row in _tables()["refused"]:
        if re.search(row["text"], text, re.MULTILINE):
            raise SpecError(f"{source}: {row['says']}")


def _holds(data: Mapping[str, Any], names: list[str]) -> bool:
    return any(name in data or name in data["config"] for name in names)


def _said(value: Any) -> bool:
    return value is not None and value != ""


def _at(data: Mapping[str, Any], path: str) -> Any:
    """Value under keys that are joined by dots."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def measurement_of(source: str, how: How, found: Mapping[str, Any], notes: tuple[str, ...] = ()) -> MeasuredRun:
    """A run by the names of tools.yaml; times are in ms unless the tool's are in seconds."""
    fields, said = Fields(source, found), list(notes)
    if _true(found.get("disaggregated")):
        raise SpecError(_DISAGGREGATED.format(source))
    requests = fields.count("requests")
    isl, osl = (fields.number(side) or _each(fields.number(f"{side}_total"), requests) for side in ("isl", "osl"))
    concurrency, rate = fields.count("concurrency"), _rate(fields)
    if concurrency is None and requests and (flight := fields.number("in_flight")):
        concurrency = requests if flight > requests / 2.0 else max(round(flight), 1)  # more than half: no second turn
        said.append(f"{flight:.4g} requests were in flight on average; played as {concurrency:,} users")
    elif concurrency is None and rate is None and requests and (how.all_at_once or "rate" in found):
        concurrency = requests
        said.append(ALL_AT_ONCE)
    elif concurrency and rate is not None:
        concurrency = None
        said.append("the client offers a rate and caps what is in flight; predicted as an open loop at that rate")
    deployment, gpu, tp = _deployment(fields, said)
    gpus = math.prod((tp or 1, *(deployment.get(name, 1) for name in ("pp", "dp"))))
    each = fields.number("output_tok_s_gpu")
    ended, burstiness = fields.number("request_s"), fields.number("burstiness")
    engine = how.engine or engine_of(fields.text("engine"))
    version = fields.text("version")
    spreads = {name: _spread(fields, name, 1e3 if how.seconds else 1.0) for name in _METRICS}
    return MeasuredRun(
        source=source,
        tool=how.tool,
        facts=RunFacts(
            model=fields.text("model"),
            gpu=gpu,
            engine=f"{engine}@{version}" if engine and version and re.fullmatch(r"\d+(\.\d+)+", version) else engine,
            tp=tp,
            isl=isl,
            osl=osl,
            concurrency=concurrency,
            rate=rate,
            cv=1.0 / math.sqrt(burstiness) if burstiness else 1.0,
            requests=concurrency if how.static else requests,
            max_num_seqs=fields.count("max_num_seqs"),
        ),
        ttft=spreads["ttft"],
        tpot=spreads["tpot"],
        itl=spreads["itl"],
        e2e=spreads["e2e"],
        output_tok_s=fields.number("output_tok_s") or (each * gpus if each else None),
        request_s=ended,
        notes=tuple(said),
        static=how.static,
        total=_each(fields.number("tokens_total"), requests),
        deployment=tuple(deployment.items()),
    )


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _each(total: float | None, requests: int | None) -> float | None:
    return total / requests if total and requests else None


def _rate(fields: Fields) -> float | None:
    """The offered rate; "inf" means none."""
    given = str(fields.data.get("rate", "")).strip().lower()
    return None if given in ("inf", "infinity", "none") else fields.number("rate") or None


def _spread(fields: Fields, name: str, scale: float) -> MeasuredSpread:
    values = {part: fields.number(f"{name}.{part}", scale=scale) for part in ("mean", "p50", "p90", "p99", "low")}
    return MeasuredSpread(**values) if values["mean"] or values["p50"] else MeasuredSpread()


def _deployment(fields: Fields, said: list[str]) -> tuple[dict[str, Any], str | None, int | None]:
    """Formats, limits and degrees beside tp; the accelerator's name; and tp."""
    gpu, count = accelerators(fields.text("gpu"))
    tp = fields.count("tp")
    if tp is None and count is not None:
        tp = count
        if count > 1:
            said.append(f"{count} accelerators are read as --tp {count}; --tp and --replicas say otherwise")
    found: dict[str, Any] = {name: value for name in ("pp", "ep") if (value := fields.count(name) or 1) > 1}
    if _true(fields.data.get("dp_attention")) and tp:
        found["dp"], tp = tp, 1  # attention replicas on the same accelerators
    found |= formats_of(fields.text("quantization"), fields.text("kv"))
    if weights := (fields.text("weights") or "").lower():
        four = "mxfp4" if (gpu or "").lower().startswith("mi") else "modelopt_fp4"
        found |= formats_of(four if weights == "fp4" else weights, None) or {"weights": weights}
    if budget := fields.count("token_budget"):
        found["token_budget"] = budget
    if (draft := str(fields.data.get("draft") or "none").lower()) not in ("none", "false", "off"):
        said.append(f"tokens were drafted ({draft}), and the prediction has no draft")
    return found, gpu and _MAKERS.sub("", gpu), tp


LLAMA_COUNTS = {"n_ubatch": "token_budget", "n_cpu_moe": "n_cpu_moe"}
"""Options by the columns of llama-bench that give numbers for them."""


def _llama_bench(fields: Fields) -> MeasuredRun:
    """A row of llama-bench: so many prompt tokens, so many generated ones, or both, behind a context of some depth.

    Prompts alone are a TTFT, generated tokens alone a TPOT; of both together nothing but the whole time is known.
    """
    prompt, made, depth = (int(fields.number(name) or 0) for name in ("n_prompt", "n_gen", "n_depth"))
    name = fields.text("model_filename") or ""
    gpus = [each.strip() for each in (fields.text("gpu_info") or "").split(",") if each.strip()]
    stem = _GGUF.sub("", re.split(r"[\\/]", name)[-1])
    hit = _QUANT.search(stem)
    weights = gguf_format(fields.text("model_type") or "") or (hit[2].lower() if hit else None)
    layers = int(number_or(fields.data.get("n_gpu_layers"), -1.0, -1.0))
    deployment = formats_of(None, fields.text("type_k")) | ({"weights": weights} if weights else {})
    if len(gpus) > 1:
        deployment["pp"] = len(gpus)  # each has some of the layers
    if layers >= 0:
        deployment["resident_layers"] = layers
    deployment |= {option: told for key, option in LLAMA_COUNTS.items() if (told := fields.count(key))}
    return llama_run(
        fields.source, (prompt, made, depth), fields.number("avg_ts") or 0.0,
        RunFacts(_QUANT.sub("", stem) or None, gpus[0] if gpus else None),
        deployment,
    )  # fmt: skip


def llama_run(
    source: str, tokens: tuple[int, int, int], rate: float, facts: RunFacts, deployment: Mapping[str, Any]
) -> MeasuredRun:
    """One test of llama-bench: tokens of prompt, answer and context before them, at so many a second.

    >>> run = llama_run("t", (512, 0, 0), 1024.0, RunFacts(), {})
    >>> run.ttft.mean, run.facts.isl
    (500.0, 512)
    """
    prompt, made, depth = tokens
    if not rate or not prompt + made:
        raise SpecError(f"{source}: a test of llama-bench without tokens or a rate")
    isl, osl = max(prompt + depth, 1), (made + 1 if made and not prompt else max(made, 1))
    whole = 1e3 * (prompt + made) / rate
    return MeasuredRun(
        source, "llama-bench",
        RunFacts(facts.model, facts.gpu, "llama.cpp", 1, isl, osl, 1, requests=1, hits=depth / isl if prompt else None),
        MeasuredSpread(mean=None if made else whole), MeasuredSpread(mean=None if prompt else whole / max(made, 1)),
        e2e=MeasuredSpread(mean=whole if prompt and made else None),
        static=True, notes=(f"{rate:,.4g} tokens/s",), deployment=tuple(deployment.items()),
    )  # fmt: skip

"""Results of benchmark tools, of which tools.yaml says where each puts what we read, as measurements."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.evidence.measurement import Fields, MeasuredRun, MeasuredSpread, RunFacts
from rooflinekit.evidence.startup import formats_of, gguf_format
from rooflinekit.load.lengths import MOST_TOKENS
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.units import significant
from rooflinekit.specs.files import Parsed, table_of
from rooflinekit.specs.foreign import number_or

_tables = partial(table_of, __file__)
"""Tools by the keys that they write, and what others write."""

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "tensorrt": "trtllm", "llama.cpp": "llama.cpp"}

_SEVERAL = re.compile(r"^(\d+) ?[x×*]_? ?(?=\D)|(?<=[\d\s])[x×*] ?(\d{1,3})$", re.IGNORECASE)
_PARTS = ("mean", "p50", "p90", "p99", "low")
_DISAGGREGATED = (
    "{}: prompts and answers were computed by pools apart, which compare does not play; "
    "`rooflinekit simulate --prefill-replicas` does"
)
_MAKERS = re.compile(r"[-_](nv|amd|nvidia)$")  # behind the names of InferenceX
_GGUF = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_QUANT = re.compile(r"[-._](UD-)?((I?Q\d\w*)|TQ\d\w*|BF16|FP?16|F32|MXFP4\w*|NVFP4)$", re.IGNORECASE)


def known_tools() -> list[str]:
    """Files that are read, in words."""
    return list(_tables()["read"])


class How(NamedTuple):
    """Facts that all results of a tool share.

    scale: ms in the unit of its times; static: one batch that begins together; all_at_once: words on requests that no
    users and no rate hold back; servers: whether its accelerators are those of several servers.
    """

    tool: str
    engine: str | None = None
    scale: float = 1.0
    static: bool = False
    all_at_once: str = ""
    servers: bool = False

    @classmethod
    def of(cls, row: Parsed) -> How:
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


def from_tool(source: str, data: Parsed) -> Iterator[MeasuredRun]:
    """The run in one JSON document of the tools of the table; none of any other."""
    for row in _tables()["refused"]:
        if all(isinstance(data.get(key), Mapping) for key in row["marks"]) and _holds(data, row["inside"]):
            raise SpecError(f"{source}: {row['says']}")
    for row in _tables()["tools"]:
        if all(data.get(key) is not None for key in row["marks"]):
            flat = {**data, **data[row["inside"]]} if isinstance(data.get(row.get("inside")), Mapping) else data
            yield measurement_of(Fields(source, flat, row["fields"]), How.of(row))
            return
    if {"n_prompt", "n_gen", "avg_ts"} <= data.keys():
        yield _llama_bench(Fields(source, data))


def refuse_text(source: str, text: str) -> None:
    """Raise SpecError for a text that a tool without times wrote."""
    for row in _tables()["refused"]:
        if re.search(row["text"], text, re.MULTILINE):
            raise SpecError(f"{source}: {row['says']}")


def _holds(data: Parsed, names: list[str]) -> bool:
    return any(name in data or name in data["config"] for name in names)


def mapped(source: str, tool: str, data: Mapping[str, object], told: Mapping[str, object]) -> Fields:
    """Quantities of a result whose places the table has; told: those that its reader made out by itself."""
    places = _tables()["mapped"][tool] | {name: (name,) for name in told}
    return Fields(source, {**data, **told}, places)


def measurement_of(fields: Fields, how: How, notes: Sequence[str] = ()) -> MeasuredRun:
    """A run by the names of tools.yaml."""
    said = list(notes)
    if _true(fields.value("disaggregated")):
        raise SpecError(_DISAGGREGATED.format(fields.source))
    requests = fields.count("requests")
    isl, osl = (fields.number(side) or _each(fields.number(f"{side}_total"), requests) for side in ("isl", "osl"))
    concurrency, rate = fields.count("concurrency"), _rate(fields)
    if concurrency is None and requests and (flight := fields.number("in_flight")):
        concurrency = requests if flight > requests / 2.0 else max(round(flight), 1)  # more than half: no second turn
        said.append(f"{flight:.4g} requests were in flight on average; played as {concurrency:,} users")
    elif concurrency is None and rate is None and requests and (how.all_at_once or fields.value("rate") is not None):
        concurrency = requests
        said.append(how.all_at_once or "all requests came at once")
    elif concurrency and rate is not None:
        concurrency = None
        said.append("the client offers a rate and caps what is in flight; predicted as an open loop at that rate")
    deployment, gpu, tp = _deployment(fields, how, said)
    gpus = math.prod((tp or 1, *(deployment.get(name, 1) for name in ("pp", "dp"))))
    each, burstiness, cv = (fields.number(name) for name in ("output_tok_s_gpu", "burstiness", "cv"))
    if burstiness:  # the shape of the gamma law of the gaps
        cv = 1.0 / math.sqrt(burstiness)
    engine = how.engine or engine_of(fields.text("engine"))
    if engine and re.fullmatch(r"\d+(\.\d+)+", version := fields.text("version") or ""):
        engine = f"{engine}@{version}"
    asked = (isl, osl, concurrency, rate, 1.0 if cv is None else cv, concurrency if how.static else requests)
    varied, most = [_variation(fields, side) for side in ("isl", "osl")], fields.count("max_num_seqs")
    facts = RunFacts(fields.text("model"), gpu, engine, tp, *asked, max_num_seqs=most, warmup=fields.count("warmup"))
    facts = replace(facts, isl_cv=varied[0], osl_cv=varied[1])
    ttft, tpot, itl, e2e = (_spread(fields, name, how.scale) for name in ("ttft", "tpot", "itl", "e2e"))
    run = MeasuredRun(fields.source, how.tool, facts, ttft, tpot, itl, e2e)
    return replace(
        run,
        output_tok_s=fields.number("output_tok_s") or (each * gpus if each else None),
        request_s=fields.number("request_s"),
        notes=tuple(said),
        servers=fields.count("servers") or 1,
        static=how.static,
        total=_each(fields.number("tokens_total"), requests),
        deployment=tuple(deployment.items()),
    )


def _true(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _each(total: float | None, requests: int | None) -> float | None:
    return total / requests if total and requests else None


def _rate(fields: Fields) -> float | None:
    if str(fields.value("rate")).strip().lower() in ("inf", "infinity", "none"):
        return None
    return fields.number("rate") or None


def _spread(fields: Fields, name: str, scale: float) -> MeasuredSpread:
    """Figures of one latency; a mean of 0 means that the client could not measure it. `each` has all requests [s]."""
    found = {part: fields.number(f"{name}.{part}", scale=scale) for part in _PARTS}
    found |= {part: value for part in _PARTS if (value := fields.number(f"{name}_s.{part}", scale=1e3)) is not None}
    each = fields.value(f"{name}.each")
    if good := [value for value in each if isinstance(value, float) and value > 0] if isinstance(each, list) else []:
        found["low"] = 1e3 * min(good)
    return MeasuredSpread(**found) if found["mean"] or found["p50"] or good else MeasuredSpread()


def _variation(fields: Fields, side: str) -> float | None:
    """Variation of lengths: as stated, of every request, or of the range that SGLang draws from.

    Uniform from r·L to L: (1 − r) / (√3·(1 + r)).
    """
    mean, deviation, each = fields.number(side), fields.number(f"{side}_std"), fields.value(f"{side}_each")
    if mean and deviation is not None:
        return deviation / mean
    lengths = [float(n) for n in each if isinstance(n, int) and 0 < n <= MOST_TOKENS] if isinstance(each, list) else []
    if len(lengths) > 1:
        return pstdev(lengths) / fmean(lengths)
    if fields.value(f"{side}_drawn") is None or not (fields.text("drawn_from") or "").startswith("random"):
        return None
    ratio = fields.number("drawn_ratio")
    return None if ratio is None or ratio > 1 else (1.0 - ratio) / (math.sqrt(3.0) * (1.0 + ratio))


def _deployment(fields: Fields, how: How, said: list[str]) -> tuple[OwnKeywords, str | None, int | None]:
    """Formats, limits and degrees beside tp; the accelerator's name; and tp."""
    gpu, count = accelerators(fields.text("gpu"))
    tp, servers = fields.count("tp"), fields.count("servers") or 1
    if prefills := fields.count("prefills"):
        none = "compare plays none such, `rooflinekit simulate --prefill-replicas` does"
        raise SpecError(f"{fields.source}: {prefills} servers computed prompts alone; {none}")
    if count is not None and how.servers:
        if count % servers:
            raise SpecError(f"{fields.source}: {count} accelerators are not divided evenly among {servers} servers")
        many = f"{count} accelerators on {servers} server{'' if servers == 1 else 's'}"
        said.append(f"{many} are read as --tp {count // servers}; --tp says otherwise")
        tp = tp or count // servers
    elif tp is None and count is not None:
        tp = count
        if count > 1:
            said.append(f"{count} accelerators are read as --tp {count}; --tp and --replicas say otherwise")
    found: dict[str, Any] = {name: value for name in ("pp", "ep") if (value := fields.count(name) or 1) > 1}
    if _true(fields.value("dp_attention")) and tp:
        found["dp"], tp = tp, 1  # attention replicas on the same accelerators
    found |= formats_of(fields.text("quantization"), fields.text("kv"))
    if weights := (fields.text("weights") or "").lower():
        four = "mxfp4" if (gpu or "").lower().startswith("mi") else "modelopt_fp4"
        found |= formats_of(four if weights == "fp4" else weights, None) or {"weights": weights}
    if budget := fields.count("token_budget"):
        found["token_budget"] = budget
    if (draft := str(fields.value("draft") or "none").lower()) not in ("none", "false", "off"):
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
    facts = RunFacts(_QUANT.sub("", stem) or None, gpus[0] if gpus else None)
    return llama_run(fields.source, (prompt, made, depth), fields.number("avg_ts") or 0.0, facts, deployment)


def llama_run(
    source: str, tokens: tuple[int, int, int], rate: float, facts: RunFacts, deployment: Mapping[str, object]
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
        source,
        "llama-bench",
        RunFacts(facts.model, facts.gpu, "llama.cpp", 1, isl, osl, 1, requests=1, hits=depth / isl if prompt else None),
        MeasuredSpread(mean=None if made else whole),
        MeasuredSpread(mean=None if prompt else whole / max(made, 1)),
        e2e=MeasuredSpread(mean=whole if prompt and made else None),
        static=True,
        notes=(f"{significant(rate)} tokens/s",),
        deployment=tuple(deployment.items()),
    )

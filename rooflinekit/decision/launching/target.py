"""One deployment as its engine has to be told: the prediction, every number that it rests on, the flags that say it.

`aim` predicts a scenario, fixes every setting that the prediction rests on, and predicts again. Nothing is exported
that does not fit: both predictions raise if it does not.

Three engines call three things a memory fraction: vLLM of all memory, SGLang of what is free before the weights,
TensorRT-LLM of what is free after them. The bytes of the pool are what they have in common.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from rooflinekit.estimation.estimator import estimate, read_deployment, read_workload, resolve
from rooflinekit.estimation.options import Keywords, OwnKeywords, part_of, read
from rooflinekit.estimation.results import Estimate, MemoryResult
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, Scenario
from rooflinekit.model.capacity import make_memory_model
from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.errors import DeploymentError, DoesNotFitError, InputError, WorkloadError
from rooflinekit.model.types.model import MixtureOfExperts, Model
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.units import GB
from rooflinekit.specs import load_model
from rooflinekit.specs.engines import Flag, FlagTable, load_flags, split_version
from rooflinekit.specs.places import spec_dir, user_dir

_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PRINTABLE, _DELETE = 32, 127  # ASCII
_HUB = "https://huggingface.co/"
_DIGITS = 4  # of a fraction: 8 MB of an 80 GB accelerator
_ANYWAY = " (--allow-oom prints the numbers anyway)"
_HEADS = ("medusa", "eagle", "eagle3")  # drafts that come as a checkpoint of their own
_CAPTURED = 128  # sequences; TensorRT-LLM's own default, taken for all


@dataclass(frozen=True, slots=True)
class Wish:
    """A value for a concept, and why; `word`: the value is one of our words, which the table translates.

    when: whether the deployment needs it.
    """

    concept: str
    value: Any
    because: str
    word: bool = False
    when: bool = True


@dataclass(frozen=True, slots=True)
class LaunchSetting:
    """One flag or configuration key with its value, ready to be written.

    `value` is None for an option that stands alone, and for a key whose value is null.
    """

    flag: str
    value: str | int | float | bool | None
    because: str
    source: str
    on_command_line: bool

    @property
    def args(self) -> tuple[str, ...]:
        """Words on a command line."""
        if self.value is None:
            return (self.flag,)
        return (self.flag, f"{self.value:g}" if isinstance(self.value, float) else str(self.value))


def grant(table: FlagTable, version: str, wishes: Iterable[Wish]) -> Iterator[LaunchSetting]:
    """Every wish as a setting that the version has."""
    for wish in wishes:
        flag = table.find(wish.concept, version)
        if flag is None:
            others = [flag for flag in table.flags if flag.concept == wish.concept]
            when = f"; versions {others[0].since} to {others[-1].last or table.read[-1]} have one" if others else ""
            raise DeploymentError(
                f"{table.engine} {version} has no setting that is known for this: {wish.because}{when}"
            )
        yield LaunchSetting(
            flag.spelling, _value(table, version, flag, wish), wish.because, flag.source, flag.on_command_line
        )


def _value(table: FlagTable, version: str, flag: Flag, wish: Wish) -> str | int | float | bool | None:
    if flag.kind in ("switch", "nothing"):
        return None
    if wish.word and wish.value not in flag.values:
        raise DeploymentError(
            f"{table.engine} {version} does not take {wish.value} for {flag.spelling}; it takes "
            f"{', '.join(flag.values)} ({wish.because})"
        )
    if flag.kind == "json":
        return json.dumps(wish.value, separators=(",", ":"))
    given: str | int | float | bool = flag.values[wish.value] if wish.word else wish.value
    return given


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The argument that names the model, its revision, and what the user has to hear about it."""

    argument: str
    revision: str | None = None
    note: str | None = None


def find_checkpoint(given: str | PathLike[str], model: Model) -> Checkpoint:
    """The checkpoint of a model that was asked for as `given`."""
    text = fspath(given)
    origin = Path(model.origin)
    for name in (text, str(origin.resolve())):
        if any(ord(letter) < _PRINTABLE or ord(letter) == _DELETE for letter in name):
            raise InputError(f"model {name!r} has control characters; rename the folder")
    ours = origin.suffix in (".yaml", ".yml") and origin.parent in (spec_dir("model"), user_dir("model"))
    if model.origin and not ours:
        return _own(text, origin)
    ids = [alias for alias in model.aliases if _ID.fullmatch(alias)]
    asked = next((alias for alias in ids if alias.casefold() == text.casefold()), None)
    if asked:
        return Checkpoint(asked)
    named = model.source.removeprefix(_HUB) if model.source.startswith(_HUB) else ""
    chosen = named if _ID.fullmatch(named) else next(iter(ids), None)
    if chosen is None:
        return Checkpoint(
            f"/path/to/{model.name}",
            None,
            f"no checkpoint of {model.name} is known: replace /path/to/{model.name} by its folder",
        )
    others = [alias for alias in ids if alias != chosen]
    note = f"{model.name} is also the shape of {', '.join(others[:3])}: name one to serve it" if others else None
    return Checkpoint(chosen, None, note)


def _own(text: str, origin: Path) -> Checkpoint:
    """A path of the user's, or an id of the local Hugging Face cache."""
    if _ID.fullmatch(text.partition("@")[0]) and not Path(text).exists():
        name, _, revision = text.partition("@")
        return Checkpoint(name, revision or None)
    if origin.suffix in (".yaml", ".yml"):
        place = f"/path/to/{origin.stem}"
        return Checkpoint(
            place,
            None,
            f"{origin.name} describes a model and holds no weights: replace {place} by its checkpoint's folder",
        )
    folder = origin if origin.is_dir() else origin.parent
    if origin.name == "config.json" or origin.is_dir():
        held = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
        note = None if held else f"{folder.resolve()} holds no weights here: start the server where it does"
        return Checkpoint(str(folder.resolve()), None, note)
    return Checkpoint(str(folder.resolve()), None, f"an engine reads config.json, and this is {origin.name}")


@dataclass(frozen=True, slots=True)
class Share:
    """One memory fraction, what it is a share of, and what it pays for besides the pool for the cache [B]."""

    base: float
    base_name: str
    paid: tuple[tuple[str, float], ...]
    pool: float

    @property
    def fraction(self) -> float:
        """(what it pays for + pool) / base, to four digits."""
        return round((sum(size for _, size in self.paid) + self.pool) / self.base, _DIGITS)

    @property
    def sum(self) -> str:
        """The arithmetic in words, as it stands beside the flag."""
        parts = [f"{name} {size / GB:.2f}" for name, size in (*self.paid, ("KV pool", self.pool))]
        return f"({' + '.join(parts)}) GB / {self.base / GB:.2f} GB {self.base_name}"


def memory_share(rule: MemoryRule, memory: MemoryResult) -> Share:
    """The fraction that gives an engine the pool of a prediction, by the engine's own rule."""
    graphs = ("CUDA graphs", memory.graph_bytes * rule.graphs_count)
    context = ("CUDA context", memory.context_bytes * rule.context_counts)
    outside = ("outside the allocator", memory.non_torch_bytes)
    weights, peak = ("weights", memory.weight_bytes), ("activations", memory.activation_bytes)
    paid: tuple[tuple[str, float], ...]
    match rule.budget:
        case "total" | "none":  # llama.cpp takes no fraction: what lies in memory, as a share of it
            base, name, paid = memory.capacity_bytes, "of all memory", (weights, peak, outside, context, graphs)
        case "static":
            base, name = memory.capacity_bytes - memory.context_bytes, "free before the weights"
            paid = weights, outside
        case "free":
            taken = memory.weight_bytes + memory.context_bytes + memory.non_torch_bytes + graphs[1]
            base, name = (
                memory.capacity_bytes - taken - memory.activation_bytes,
                "free after weights and the profiled step",
            )
            paid = ()
        case _:
            raise InputError("this engine takes no memory fraction")
    return Share(base, name, tuple(part for part in paid if part[1] > 0.0), memory.kv_pool_bytes)


@dataclass(frozen=True, slots=True)
class WeightLoading:
    """Origin of the weights' format: from the checkpoint, a cast (`dtype`), or by quantising (`online`)."""

    dtype: Dtype | None = None
    online: Dtype | None = None
    checkpoint: str | None = None  #: format of the checkpoint that is needed instead


@dataclass(frozen=True)
class Target:
    """Settings of one kind of server; counts are of one attention replica."""

    estimate: Estimate
    plan: Plan
    table: FlagTable
    version: str
    checkpoint: Checkpoint
    weights: WeightLoading
    share: Share
    sequences: int
    tokens: int | None  #: of one prefill step; None where this version takes whole prompts
    longest: int  #: tokens of the longest sequence
    draft: Speculation | None = None
    draft_model: Checkpoint | None = None
    running: int = 1  #: sequences that the prediction has in a step
    role: str = ""  #: prefill or decode of a split deployment
    host_gpus: int = 8

    def flag(self, concept: str) -> Flag | None:
        """The setting of this version for a concept."""
        return self.table.find(concept, self.version)

    def has(self, concept: str) -> bool:
        """True if this version has a setting for it."""
        return self.flag(concept) is not None

    @property
    def drafted(self) -> str:
        """Drafting in words; empty without a draft."""
        return f"{self.draft.draft_tokens} tokens drafted in a row by {self.draft.draft}" if self.draft else ""

    @property
    def total_tp(self) -> int:
        """Ranks that engines with attention DP inside TP call the tensor parallel size."""
        return self.plan.deployment.tp * self.plan.deployment.dp

    @property
    def graph_batch(self) -> int:
        """Largest decode batch to capture graphs for: what is predicted, with room to grow."""
        return min(self.sequences, max(self.running, _CAPTURED))

    @property
    def experts(self) -> bool:
        """True if the model has routed experts."""
        return any(isinstance(layer.ffn, MixtureOfExperts) for layer in self.plan.model.layer_counts)

    @property
    def exchanged(self) -> str:
        """The table's word for how tokens reach their experts; empty where the engine chooses, or has no setting."""
        asked, flag = self.plan.deployment.all_to_all, self.flag("all_to_all")
        return next((word for word in (f"{asked}-{self.role}", asked) if flag and word in flag.values), "")

    @property
    def hosts(self) -> int:
        """Machines that one replica needs."""
        return -(-self.plan.deployment.gpus // self.host_gpus)

    @property
    def states_in_blocks(self) -> bool:
        """True if each sequence keeps recurrent states in blocks of the cache, without which it does not run."""
        eager = self.plan.deployment.settings.eager
        return not eager and math.isfinite(make_memory_model(self.plan).state_blocks[1])


def weights_of(plan: Plan, table: FlagTable) -> WeightLoading:
    """Choose how an engine gets the plan's weights: by what it casts to, and quantises to as it loads."""
    online, cast = table.values("quantization"), table.values("dtype")
    model, deployment, formats = plan.model, plan.deployment, plan.precision.formats
    stream = plan.precision.stream
    dtype = stream if cast and (stream is not model.dtype or stream is Dtype.FP32) else None  # fp32 becomes fp16 alone
    if formats == model.formats:
        return WeightLoading(dtype=dtype)
    asked = deployment.weights
    apart = {deployment.attention_weights, deployment.lm_head} - {None, asked}
    wide = all(getattr(model.formats, kind).is_wide for kind in model.matrices)
    if asked is not None and asked.value in online and wide and not apart and deployment.lm_head is None:
        return WeightLoading(dtype=dtype, online=asked)
    if asked is not None and asked.is_wide and wide and not apart and cast:
        return WeightLoading(dtype=asked if asked is not model.dtype else None)
    needed = asked or deployment.attention_weights or deployment.lm_head
    return WeightLoading(dtype=dtype, checkpoint=str(needed))


def refuse_what_no_server_does(plan: Plan, draft: Speculation | None) -> None:
    """Raise DeploymentError for what a prediction can assume and no flag of these servers turns on."""
    deployment = plan.deployment
    refused: dict[str, Any] = {
        f"cp={deployment.cp}": deployment.cp > 1,
        f"kv_policy {deployment.kv_policy}": str(deployment.kv_policy) != "full",
        f"draft_tree={draft.tree if draft else None}": draft is not None and draft.tree is not None,
        "sequence_parallel": deployment.sequence_parallel,
        f"ffn_gpus={deployment.ffn_gpus}": deployment.ffn_gpus > 0,
        f"encoder_gpus={deployment.encoder_gpus}": deployment.encoder_gpus > 0,
        f"lora_rank={deployment.lora_rank} without the adapters' own paths": deployment.lora_rank > 0,
    }
    for what, there in refused.items():
        if there:
            raise DeploymentError(f"{what} cannot be exported: no setting of {deployment.engine} is known for it")


def aim(scenario: Keywords, role: str = "", host_gpus: int = 8) -> Target:
    """Settings of one server of a scenario (keywords of `estimate`, with `model` and `gpu`)."""
    given = {key: scenario[key] for key in ("model", "gpu") if scenario.get(key) is not None}
    given |= read(Scenario, {key: value for key, value in scenario.items() if key not in ("model", "gpu")})
    if given.pop("allow_oom", False):
        raise InputError("a deployment that does not fit is never exported; leave allow_oom out")
    if not given.get("model"):
        raise InputError("a scenario needs a model: a name, a Hugging Face id, or a path")
    given.setdefault("gpu", "h100-sxm")
    engine, named = split_version(str(given.get("engine") or "vllm"))
    table = load_flags(engine)
    version = table.check(str(named or given.get("engine_version") or ""))
    given["engine"] = f"{table.engine}@{version}"
    given.pop("engine_version", None)
    plan, draft = _planned(given)
    refuse_what_no_server_does(plan, draft)
    work = read_workload(given, plan)
    loaded = "concurrency" in given or "rate" in given
    fixed = _fixed(given, plan, _running(_predicted(given)) if loaded else float(work.batch))
    answer = _longest(fixed, plan, int(float(work.longest_context)))
    if (most := _with_states(plan, answer)) < fixed["max_num_seqs"]:
        fixed |= {"max_num_seqs": most}
        answer = _longest(fixed, plan, int(float(work.longest_context)))
    plan, draft = _planned(fixed | {"max_model_len": answer.inputs["max_model_len"]})
    weights = weights_of(plan, table)
    checkpoint = find_checkpoint(given["model"], plan.model)
    if table.engine == "llama.cpp":
        checkpoint = _gguf(plan)
    elif dtype := weights.checkpoint:
        place = f"/path/to/{plan.model.name}-{dtype}"
        note = f"{dtype} weights need a checkpoint that is quantised so: replace {place} by its folder or id"
        checkpoint = Checkpoint(place, None, note)
    settings = plan.deployment.settings
    return Target(
        answer, plan, table, version, checkpoint, weights, memory_share(plan.engine.memory, answer.memory),
        int(settings.max_num_seqs or 1), settings.token_budget, int(settings.max_model_len or 0), draft,
        _draft_checkpoint(draft), math.ceil(_running(answer) / plan.deployment.dp), role, host_gpus,
    )  # fmt: skip


def _predicted(given: Keywords) -> Estimate:
    """The estimate; raises DoesNotFitError also under load."""
    try:
        answer = estimate(**given)
    except DoesNotFitError as error:
        raise DoesNotFitError(str(error).removesuffix(_ANYWAY) + "; nothing is exported") from None
    if not answer.memory.fits:
        need, have = answer.memory.needed_bytes / 1e9, answer.memory.available_bytes / 1e9
        raise DoesNotFitError(
            f"{answer.model} on {answer.gpu} does not fit: needs {need:,.1f} GB per accelerator and has {have:,.1f} "
            "GB; nothing is exported"
        )
    return answer


def _planned(given: Keywords) -> tuple[Plan, Speculation | None]:
    """The layout, for which no times are needed, and the draft."""
    draft = Speculation.read(part_of(given, SPECULATION_KEYS))
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    return resolve(given["model"], given["gpu"], deployment, "none", draft).plan, draft


def _fixed(given: OwnKeywords, plan: Plan, running: float) -> OwnKeywords:
    """The scenario with the engine's defaults, on which the prediction rests, said aloud."""
    rule, settings, accelerator = plan.engine.memory, plan.deployment.settings, plan.system.accelerator
    budget = settings.token_budget or (
        int(rule.usual_budget(accelerator, plan.deployment.dp)) if rule.chunked else None
    )
    needed = math.ceil(running / plan.deployment.dp)
    sequences = settings.max_num_seqs or max(int(rule.default(rule.max_num_seqs, accelerator)), needed)
    if budget is not None and sequences > budget and rule.profiled:
        if settings.max_num_seqs or needed > budget:
            raise WorkloadError(
                f"{sequences} sequences at once need a token budget of at least as many; token_budget is {budget}"
            )
        sequences = budget
    fraction = settings.memory_fraction or rule.fraction
    fixed = given | {"max_num_seqs": sequences, "memory_fraction": fraction}
    return fixed if budget is None else fixed | {"token_budget": budget}


def _with_states(plan: Plan, answer: Estimate) -> float:
    """Sequences for which the pool has a block of each group of layers: more never run, and each needs its states."""
    whole = make_memory_model(plan).state_blocks[1]
    if math.isinf(whole) or plan.deployment.settings.eager:
        return math.inf
    asked, blocks = plan.deployment.settings.max_num_seqs, int(answer.memory.kv_blocks)
    if asked is None:
        return max(int(whole), 1)
    if asked > blocks:
        raise DoesNotFitError(
            f"max_num_seqs {asked}: each sequence of {plan.model.name} keeps its state in a block, and the pool has "
            f"{blocks}: {plan.deployment.engine} would not start; use at most {blocks}"
        )
    return math.inf


def _running(answer: Estimate) -> float:
    """Sequences that have to run at once, over the whole deployment."""
    return float(answer.inputs["batch"] if answer.load is None else max(answer.load.running, 1.0))


def _longest(fixed: OwnKeywords, plan: Plan, request: int) -> Estimate:
    """The estimate with the longest sequence said: as given, else the model's own, else the request's."""
    given, most = plan.deployment.settings.max_model_len, plan.model.max_context
    if most is not None and max(request, given or 0) > most:
        what = f"max_model_len {given}" if (given or 0) > most else f"a request of {request} tokens"
        raise WorkloadError(f"{what} exceeds {plan.model.name}'s maximum context of {most}: the engine would refuse it")
    if given is not None and request > given:
        raise WorkloadError(f"a request of {request} tokens exceeds max_model_len {given}: the engine would refuse it")
    if given is not None or most is None:
        return _predicted(fixed | {"max_model_len": given or request})
    try:
        return _predicted(fixed | {"max_model_len": most})
    except DoesNotFitError:
        return _predicted(fixed | {"max_model_len": request})


def _gguf(plan: Plan) -> Checkpoint:
    """The GGUF file of a model: its own, or one in the format of the prediction."""
    origin, model = Path(plan.model.origin), plan.model
    if origin.suffix.lower() == ".gguf":
        return Checkpoint(str(origin.resolve()))
    kind = "experts" if "experts" in model.matrices else "ffn"
    stored = plan.deployment.weights or getattr(plan.precision.formats, kind)
    place = f"/path/to/{model.name}-{stored}.gguf"
    return Checkpoint(place, None, f"replace {place} by a GGUF file of {model.name} in {stored}")


def _draft_checkpoint(draft: Speculation | None) -> Checkpoint | None:
    """Checkpoint of the draft, where it is one of its own."""
    if draft is None or draft.method in ("ngram", "mtp"):
        return None
    if draft.method in _HEADS:
        place = f"/path/to/{draft.method}-head"
        return Checkpoint(place, None, f"replace {place} by the {draft.method} head of this model")
    found = find_checkpoint(draft.draft, load_model(draft.draft).value)
    if found.revision:
        raise DeploymentError(f"draft {draft.draft!r} cannot be exported with a revision; name it without")
    return found

"""From a scenario to what a server is told: predict it, fix every setting that the prediction rests on, predict again.

Nothing is exported that does not fit: both predictions raise if it does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rooflinekit.decision.launching.target import (
    Checkpoint,
    Target,
    find_checkpoint,
    memory_share,
    quantised,
    refuse_what_no_server_does,
    weights_of,
)
from rooflinekit.estimation.estimator import estimate, read_deployment, read_workload, resolve
from rooflinekit.estimation.options import part_of, read
from rooflinekit.estimation.results import Estimate
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, Scenario
from rooflinekit.model.step import Plan
from rooflinekit.model.types.errors import DeploymentError, DoesNotFitError, InputError, WorkloadError
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.specs import load_model
from rooflinekit.specs.engines import load_flags, split_version

_HEADS = ("medusa", "eagle", "eagle3")  # drafts that come as a checkpoint of their own


def aim(scenario: Mapping[str, Any], role: str = "", host_gpus: int = 8) -> Target:
    """What one server of a scenario (keywords of `estimate`, with `model` and `gpu`) is told.

    Raises DoesNotFitError for one that does not fit, InputError (and its kinds) for one that no server can be told.
    """
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
    work, _ = read_workload(given, plan)
    loaded = "concurrency" in given or "rate" in given
    fixed = _fixed(given, plan, _running(_predicted(given)) if loaded else float(work.batch))
    answer = _longest(fixed, plan, int(float(work.longest_context)))
    plan, draft = _planned(fixed | {"max_model_len": answer.inputs["max_model_len"]})
    weights = weights_of(plan, table)
    checkpoint = find_checkpoint(given["model"], plan.model)
    if weights.checkpoint:
        checkpoint = quantised(plan.model, weights.checkpoint)
    settings = plan.deployment.settings
    return Target(
        answer, plan, table, version, checkpoint, weights, memory_share(plan.engine.memory, answer.memory),
        int(settings.max_num_seqs or 1), settings.token_budget, int(settings.max_model_len or 0), draft,
        _draft_checkpoint(draft), math.ceil(_running(answer) / plan.deployment.dp), role, host_gpus,
    )  # fmt: skip


def _predicted(given: Mapping[str, Any]) -> Estimate:
    """The estimate; raises DoesNotFitError also under load."""
    try:
        answer = estimate(**given)
    except DoesNotFitError as error:
        raise DoesNotFitError(str(error).removesuffix(_ANYWAY) + "; nothing is exported") from None
    if not answer.memory.fits:
        need, have = answer.memory.needed_bytes / 1e9, answer.memory.available_bytes / 1e9
        raise DoesNotFitError(
            f"{answer.model} on {answer.gpu} does not fit: needs {need:.1f} GB per accelerator and has {have:.1f} GB; "
            "nothing is exported"
        )
    return answer


def _planned(given: Mapping[str, Any]) -> tuple[Plan, Speculation | None]:
    """The layout, for which no times are needed, and the draft."""
    draft = Speculation.read(part_of(given, SPECULATION_KEYS))
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    return resolve(given["model"], given["gpu"], deployment, "none").plan, draft


_ANYWAY = " (--allow-oom prints the numbers anyway)"


def _fixed(given: dict[str, Any], plan: Plan, running: float) -> dict[str, Any]:
    """The scenario with the engine's defaults, on which the prediction rests, said aloud."""
    rule, settings, accelerator = plan.engine.memory, plan.deployment.settings, plan.system.accelerator
    budget = settings.token_budget or (int(rule.default(rule.token_budget, accelerator)) if rule.chunked else None)
    needed = math.ceil(running / plan.deployment.dp)
    sequences = settings.max_num_seqs or max(int(rule.default(rule.max_num_seqs, accelerator)), needed)
    if budget is not None and sequences > budget:
        if settings.max_num_seqs or needed > budget:
            raise WorkloadError(
                f"{sequences} sequences at once need a token budget of at least as many; token_budget is {budget}"
            )
        sequences = budget
    fraction = settings.memory_fraction or rule.fraction
    fixed = given | {"max_num_seqs": sequences, "memory_fraction": fraction}
    return fixed if budget is None else fixed | {"token_budget": budget}


def _running(answer: Estimate) -> float:
    """Sequences that have to run at once, over the whole deployment."""
    return float(answer.inputs["batch"] if answer.load is None else max(answer.load.running, 1.0))


def _longest(fixed: dict[str, Any], plan: Plan, request: int) -> Estimate:
    """The estimate with the longest sequence said: as given, else the model's own, else the request's.

    Raises WorkloadError for a request that is longer than what the engine would admit, DoesNotFitError if no choice
    fits.
    """
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


def _draft_checkpoint(draft: Speculation | None) -> Checkpoint | None:
    """What drafts, where that is a checkpoint of its own."""
    if draft is None or draft.method in ("ngram", "mtp"):
        return None
    if draft.method in _HEADS:
        place = f"/path/to/{draft.method}-head"
        return Checkpoint(place, None, f"replace {place} by the {draft.method} head of this model")
    found = find_checkpoint(draft.draft, load_model(draft.draft).value)
    if found.revision:
        raise DeploymentError(f"draft {draft.draft!r} cannot be exported with a revision; name it without")
    return found

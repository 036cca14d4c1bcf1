"""The front door of the walk: names and keywords in, `Walk` out."""

from __future__ import annotations

from os import PathLike
from typing import Any, Unpack

from rooflinekit.estimation.estimator import inputs, read_deployment, resolve
from rooflinekit.estimation.options import keywords, part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, Shapes
from rooflinekit.explanation.walk.build import walk_phase
from rooflinekit.explanation.walk.prompts import Prompts, read_prompts
from rooflinekit.explanation.walk.result import Walk
from rooflinekit.model.step import Plan
from rooflinekit.model.types.workload import Workload
from rooflinekit.version import __version__


@keywords(Shapes)
def shapes(model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[Shapes]) -> Walk:
    """Walk every tensor of a prefill, and of the decode step behind it, through a model.

    Args:
        model: a name, a Hugging Face id, or a path to a config.json or the folder that holds it.
        gpu: an accelerator's name or path: which number formats there are, and how many can share a layer.
        **scenario: the options of `Shapes` in docs/cli.md: tokens or a prompt, degrees, formats; None is the default.

    Returns:
        A `Walk`: for each step its tensors with shapes in letters and numbers, FLOP and bytes with their formulas. The
        work is that of `estimate`'s kernels, for one accelerator; attention is counted causal.

    Raises:
        InputError: (and its kinds) for anything that makes no sense.

    >>> walk = shapes("llama-3-8b", tokens=6)
    >>> scores = next(stop for stop in walk.phases[0].sections[1].stops if stop.name == "scores")
    >>> scores.outputs[0].letters, scores.outputs[0].numbers, scores.work.flops  # 2·32·128·21 of 36 pairs
    ('[H, S, T]', '[32, 6, 6]', 172032.0)
    """
    given = read(Shapes, scenario)
    prompts = read_prompts(given.get("tokens"), given.get("prompt"), given.get("batch", 1), given.get("cached", 0))
    resolved = resolve(model, gpu, read_deployment(part_of(given, DEPLOYMENT_KEYS)), "none")
    return walk(resolved.plan, prompts, resolved.warnings)


def walk(plan: Plan, prompts: Prompts, warnings: tuple[str, ...] = ()) -> Walk:
    """The walk of prompts through a plan, both phases."""
    accelerator, mine = plan.system.accelerator, prompts.shared(plan.deployment.dp, plan.deployment.microbatches)
    return Walk(
        version=__version__,
        model=plan.model.name,
        gpu=accelerator.name,
        inputs=_inputs(plan, prompts),
        words=prompts.words,
        phases=(walk_phase(plan, mine, "prefill"), walk_phase(plan, mine, "decode")),
        ridge=float(accelerator.peak(plan.precision.stream)) / float(accelerator.memory_bandwidth),
        warnings=(*warnings, *_notes(plan, prompts)),
    )


_INPUTS = ("tp", "pp", "ep", "dp", "cp", "sequence_parallel", "skew", "redundant_experts", "kv_policy", "weights",
           "activations", "kv")  # fmt: skip


def _inputs(plan: Plan, prompts: Prompts) -> dict[str, Any]:
    """As they were understood."""
    sizes = {"tokens": list(prompts.lengths), "batch": prompts.sequences, "cached": prompts.cached}
    asked = inputs(plan, Workload())
    return sizes | {"padded_tokens": prompts.padded_tokens} | {key: asked[key] for key in _INPUTS}


def _notes(plan: Plan, prompts: Prompts) -> list[str]:
    notes = []
    if prompts.words:
        notes.append(
            "words and marks of the prompt stand in for tokens; a tokenizer cuts long words up, and often puts a token "
            "in front that marks the beginning"
        )
    longest, limit = max(prompts.lengths) + 1, plan.model.max_context
    if limit is not None and longest > limit:
        notes.append(f"{longest} tokens are more than the {limit} that {plan.model.name} was made for")
    return notes

"""One deployment on a page: its answer, its charts, its derivation and where its numbers come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from rooflinekit.decision.sensitivity.moves import ADVISED, CAVEATS, LEAST, LOSSES, NAMES, PLAYED, SHOWN
from rooflinekit.estimation.doubts import CAUSE_WORDS, FAMILIES, OTHERS
from rooflinekit.estimation.estimator import refuse_groups
from rooflinekit.estimation.notes import WORDS, misfit
from rooflinekit.estimation.options import OwnKeywords, read
from rooflinekit.estimation.results import Estimate
from rooflinekit.estimation.scenario import DEGREES, DEPLOYMENT_KEYS, Scenario
from rooflinekit.estimation.traffic import read_load
from rooflinekit.explanation.front import derive, make_case
from rooflinekit.explanation.metrics import Case
from rooflinekit.explanation.walk.front import shapes
from rooflinekit.load.answer import Load
from rooflinekit.model.graph.javascript import Instance
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import WIDEST
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.engine import CAUSES, ROOM
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.units import format_bytes
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.derivation import folded
from rooflinekit.report.document import asked, headed, images_in, ms, three
from rooflinekit.report.estimate import between
from rooflinekit.report.look import FIRST, HATCHES, QUANTITIES, SHAPES, STEP, TOKEN, TimePart, hues_of
from rooflinekit.report.page.offers import Asked, Offers, roofs
from rooflinekit.report.page.plays import load_data
from rooflinekit.report.page.program import Written
from rooflinekit.report.page.render import card, heading, paragraphs, table
from rooflinekit.report.walk import walk_page
from rooflinekit.specs import noun_of
from rooflinekit.specs.calibration.evidence import EVIDENCE
from rooflinekit.specs.files import read_yaml

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class PageDeployment:
    """A deployment with its answer."""

    asked: Asked
    case: Case
    scenario: OwnKeywords

    @classmethod
    def of(cls, model: str, gpu: str, scenario: OwnKeywords) -> PageDeployment:
        """Answer it; what does not fit is answered too, and said."""
        case = make_case(model, gpu, dict(scenario), anyway=True)
        refuse_groups(case.predictor.plan.deployment, "estimate and explain, not of pages", "ffn_gpus", "encoder_gpus")
        deployment = {key: scenario[key] for key in DEPLOYMENT_KEYS if scenario.get(key) is not None}
        load = read_load(read(Scenario, scenario), case.predictor.plan.image_tokens)
        for key, told in (("cached", load.cached), ("seed_reuse", load.prompts)) if load is not None else ():
            if told:
                raise InputError(f"pages play loads whose prompts are computed whole; leave {key} out, or the load")
        asked = Asked(model, gpu, deployment, scenario.get("calibration"), case.predictor, case.work, load)
        return cls(asked, case, scenario)

    @property
    def load(self) -> Load | None:
        """The load as it was played, or as it was asked for."""
        return self.asked.load if self.case.played is None else self.case.played.asked

    @property
    def answer(self) -> Estimate:
        """Answer of `estimate`."""
        return self.case.answer

    @property
    def named(self) -> str:
        """Name of the deployment and its question."""
        return f"{headed(self.answer)}, {asked(self.answer)}"

    @property
    def work(self) -> Workload:
        """The static batch of the charts.

        Under load, of the sequences that it keeps running as many as fit at their full length.
        """
        work = self.case.work
        if self.answer.load is None:
            return work
        room = float(self.case.predictor.memory.max_batch(work.longest_context, work.isl - work.cached))
        return replace(work, batch=min(float(work.batch), max(room, 1.0)))

    @property
    def at(self) -> OwnKeywords:
        """First values of the sliders."""
        load, work = self.asked.load, self.case.work
        names = ["batch", "isl", "osl", "cached"] if load is None else ["isl", "osl"]
        counts: dict[str, Any] = {name: int(getattr(work, name)) for name in names}
        counts["isl"] -= self.case.predictor.plan.image_tokens
        if load is not None:
            counts |= {"rate": load.rate} if load.users is None else {"users": load.users}
        if work.context is not None:
            counts["context"] = int(float(work.context))
        return self.asked.key | counts | {"speed": 1}


def lead(deployed: PageDeployment, pool: str = "", before: str = "", told_of: str = "") -> str:
    """Heading, answer, facts and notes; `pool`: how a replica that computes no prompts comes to its batch.

    told_of: whose the notes are, where they stand beside those of another deployment.
    """
    answer, work = deployed.answer, deployed.work
    told = [note for note in answer.warnings if not note.startswith("does not fit")]  # the line in red says it
    static = filled_notes(answer, int(work.batch), int(work.longest_context))
    notes = [f"<li>{escape(told_of + note)}</li>" for note in told]
    notes += [f'<li class="quiet">{escape(told_of + note)}</li>' for note in static]  # which the charts say themselves
    if not answer.memory.fits:
        advice = misfit(deployed.case.predictor, deployed.case.work).partition(" (--allow-oom")[0]
        bad = f"This deployment does not fit in memory; its times are what they would be. {advice}."
        notes.insert(0, f'<li class="bad quiet">{escape(told_of + bad)}</li>')
    said = decode_sentence(answer) if pool else answer_sentence(answer)
    body = paragraphs([said], "answer") + paragraphs([pool] if pool else []) + paragraphs(facts(answer))
    return heading(before + headed(answer)) + body + (f'<ul class="notes">{"".join(notes)}</ul>' if notes else "")


def _played(deployed: PageDeployment) -> int:
    """Requests that the answer of a deployment played, warm-up included."""
    load = deployed.answer.load
    return load.requests + load.warmup if load else 0


def slider_data(offers: Offers, deployed: PageDeployment, against: PageDeployment | None) -> tuple[dict[str, Any], str]:
    """Data that JavaScript starts from, and the functions that it calls."""
    program, reference, load = offers.program, None, load_data(deployed.load, _played(deployed))
    running = deployed.asked.plan.deployment
    if against is not None:
        asked = against.asked
        other = program.write(asked.predictor, asked.loads, asked.work.context is not None)
        offers.gpus.setdefault(asked.plan.system.accelerator.name, asked.plan)
    printed = program.library.printed()
    scenes, moves = dict[str, int](), dict[str, int]()  # as JSON, each once

    def numbered(functions: Mapping[str, Instance]) -> dict[str, int]:
        return {name: printed.places[each] for name, each in functions.items()}

    def placed(written: Written) -> dict[str, Any]:
        plays: Mapping[str, object] | None = None
        if (own := written.plays) is not None:
            scene = scenes.setdefault(json.dumps(own.scene), len(scenes))
            functions, tables = numbered(own.functions), list(map(numbered, own.tables))
            plays = {"functions": functions, "tables": tables, "scene": scene}
        rest = {key: getattr(written, key) for key in ("gpus", "prefill", "decode")}
        return {"static": printed.places[written.static], "loads": written.loads, "plays": plays, **rest}

    plans = {label: placed(found.written) | {"formats": found.formats, "notes": found.notes, "evidence": found.evidence,
                                            "l2": found.l2, "seqs": found.seqs, "reserves": found.reserves,
                                            "moves": moves.setdefault(json.dumps(found.moves), len(moves))}
             for label, found in offers.plans.items()}  # fmt: skip

    if against is not None:
        told = load_data(against.load, _played(against))
        own = {} if told == load else {"load": told}
        reference = {"title": headed(against.answer), "at": against.at, "plan": placed(other) | own}
    flags = list[str]()
    for key, value in deployed.scenario.items():
        if key not in _CONTROLLED and value not in (None, False):
            flags += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
    return {
        "asked": deployed.at,
        "load": load,
        "images": images_in(deployed.answer.inputs),
        "given": {
            deployed.at["model"]: deployed.asked.model,
            deployed.at["gpu"]: deployed.asked.gpu,
            running.engine: "@".join(filter(None, (running.engine, running.engine_version))),
        },
        "options": flags,
        "process": deployed.asked.process,
        "words": SENTENCES | WORDS,
        "look": LOOK,
        "advice": ADVICE,
        "doubts": DOUBTS,
        "hues": hues_of(offers.gpus),
        "admitted": running.settings.max_model_len,
        "reference": reference,
        "offers": {
            "models": offers.models,
            "gpus": {name: roofs(found) for name, found in offers.gpus.items()},
            "plans": plans,
            "notes": list(offers.notes),
            "missing": offers.missing,
            "formats": offers.formats,
            "steps": list(program.steps),
            "scenes": list(map(json.loads, scenes)),
            "moves": list(map(json.loads, moves)),
        },
        "library": printed.data,
    }, printed.source


def _looks(parts: Iterable[TimePart]) -> list[list[str]]:
    return [[part.name, part.tint] for part in parts]


LOOK = {
    "step": _looks(STEP.values()),
    "first": _looks(FIRST.values()),
    "others": _looks([TOKEN["prompts"]])[0],
    "names": QUANTITIES,
    "limits": HATCHES,
    "shapes": {phase: shape for phase, (_, shape) in SHAPES.items()},
}
"""Names, hues, hatches and shapes, as the terminal and the pictures have them."""

ADVICE = {
    "metrics": ADVISED,
    "names": NAMES,
    "evidence": EVIDENCE,
    "least": LEAST,
    "shown": SHOWN,
    "played": PLAYED,
    "losses": LOSSES,
    "crowd": CAVEATS["batch"],
}
"""Ranking of advice, and its words."""

DOUBTS = {"families": FAMILIES, "others": OTHERS, "causes": CAUSES, "words": CAUSE_WORDS, "room": ROOM}
"""Words for what widens an interval."""

_CONTROLLED = (*DEGREES, "engine", "engine_version", "batch", "isl", "osl", "cached", "context", "rate", "concurrency",
               "weights", "kv")  # fmt: skip
"""Options that controls set; the command line needs the rest of a scenario to answer the same."""


def accountant() -> str:
    """Controls and charts; JavaScript fills them."""
    return (_HERE / "accountant.html").read_text(encoding="utf-8")


def after(deployed: PageDeployment) -> str:
    """Part below the charts, for readers without JavaScript too: accuracy, and both steps as tables."""
    head, tables = ("kernel", "launches", "FLOP", "bytes", "time [µs]", "bound [µs]", "waits for"), ""
    for name, step in (("prefill", deployed.answer.prefill), ("decode", deployed.answer.decode)):
        rows = [(k.name, k.count, k.flops, k.bytes, k.time_us, k.bound_us, k.bound) for k in step.kernels]
        tables += f"<h3>{name}: {step.time_ms:.4g} ms</h3>{table(head, rows)}"
    kernels = f"<details><summary>Both steps as tables</summary>{tables}</details>"
    parts = accuracy_card(deployed.asked.plan, deployed.named), card("Kernels", kernels, of=deployed.named)
    return f'<div class="wrap">{"".join(parts)}</div>'


def below(deployed: PageDeployment, walk: str) -> str:
    """Walk, derivation, and every number with its source."""
    rows = [(p.quantity, p.value, p.unit, p.confidence, p.source) for p in deployed.answer.provenance]
    inside = table(("quantity", "value", "unit", "confidence", "source"), rows)
    summary = f"<details><summary>{len(rows)} numbers with their sources</summary>{inside}</details>"
    sources = card("Sources of the numbers", summary, "provenance", of=deployed.named)
    tools = ((escape(each["tool"]), escape(each["command"])) for each in deployed.answer.measure)
    commands = "".join(f"<h3>{tool}</h3><pre>{command}</pre>" for tool, command in tools)
    measured = f"<details><summary>Commands of benchmark clients</summary>{commands}</details>" if commands else ""
    verify = card("Measure it", measured, of=deployed.named) if measured else ""
    return f'<div class="wrap">{walk}{_derivation_card(deployed)}{verify}{sources}</div>'


def foot_notes(answer: Estimate) -> str:
    """Provenance of every number, and the version."""
    made = f"rooflinekit {answer.version}"
    if answer.calibration:
        made += f", calibration {answer.calibration['name']} (hash {answer.calibration['hash']})"
    return paragraphs([f"{made}. This page loads and sends nothing; its state stands in its address."])


def accuracy_card(plan: Plan, of: str = "") -> str:
    """Errors of the fits behind these times on kernels that they had not seen."""
    calibration = plan.calibration
    if calibration is None:
        bounds = "No calibration: these are datasheet bounds, which no kernel beats."
        return card("Accuracy", paragraphs([bounds]), of=of)
    fits: dict[int, tuple[str, str, Any]] = {}
    for batch in (Batch.prefill(1.0, 128.0), Batch.decode(1.0, 128.0)):
        for kernel in plan.kernels(batch):
            fit = calibration.fit(kernel)
            fits.setdefault(id(fit), (kernel.family, kernel.dtype.value, fit))
    rows = []
    for family, dtype, fit in fits.values():
        error = f"{100.0 * fit.error:.1f}\u00a0%" if fit.rows else ""
        width = f"{min(max(fit.regimes.width), WIDEST):.3g}\u00a0x"
        rows.append((family, dtype, fit.rows, error, width, fit.source))
    said = (
        f"Mean errors of calibration {calibration.name} on shapes that each fit had not seen. Beside them, the "
        "widest factor of its 90 % interval. Engine costs have errors of their own, which the intervals hold."
    )
    head = ("kernels", "format", "measured", "error", "interval up to", "source")
    return card("Accuracy of the calibration", paragraphs([said], "facts") + table(head, rows), "accuracy", of=of)


_DEPTH = 5  # levels that are written: below, the tree is that of one kernel's fit


def _derivation_card(deployed: PageDeployment) -> str:
    """Both derivations; empty where this deployment has none."""
    try:
        roots = [derive(deployed.case, metric).root for metric in ("tpot", "ttft")]
    except RooflinekitError:
        return ""
    said = "Each number with its formula; open one to see what it was computed from, down to the datasheet."
    shown: set[int] = set()
    trees = "".join(folded(root, _DEPTH, shown) for root in roots)
    return card("Derivation", paragraphs([said]) + trees, "derivation", of=deployed.named)


def walked(deployed: PageDeployment) -> tuple[str, str]:
    """The step-through page of shapes, and the card it stands in, which says why it is absent."""
    given = {key: value for key, value in deployed.asked.scenario.items() if key in DEPLOYMENT_KEYS}
    page, details = "", ""
    said = "Every tensor of a prompt of six tokens, through prefill and one decode step."
    try:
        page = walk_page(shapes(deployed.asked.model, deployed.asked.gpu, tokens=_TOKENS, **given))
        details = '<details id="walk"><summary>Step through with the arrow keys</summary></details>'
    except RooflinekitError as error:
        said = f"The walk does not take this deployment: {error}."
    return page, f'<div class="walk">{card("Shapes", paragraphs([said]) + details, of=deployed.named)}</div>'


_TOKENS = 6  # of the walk's prompt


SENTENCES: dict[str, str] = read_yaml(Path(__file__).with_name("sentences.yaml"))
"""With places to fill, by name."""


def answer_sentence(answer: Estimate) -> str:
    """TTFT and TPOT with their intervals, throughput, and whether it fits."""
    told = _said("first", ttft=_time(answer, "ttft_ms"), speed=_speed(answer, answer.output_tok_s_per_gpu))
    return told if answer.memory.fits else _said("misfit", told=f"{told[0].lower()}{told[1:]}")


def decode_sentence(answer: Estimate) -> str:
    """Sentence on a replica that only decodes: no first token, and the throughput of its steps alone."""
    return _speed(answer, answer.inputs["batch"] * answer.output_tok_s_per_user / answer.inputs["gpus"])


def _speed(answer: Estimate, gpu: float) -> str:
    each = three(answer.output_tok_s_per_user)
    return _said("speed", tpot=_time(answer, "tpot_ms"), user=each, gpu=three(gpu), noun=noun_of(answer.gpu))


def _said(name: str, **values: object) -> str:
    return SENTENCES[name].format(**values)


def facts(answer: Estimate) -> list[str]:
    """Question, level of the numbers, and memory."""
    inputs, memory = answer.inputs, answer.memory
    keys = ("isl", "osl", "weights", "activations", "kv")
    cached = _said("cached", **inputs) if inputs["cached"] else ""
    load = answer.load.arrivals if answer.load else f"batch {inputs['batch']}"
    share = f"{100.0 * memory.total_bytes / memory.capacity_bytes:.0f}"
    ends = {name: ms(answer.bound[f"{name}_ms"]) for name in ("ttft", "tpot")}
    level = _said("bound" if answer.calibration is None else "expected", evidence=answer.evidence, **ends)
    total, capacity = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    room = _said("slots", most=answer.load.slots) if answer.load else _said("room", most=memory.max_batch)
    return [
        _said("asked", load=load, cached=cached, images=images_in(inputs), **{key: inputs[key] for key in keys}),
        _said("memory", total=total, capacity=capacity, share=share, room=room, level=level, noun=noun_of(answer.gpu)),
    ]


def filled_notes(answer: Estimate, batch: int, longest: int) -> list[str]:
    """Notes under load on the static batch that the charts of kernels, bytes and memory show."""
    if answer.load is None:
        return []
    running = answer.inputs["batch"]
    name = "fewer" if batch < running else "many" if batch > 1 else "one"
    return [_said("static", which=_said(name, batch=batch, longest=longest, running=running))]


def _time(answer: Estimate, key: str) -> str:
    value, ends = ms(getattr(answer, key)), (answer.interval or {}).get(key)
    return value if ends is None else f"{value} ({between(ends)})"

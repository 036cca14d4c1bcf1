"""The page of one deployment, alone or against another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from rooflinekit.estimation.results import Estimate
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS
from rooflinekit.explanation.derivation.case import Case
from rooflinekit.explanation.derivation.front import make_case
from rooflinekit.model.coefficients import plan_coefficients
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.page.offers import APART, Asked, Offers, roofs
from rooflinekit.report.page.render import paragraphs, table
from rooflinekit.report.page.view import fixed_view
from rooflinekit.report.page.words import answer_sentence, decode_sentence, facts, title

__all__ = ["Deployed", "accountant", "foot_notes", "lead", "slider_data"]

_ACCOUNTANT = Path(__file__).with_name("accountant.html")


@dataclass(frozen=True)
class Deployed:
    """A deployment with its answer; `sliders` is why they cannot express it, or ""."""

    asked: Asked
    case: Case
    sliders: str

    @classmethod
    def of(cls, model: str, gpu: str, scenario: dict[str, Any]) -> Deployed:
        """Answer it; what does not fit is answered too, and said."""
        case = make_case(model, gpu, dict(scenario), anyway=True)
        deployment = {key: scenario[key] for key in DEPLOYMENT_KEYS if scenario.get(key) is not None}
        asked = Asked(model, gpu, deployment, scenario.get("calibration"), case.predictor)
        return cls(asked, case, _unreachable(case))

    @property
    def answer(self) -> Estimate:
        """What `estimate` says."""
        return self.case.answer

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
    def view(self) -> dict[str, Any]:
        """As charts draw it."""
        return fixed_view(self.case.predictor, self.work)

    @property
    def at(self) -> dict[str, Any]:
        """What the sliders start with."""
        counts = {key: int(getattr(self.work, key)) for key in ("batch", "isl", "osl")}
        return self.asked.key | counts | {"speed": 1}


def _unreachable(case: Case) -> str:
    if float(case.work.cached) > 0.0:
        return "sliders know no cached prompts"
    if case.work.context is not None:
        return "sliders know no fixed context"
    if case.answer.speculation is not None:
        return "sliders know no drafts"
    try:
        plan_coefficients(case.predictor)
    except InputError as error:
        return str(error)
    return ""


def lead(deployed: Deployed, pool: str = "") -> str:
    """Answer, facts and notes; `pool`: how a replica that computes no prompts comes to its batch."""
    answer = deployed.answer
    notes = [f"<li>{escape(note)}</li>" for note in (*answer.warnings, *_static_batch(deployed))]
    if not answer.memory.fits:
        notes.insert(
            0, '<li class="bad">This deployment does not fit in memory; its times are what they would be.</li>'
        )
    said = decode_sentence(answer) if pool else answer_sentence(answer)
    body = paragraphs([said], "answer") + paragraphs([pool] if pool else []) + paragraphs(facts(answer))
    return body + (f'<ul class="notes">{"".join(notes)}</ul>' if notes else "")


def _static_batch(deployed: Deployed) -> Iterator[str]:
    """What the charts below a load are of."""
    answer, work = deployed.answer, deployed.work
    if answer.load is None:
        return
    batch, running = int(work.batch), answer.inputs["batch"]
    which = f"of the {batch} sequences that this load keeps running" if batch > 1 else "of one sequence"
    if batch < running:
        which = (
            f"of {batch} sequences: no more fit at their full length of {int(work.longest_context)} tokens (under load "
            f"{running} run, each at its own length)"
        )
    together = "its prompts are computed together, so its first token comes later than under load"
    yield f"Below, a static batch {which}; {together}."


def slider_data(deployed: Deployed, offers: Offers, against: Deployed | None) -> dict[str, Any]:
    """What JavaScript starts from."""
    label = APART.join(str(value) for value in deployed.asked.key.values())
    fixed = deployed.view if deployed.sliders or label not in offers.plans else None
    reference = None if against is None else {"title": title(against.answer), "at": against.at, "view": against.view}
    return {
        "asked": deployed.at,
        "fixed": fixed,
        "reference": reference,
        "offers": {
            "models": offers.models,
            "gpus": {name: roofs(found) for name, found in offers.gpus.items()},
            "plans": offers.plans,
            "missing": offers.missing,
            "formats": offers.formats,
            **offers.pool.to_dict(),
        },
    }


def accountant(deployed: Deployed) -> str:
    """Controls and charts; JavaScript fills them."""
    note = (
        "The charts start with the deployment that was asked for. A change of a control leaves it for one of plain "
        f"tensor parallelism: {deployed.sliders}."
    )
    told = paragraphs([note]) if deployed.sliders else ""
    return _ACCOUNTANT.read_text(encoding="utf-8").replace("{{note}}", told)


def kernel_tables(answer: Estimate) -> str:
    """Both steps as tables, for readers without JavaScript."""
    head = ("kernel", "launches", "FLOP", "bytes", "time [µs]", "bound [µs]", "waits for")
    parts = []
    for name, step in (("prefill", answer.prefill), ("decode", answer.decode)):
        rows = [(k.name, k.count, k.flops, k.bytes, k.time_us, k.bound_us, k.bound) for k in step.kernels]
        parts.append(f"<h3>{name}: {step.time_ms:.4g} ms</h3>{table(head, rows)}")
    return "".join(parts)


def foot_notes(answer: Estimate) -> str:
    """Provenance of every number, and the version."""
    made = f"rooflinekit {answer.version}"
    if answer.calibration:
        made += f", calibration {answer.calibration['name']} (hash {answer.calibration['hash']})"
    return paragraphs([f"{made}. This page loads and sends nothing; its state stands in its address."])

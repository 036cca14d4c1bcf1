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
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.markup import filled
from rooflinekit.report.page.offers import Asked, Offers, roofs
from rooflinekit.report.page.program import Written
from rooflinekit.report.page.render import paragraphs, table
from rooflinekit.report.page.words import answer_sentence, decode_sentence, facts, title

__all__ = ["Deployed", "accountant", "foot_notes", "lead", "slider_data"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Deployed:
    """A deployment with its answer."""

    asked: Asked
    case: Case

    @classmethod
    def of(cls, model: str, gpu: str, scenario: dict[str, Any]) -> Deployed:
        """Answer it; what does not fit is answered too, and said."""
        case = make_case(model, gpu, dict(scenario), anyway=True)
        deployment = {key: scenario[key] for key in DEPLOYMENT_KEYS if scenario.get(key) is not None}
        asked = Asked(model, gpu, deployment, scenario.get("calibration"), case.predictor, case.work, case.load)
        return cls(asked, case)

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
    def at(self) -> dict[str, Any]:
        """What the sliders start with."""
        load, work = self.asked.load, self.case.work
        names = ["batch", "isl", "osl", "cached"] if load is None else ["isl", "osl"]
        counts: dict[str, Any] = {name: int(getattr(work, name)) for name in names}
        if load is not None:
            counts |= {"rate": load.rate} if load.users is None else {"users": int(float(load.users))}
        if work.context is not None:
            counts["context"] = int(float(work.context))
        return self.asked.key | counts | {"speed": 1}


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
    """What the charts of kernels, bytes and memory are of under load."""
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
    yield f"Kernels, bytes and memory below are those of a static batch {which}."


def slider_data(offers: Offers, deployed: Deployed, against: Deployed | None) -> tuple[dict[str, Any], str]:
    """What JavaScript starts from, and the functions that it calls."""
    program, reference = offers.program, None
    if against is not None:
        asked = against.asked
        other = program.write(asked.predictor, asked.load, asked.work.context is not None)
        offers.gpus.setdefault(asked.plan.system.accelerator.name, asked.plan)
    printed = program.printed()

    def placed(written: Written) -> dict[str, Any]:
        return {
            "static": printed.places[written.static],
            "load": None if written.load is None else printed.places[written.load],
            "gpus": written.gpus, "prefill": written.prefill, "decode": written.decode,
        }  # fmt: skip

    if against is not None:
        reference = {"title": title(against.answer), "at": against.at, "plan": placed(other)}
    return {
        "asked": deployed.at,
        "reference": reference,
        "offers": {
            "models": offers.models,
            "gpus": {name: roofs(found) for name, found in offers.gpus.items()},
            "plans": {label: placed(written) for label, written in offers.plans.items()},
            "missing": offers.missing,
            "formats": offers.formats,
            "steps": list(program.steps),
        },
        "library": printed.data,
    }, printed.source


def accountant(deployed: Deployed) -> str:
    """Controls and charts; JavaScript fills them."""
    loads = "" if deployed.asked.load is None else (_HERE / "loads.html").read_text(encoding="utf-8")
    return filled(_HERE / "accountant.html", {"loads": loads})


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

"""The page of one deployment, alone or against another."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from rooflinekit.coefficients import plan_coefficients
from rooflinekit.estimator import DEPLOYMENT_KEYS, WORKLOAD_KEYS, estimate
from rooflinekit.report.page.offers import Asked, Offers, own_formats, roofs
from rooflinekit.report.page.render import card, paragraphs, table
from rooflinekit.report.page.view import fixed_view
from rooflinekit.report.page.words import answer_sentence, facts, title
from rooflinekit.results import Estimate
from rooflinekit.types.errors import InputError
from rooflinekit.types.workload import Workload

__all__ = ["Deployed", "accountant", "foot_notes", "lead", "slider_data"]

_FIGURES = (
    ("roofline", "Roofline", "Each kernel of one prefill and one decode step: its intensity, and the rate it achieves. "
     "Areas grow with the time it takes. Nothing can lie above the roofs."),
    ("causes", "What the time is spent on", ""),
    ("time", "Where the time goes", "Solid: the datasheet bound. Pale: what is expected on top of it."),
    ("bytes", "Bytes of one step on each GPU", ""),
    ("memory", "Memory of one GPU", ""),
)  # fmt: skip


@dataclass(frozen=True)
class Deployed:
    """A deployment with its answer; `sliders` is why they cannot express it, or ""."""

    asked: Asked
    answer: Estimate
    work: Workload
    sliders: str

    @classmethod
    def of(cls, model: str, gpu: str, scenario: dict[str, Any]) -> Deployed:
        """Answer it; what does not fit is answered too, and said."""
        answer = estimate(model, gpu, **{**scenario, "allow_oom": True})
        deployment = {key: value for key, value in scenario.items() if key in DEPLOYMENT_KEYS}
        asked = Asked.of(model, gpu, deployment, scenario.get("calibration"))
        own = {key: value for key in WORKLOAD_KEYS if (value := scenario.get(key)) is not None}
        if answer.load is not None:
            own["batch"] = answer.inputs["batch"]
        work = Workload.checked(**(WORKLOAD_KEYS | own))
        return cls(asked, answer, work, _unreachable(asked, work, answer))

    @property
    def view(self) -> dict[str, Any]:
        """As charts draw it."""
        return fixed_view(self.asked.resolved.predictor, self.work)

    @property
    def at(self) -> dict[str, Any]:
        """What the sliders start with."""
        counts = {key: int(getattr(self.work, key)) for key in ("batch", "isl", "osl")}
        return self.asked.key | counts | {"speed": 1}


def _unreachable(asked: Asked, work: Workload, answer: Estimate) -> str:
    if float(work.cached) > 0.0:
        return "sliders know no cached prompts"
    if work.context is not None:
        return "sliders know no fixed context"
    if answer.speculation is not None:
        return "sliders know no drafts"
    try:
        plan_coefficients(asked.resolved.predictor)
    except InputError as error:
        return str(error)
    return ""


def lead(deployed: Deployed) -> str:
    """Answer, facts and notes."""
    answer = deployed.answer
    notes = [f"<li>{escape(note)}</li>" for note in answer.warnings]
    if not answer.memory.fits:
        notes.insert(
            0, '<li class="bad">This deployment does not fit in memory; its times are what they would be.</li>'
        )
    if answer.load is not None:
        notes.append(f"<li>Below, a static batch of the {answer.inputs['batch']} sequences that this load keeps running: "
                     "its prompts are computed together, so its first token comes later than under load.</li>")  # fmt: skip
    body = paragraphs([answer_sentence(answer)], "answer") + paragraphs(facts(answer))
    return body + (f'<ul class="notes">{"".join(notes)}</ul>' if notes else "")


def slider_data(deployed: Deployed, offers: Offers, against: Deployed | None) -> dict[str, Any]:
    """What JavaScript starts from."""
    plan = deployed.asked.resolved.plan
    label = "|".join(str(value) for value in deployed.asked.key.values())
    fixed = deployed.view if deployed.sliders or label not in offers.plans else None
    reference = None if against is None else {"title": title(against.answer), "at": against.at, "view": against.view}
    return {
        "asked": deployed.at,
        "fixed": fixed,
        "reference": reference,
        "own": own_formats(plan),
        "offers": {
            "models": offers.models,
            "gpus": {name: roofs(found) for name, found in offers.gpus.items()}
            | {plan.system.accelerator.name: roofs(plan)},
            "plans": offers.plans,
            "missing": offers.missing,
            **offers.pool.to_dict(),
        },
    }


def accountant(deployed: Deployed) -> str:
    """Controls and charts; JavaScript fills them."""
    note = ""
    if deployed.sliders:
        note = paragraphs([f"The charts start with the deployment that was asked for. A change of a control leaves it for "
                           f"one of plain tensor parallelism: {deployed.sliders}."])  # fmt: skip
    cards = "".join(_figure(*figure) for figure in _FIGURES)
    return f"""<div class="layout wrap" id="layout" hidden>
<aside class="controls" aria-label="What if"><form id="controls" class="card"><h2>Bandwidth accountant</h2></form></aside>
<div><section class="card short" aria-live="polite"><h2>What it means</h2>{note}<div class="tiles" id="tiles"></div><p id="said" class="said"></p><div id="compared"></div></section>
<div id="charts">{cards}{_SWEEPS}</div></div></div>"""


def _figure(name: str, heading: str, said: str) -> str:
    buttons = ""
    if name == "time":
        buttons = '<div class="buttons" role="group" aria-label="Step"><button type="button" data-step="decode" aria-pressed="true">decode</button><button type="button" data-step="prefill" aria-pressed="false">prefill</button></div>'  # noqa: E501
    words = f"<p>{escape(said)}</p>" if said else ""
    body = f'{words}{buttons}<ul class="key" id="{name}-key"></ul><div class="chart" id="{name}"></div>'
    return card(heading, body, f"card-{name}", short=True)


def _pair(*charts: tuple[str, str]) -> str:
    return "".join(
        f'<div class="figure"><h3>{heading}</h3><div class="chart" id="{name}"></div></div>' for name, heading in charts
    )


_SWEEPS = (
    card("What would change it", "<p>Each line is the present state with one change; numbers are relative to it.</p>"
         '<div id="moves"></div>', "card-moves", short=True)
    + card("Batch", "<p>The band is the 90 % interval, the ring the present state; hollow red does not fit in memory.</p>"
           f'<div class="two">{_pair(("batch", "Time a token [ms]"), ("rate", "Output tokens/s of each GPU"))}</div>')
    + card("Context", '<p>What a longer prompt costs, and where the cache outweighs the weights.</p>'
           f'<div class="two">{_pair(("context", "Time a token [ms]"), ("reads", "Bytes of a decode step, each GPU"))}</div>')
    + card("Speed against throughput", "<p>All deployments of this model in this page, at batches from 1 to 1,024; the line "
           'is the front.</p><ul class="key" id="pareto-key"></ul><h3>Output tokens/s of each GPU</h3><div class="chart" id="pareto"></div>',
           "card-pareto", short=True)
)  # fmt: skip


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

"""The page's JavaScript and Python evaluate the same coefficients to the same numbers; and both are the estimate's."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deployments import CASES, predictor_of

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.coefficients import PlanCoefficients, plan_coefficients
from rooflinekit.model.coefficients.breakdown import Part, causes, decode_step, prefill_step, with_bandwidth
from rooflinekit.model.coefficients.kernel import KernelSpan
from rooflinekit.report.page.packing import Pool

PAGE = Path(rk.__file__).parent / "report" / "page"


def exported(case: int) -> PlanCoefficients:
    return plan_coefficients(predictor_of(case))


@pytest.fixture(scope="module")
def plans() -> list[PlanCoefficients]:
    return [exported(case) for case in range(len(CASES))]


def random_states(count: int) -> list[tuple[int, dict[str, float]]]:
    draw = random.Random(9)
    return [(draw.randrange(len(CASES)), {"batch": int(2 ** draw.uniform(0, 11)), "isl": int(2 ** draw.uniform(0, 17)),
             "osl": int(2 ** draw.uniform(0, 13)), "speed": draw.choice((1.0, 1.0, draw.uniform(0.3, 4.0)))})
            for _ in range(count)]  # fmt: skip


def spans(span: KernelSpan) -> dict[str, float]:
    return {end: getattr(span, end) for end in ("bound", "time", "low", "high")}


def close(found: Any, expected: Any) -> bool:
    return bool(found == pytest.approx(expected, rel=1e-12, abs=1e-24))


def work(part: Part) -> list[float]:
    return [part.flops, part.weights, part.cache, part.activations, *spans(part.span).values(), *part.needs]


@pytest.fixture(scope="module")
def answers(plans: list[PlanCoefficients]) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    pool = Pool()
    packed = {"plans": [pool.place(plan) for plan in plans], "states": random_states(400)}
    asked = json.dumps(packed | pool.to_dict())
    command = [node, str(Path(__file__).with_name("evaluate.cjs")), str(PAGE / "evaluate.js")]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


class TestNode:
    """1e-12 on 400 random states of eight deployments."""

    def test_times(self, answers: list[dict[str, Any]], plans: list[PlanCoefficients]) -> None:
        for (case, at), found in zip(random_states(400), answers, strict=True):
            plan = with_bandwidth(plans[case], at["speed"])
            assert close(found["ttft"], spans(plan.ttft(at["batch"], at["isl"]))), (case, at)
            assert close(found["tpot"], spans(plan.tpot(at["batch"], at["isl"], at["osl"]))), (case, at)

    def test_kernels_and_causes(self, answers: list[dict[str, Any]], plans: list[PlanCoefficients]) -> None:
        for (case, at), found in zip(random_states(400), answers, strict=True):
            plan, context = with_bandwidth(plans[case], at["speed"]), at["isl"] + (max(at["osl"] - 1, 1) + 1) / 2
            for name, parts in (("prefill", prefill_step(plan, at["batch"], at["isl"])),
                                ("decode", decode_step(plan, at["batch"], context))):  # fmt: skip
                told = [part for part in found[name] if part["family"] != "host" or part["time"]]
                assert [part["name"] for part in told] == [part.name for part in parts]
                keys = ("flops", "weights", "cache", "activations", "bound", "time", "low", "high")
                for here, part in zip(told, parts, strict=True):
                    assert close([*(here[key] for key in keys), *here["needs"]], work(part)), part.name
            assert close(found["causes"], causes(decode_step(plan, at["batch"], context)))
            assert close(found["causesFirst"], causes(prefill_step(plan, at["batch"], at["isl"])))

    def test_memory(self, answers: list[dict[str, Any]], plans: list[PlanCoefficients]) -> None:
        for (case, at), found in zip(random_states(400), answers, strict=True):
            memory = plans[case].memory.at(at["batch"], at["isl"] + at["osl"], at["isl"])
            names = {"kv": "kv", "activations": "activations", "total": "total", "pool": "pool", "needed": "needed",
                     "available": "available", "room": "max_batch"}  # fmt: skip
            for here, there in names.items():
                assert close(found["memory"][here], getattr(memory, there)), here
            assert found["memory"]["fits"] == memory.fits


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_step_is_the_estimates(plans: list[PlanCoefficients], case: int) -> None:
    """Kernel by kernel and cause by cause: the route through coefficients, and the estimate's own."""
    model, gpu, keys, calibration = CASES[case]
    answer = rk.estimate(model, gpu, batch=24, isl=777, osl=99, allow_oom=True, calibration=calibration, **keys)
    decode = decode_step(plans[case], 24, answer.inputs["context"])
    for parts, step in ((prefill_step(plans[case], 24, 777), answer.prefill), (decode, answer.decode)):
        kernels = sorted(step.kernels, key=lambda kernel: (kernel.name, kernel.time_us))
        ordered = sorted(parts, key=lambda part: (part.name, part.span.time))
        assert [part.name for part in ordered] == [kernel.name for kernel in kernels]
        for part, kernel in zip(ordered, kernels, strict=True):
            assert part.span.time * 1e6 == pytest.approx(kernel.time_us, rel=1e-9)
            assert (part.flops, part.weights) == pytest.approx((kernel.flops, kernel.weight_bytes), rel=1e-9)
            assert part.cache == pytest.approx(kernel.kv_read_bytes + kernel.kv_write_bytes, rel=1e-9, abs=1e-3)
        whole = sum(part.span.time for part in parts)
        assert {name: time / whole for name, time in causes(parts).items()} == pytest.approx(step.shares, abs=1e-12)


def test_bandwidth_is_that_of_an_accelerator_that_has_it(plans: list[PlanCoefficients]) -> None:
    from rooflinekit.decision.sensitivity.scaled import scaled

    for case in (0, 2, 3, 5):
        model, gpu, keys, calibration = CASES[case]
        predictor = scaled(resolve(model, gpu, read_deployment(dict(keys)), calibration).predictor, "bandwidth", 1.7)
        faster, again = with_bandwidth(plans[case], 1.7), plan_coefficients(predictor)
        for found, expected in ((faster.tpot(16, 500, 90), again.tpot(16, 500, 90)),
                                (faster.ttft(3, 900), again.ttft(3, 900))):  # fmt: skip
            assert close(spans(found), spans(expected))


def test_there_are_no_numbers_about_models_in_the_script() -> None:
    """Its only constants are those of `rooflinekit.model.coefficients`, small whole numbers and tolerances."""
    import re

    source = re.sub(r"//.*", "", (PAGE / "evaluate.js").read_text(encoding="utf-8"))
    numbers = {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", source)}
    assert numbers <= {0, 1, 2, 3, 0.25, 0.5, 128, 1.645, 64, 1e-12, 1e-9}

"""A plan with one assumption a fifth off: what follows for the fleet of the same deployment, and what is not asked."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

import rooflinekit as rk
from rooflinekit.cli.app import app
from rooflinekit.decision.planning.rank import Sized, Swing
from rooflinekit.load.lengths import Empirical, LogNormal, stretched

ASKED: dict[str, Any] = {"rate": 90.0, "isl": 1000, "osl": 150, "tp": [1], "aggregated_only": True, "price": 2.0}


@pytest.fixture(scope="module")
def found() -> rk.PlanAnswer:
    return rk.plan("llama-3-8b", "h100-sxm", "p95 ttft<1s, p95 tpot<30ms", **ASKED, sensitivity=True)


def named(found: rk.PlanAnswer) -> dict[str, Swing]:
    return {each.name: each for each in found.sensitivity}


def test_a_swing_is_in_dollars_where_both_ends_have_a_price_and_else_in_accelerators() -> None:
    priced, bare = Sized(4, 800.0), Sized(7, None)
    assert Swing("rate", priced, Sized(6, 1200.0)).reach == 400.0
    assert Swing("rate", priced, bare).reach == 3.0


def test_less_load_looser_objectives_and_faster_steps_never_take_more(found: rk.PlanAnswer) -> None:
    best, swings = found.best.gpus, named(found)
    assert list(swings) == [each.name for each in sorted(found.sensitivity, key=lambda each: -each.reach)]
    for name in ("rate", "step times, 80 % interval"):
        less, more = swings[name].less.gpus, swings[name].more.gpus
        assert less is not None and more is not None and less <= best <= more, name
    assert swings["rate"].less.gpus < swings["rate"].more.gpus  # type: ignore[operator]
    for name in ("p95 TTFT", "p95 TPOT"):
        stricter, looser = swings[name].less.gpus, swings[name].more.gpus
        assert looser is not None and looser <= best and (stricter is None or stricter >= best), name


def test_a_price_moves_the_bill_and_not_the_fleet(found: rk.PlanAnswer) -> None:
    price, month = named(found)["price of a GPU"], 730.0 * 2.0 * found.best.gpus
    assert (price.less.gpus, price.more.gpus) == (found.best.gpus,) * 2
    assert price.less.usd_per_month == pytest.approx(0.8 * month)
    assert price.more.usd_per_month == pytest.approx(1.2 * month)


def test_each_end_is_what_a_plan_of_that_question_takes(found: rk.PlanAnswer) -> None:
    """With the same settings, which these are whatever the rate."""
    for factor, end in ((0.8, named(found)["rate"].less), (1.2, named(found)["rate"].more)):
        settings = {key: [found.best.fleets[0].scenario.get(key)] for key in ("token_budget", "max_num_seqs")
                    if key in found.best.fleets[0].scenario}  # fmt: skip
        other = rk.plan("llama-3-8b", "h100-sxm", "p95 ttft<1s, p95 tpot<30ms",
                        **(ASKED | settings | {"rate": factor * ASKED["rate"]}))  # fmt: skip
        assert other.best.gpus <= (end.gpus or 0)
        assert other.best.gpus >= (end.gpus or 0) - 1


def test_lengths_keep_their_law() -> None:
    longer = stretched(LogNormal(1000.0, 0.8), 1.2)
    assert longer.mean == pytest.approx(1200.0)
    seen = stretched(Empirical.of([1, 2, 2, 100]), 0.5)
    assert isinstance(seen, Empirical)
    assert (seen.tokens, seen.upto) == ((1, 50), (3, 4))  # halves of 1 and 2 are one token each


def test_the_table_fits_a_terminal_and_classes_have_none(tmp_path: Any) -> None:
    words = ["plan", "llama-3-8b", "--rate", "20", "--tp", "1", "--aggregated-only", "--sensitivity"]
    shown = CliRunner().invoke(app, words).stdout
    assert "the fleet where one assumption is a fifth off" in shown
    assert max(map(len, shown.splitlines())) <= 80
    (tmp_path / "classes.yaml").write_text("chat: {rate: 2, isl: 500, osl: 100, slo: p95 ttft<1s}\n")
    refused = CliRunner().invoke(app, ["plan", "llama-3-8b", "--classes", str(tmp_path / "classes.yaml"), *words[6:]])
    assert refused.exit_code == 2 and "sensitivity" in refused.stderr


def test_an_interrupt_keeps_the_plan_and_mixed_fleets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[Swing]:
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflinekit.decision.planning.plan.swings", interrupted)
    kept = rk.plan("llama-3-8b", "h100-sxm", token_budget=[8192], max_num_seqs=[256], **ASKED, sensitivity=True)
    assert kept.interrupted and kept.best.gpus > 0 and not kept.sensitivity
    with pytest.raises(rk.InputError, match="sensitivity and mixed exclude each other"):
        rk.plan("llama-3-8b", "h100-sxm", rate=1.0, mixed=True, sensitivity=True)

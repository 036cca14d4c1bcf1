"""Loads that `rooflinekit validate --engine vllm` measured, beside what was predicted before.

    python benchmarks/served_gpu.py validate/measurements/h200-sxm-2026-11-28 --gpu h200-sxm --out reports/served.md

`played` has the same requests in the same order: lengths, users, and times of arrival where there is a rate. `estimate`
draws as many, by their mean lengths, the variation of the answers, and users or rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, pstdev
from typing import Any

import rooflinekit as rk
from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.lengths import Empirical, Fixed
from rooflinekit.report.document import CellTable
from rooflinekit.simulation.simulate import SentLoad, serve

_METRICS = ("ttft", "tpot", "e2el")
_SETTLED = 2.0
"""Seconds of a load from which on its power counts: readings lag by about a tenth of a second."""


@dataclass(frozen=True)
class Served:
    """A measured load, and its predictions [ms] by metric."""

    model: str
    row: dict[str, Any]
    estimated: dict[str, float]
    played: dict[str, float]
    power_w: float

    @property
    def load(self) -> str:
        """What was asked, in words."""
        users = self.row.get("max_concurrency")
        return f"{users} user{'s' if users > 1 else ''}" if users else f"{arrival_rate(self.row):.1f} requests/s"

    @property
    def lengths(self) -> tuple[int, float]:
        """Tokens of a prompt and, on average, of an answer."""
        count = self.row["completed"]
        return self.row["total_input_tokens"] // count, self.row["total_output_tokens"] / count

    def measured(self, metric: str) -> float | None:
        """Mean over the requests [ms]; None for the time between tokens of answers of one."""
        return self.row.get(f"mean_{metric}_ms")

    def error(self, of: dict[str, float], metric: str) -> float | None:
        """Predicted over measured, minus one."""
        measured = self.measured(metric)
        return of[metric] / measured - 1.0 if measured else None


def arrival_rate(row: dict[str, Any]) -> float:
    """Requests a second that came."""
    sent = [each[0] for each in row["requests"][0]]
    return (len(sent) - 1) / float(sent[-1] - sent[0])


def predicted(path: Path, gpu: str) -> Iterator[Served]:
    """Every load of a file of rows."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        model, requests = row["model_id"], row["requests"][0]
        lengths = [int(each[3]) for each in requests]
        isl, osl = row["total_input_tokens"] // len(requests), sum(lengths) / len(requests)
        users, wide = row.get("max_concurrency"), pstdev(lengths) / osl
        limits = {"engine": "vllm", "token_budget": row["token_budget"], "max_num_seqs": row["max_num_seqs"]}
        limits |= {"front_end": "token-ids"}
        resolved = resolve(model, gpu, read_deployment(limits), None)
        arrivals = (Arrival(0.0 if users else each[0], isl, int(each[3])) for each in requests)
        outcome = serve(resolved, SentLoad(Fixed(isl), Empirical.of(lengths), users, sent=arrivals))
        asked = {"concurrency": users} if users else {"rate": arrival_rate(row)}
        asked |= {"requests": len(requests)}
        answer = rk.estimate(model, gpu, isl=isl, osl=round(osl), osl_cv=wide or None, **asked, **limits)
        estimated = {"ttft": answer.ttft_ms or 0.0, "tpot": answer.tpot_ms or 0.0, "e2el": answer.e2e_ms or 0.0}
        played = {name: getattr(outcome, f"{'e2e' if name == 'e2el' else name}_ms").mean for name in _METRICS}
        power = answer.energy.power_w_per_gpu if answer.energy else 0.0
        yield Served(model, row, estimated, played, power)


def _signed(error: float | None) -> str:
    return "–" if error is None else f"{100.0 * error:+.0f} %"


def _table(found: list[Served]) -> list[str]:
    head = ["load", "in", "out", "requests", "TTFT [ms]", "estimate", "played", "TPOT [ms]", "estimate", "played",
            "power [W]", "estimate"]  # fmt: skip
    cells = []
    for each in found:
        isl, osl = each.lengths
        tpot, settled = each.measured("tpot"), each.row["duration"] >= _SETTLED
        cells.append([
            each.load, str(isl), f"{osl:.0f}", str(each.row["completed"]), f"{each.measured('ttft'):.4g}",
            _signed(each.error(each.estimated, "ttft")), _signed(each.error(each.played, "ttft")),
            f"{tpot:.3g}" if tpot else "–", _signed(each.error(each.estimated, "tpot")),
            _signed(each.error(each.played, "tpot")), f"{each.row['power_w']:.0f}" if settled else "–",
            _signed(each.power_w / each.row["power_w"] - 1.0) if settled else "–",
        ])  # fmt: skip
    return CellTable(head, cells, left=(0,)).markdown()


def _summary(found: list[Served]) -> list[str]:
    rows = []
    for name, way in (("estimate", "estimated"), ("played", "played")):
        cells = [name]
        for metric in _METRICS:
            errors = [error for each in found if (error := each.error(getattr(each, way), metric)) is not None]
            size = [abs(error) for error in errors]
            cells.append(f"{100 * median(size):.1f} ({100 * median(errors):+.1f}; worst {100 * max(size):.0f})")
        rows.append(cells)
    return CellTable(["", "TTFT", "TPOT", "end to end"], rows, left=(0,)).markdown()


def report(folder: Path, gpu: str, notes: list[str]) -> str:
    """The report of a folder of measurements; notes are paragraphs behind its summary."""
    found = [each for path in sorted(folder.glob("load-*.jsonl")) for each in predicted(path, gpu)]
    first = found[0].row
    device = first["device"]
    lines = [
        f"# A real vLLM under load on {device['name']}", "",
        f"{len(found)} loads of vLLM {first['server_version']}, from {folder}. Its README says how they were taken: "
        "random weights, requests as token ids to vLLM's AsyncLLM, no HTTP and no tokenizer. Driver "
        f"{device['driver_version']}, power limit {device['power.limit']}. No fit of kernels or steps has seen these "
        "rows. `played` serves the very requests, in their order and lengths. `estimate` draws as many, by mean "
        "lengths, the variation of the answers, and users or rate.", "",
        "Median error in %; in brackets the median bias and the worst load.", "", *_summary(found),
        *(line for note in notes for line in ("", note)),
    ]  # fmt: skip
    for model in dict.fromkeys(each.model for each in found):
        lines += ["", f"## {model}", "", *_table([each for each in found if each.model == model])]
    settled = [each for each in found if each.row["duration"] >= _SETTLED]
    errors = [each.power_w / each.row["power_w"] - 1.0 for each in settled]
    lines += ["", f"Power is the board's, from its energy counter, where a load took {_SETTLED:g} s and longer: "
              f"{100 * median(map(abs, errors)):.1f} % off in the median of {len(errors)}, the worst "
              f"{100 * max(map(abs, errors)):.0f} %."]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--note", action="append", default=[], help="a paragraph behind the summary")
    asked = parser.parse_args()
    asked.out.write_text(report(asked.folder, asked.gpu, asked.note), encoding="utf-8")


if __name__ == "__main__":
    main()

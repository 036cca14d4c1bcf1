"""The report on whole requests: how well published and own serving tables are predicted, against simpler rules.

    python benchmarks/report_serving.py TABLE... --out reports [--into docs/accuracy.md] [--cache rows.pickle]

TABLE is a serving table (docs/accuracy.md). Writes accuracy-serving.md and .html, and in data/ the errors by group and
the league table as CSV. --into replaces the short table in documents, between the comments
`accuracy-serving` and `/accuracy-serving`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import fit_engines
import league as other_tools
import pandas as pd
from fit_load_errors import STATED, as_often, covered, reliability
from report_page import Block, insert, markdown, percent, table, web
from report_serving_text import EXPLAINED, INTERVALS, LOADS, METHOD, NAMED, NAMED_BEFORE, OFTEN, RULES
from serving_errors import WAYS, errors, predicted_rows, under_load

from rooflinekit.version import __version__

NAMES = {
    "model_out": "model left out", "gpu_out": "GPU left out", "source_out": "source left out",
    "shipped": "as shipped*",
    "bound": "datasheet bound", "textbook": "textbook", "derated": "hand derates",
}  # fmt: skip
PARTS = {"source_key": "source", "model": "model", "gpu": "GPU", "engine": "engine", "metric": "metric", "gpus": "GPUs"}
TARGETS = {"model_out": 0.12, "source_out": 0.18}
LOADED = {
    ("closed loop, TPOT", "dense"): 0.12, ("closed loop, TPOT", "MoE"): 0.16, ("closed loop, TTFT", "all"): 0.30,
    ("saturated", "all"): 0.15,
}  # fmt: skip
COVER = (0.87, 0.93)
OFF = 0.07
LARGEST, ANSWERED, SPLIT_RATIO = 0.40, 0.98, 1.5
_SHORT = ("model_out", "source_out", "bound", "textbook", "derated")


@dataclass(frozen=True)
class Data:
    """Errors by group, the league table, and how many rows there were."""

    groups: pd.DataFrame
    league: pd.DataFrame
    coverage: pd.DataFrame
    loaded: pd.DataFrame
    reliability: pd.DataFrame
    often: pd.DataFrame
    unanswered: dict[str, int]

    @classmethod
    def of(cls, rows: pd.DataFrame, unanswered: Counter[str]) -> Data:
        rows = covered(rows).assign(gpus=(rows[["tp", "pp", "ep", "dp"]].astype(float) > 1).any(axis=1).map(_several))
        league = pd.concat([_league(rows, by) for by in PARTS])
        shares = (errors(rows), league, _coverage(rows), under_load(rows), reliability(rows), as_often(rows))
        return cls(*shares, dict(unanswered))

    def medians(self, kind: str, tier: str) -> pd.Series:
        own = self.groups[(self.groups["kind"] == kind) & (self.groups["tier"] == tier)]
        found = own[list(WAYS)].median()
        return pd.concat([found, pd.Series({"groups": len(own), "n": own["n"].sum(), "worst": own["model_out"].max()})])

    def kinds(self) -> list[tuple[str, str]]:
        found = self.groups[["kind", "tier"]].drop_duplicates().sort_values(["tier", "kind"])
        return list(found.itertuples(index=False, name=None))


def _several(more: bool) -> str:
    return "several" if more else "one"


def _league(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Median over groups of each way's error, groups parted by a column."""
    found = errors(rows.assign(part=rows[by]), ["part"])
    grouped = found.groupby(["kind", "tier", "part"])
    out = (
        grouped[list(WAYS)]
        .median()
        .assign(groups=grouped.size(), n=grouped["n"].sum(), worst=grouped["model_out"].max())
    )
    return out.reset_index().assign(by=by)


def _coverage(rows: pd.DataFrame) -> pd.DataFrame:
    known = rows.assign(inside=rows["model_out_inside"])[rows["model_out"].notna()]
    found = []
    for by in ("engine", "gpus"):
        grouped = known.assign(part=known[by]).groupby(["kind", "tier", "part"])["inside"]
        found.append(grouped.agg(inside="mean", n="size").assign(by=by))
    return pd.concat(found).reset_index()


def overview(data: Data) -> Block:
    rows = []
    for kind, tier in data.kinds():
        line = data.medians(kind, tier)
        counts = [kind, tier, f"{line['groups']:.0f}", f"{line['n']:,.0f}"]
        rows.append([*counts, *(percent(line[way]) for way in WAYS), percent(line["worst"])])
    return table(["rows", "tier", "groups", "number", *(NAMES[way] for way in WAYS), "worst group"], rows)


def targets(data: Data) -> list[Block]:
    line = data.medians("static", "A")
    said = [f"{NAMES[way]}: {percent(line[way])} (target ≤ {100 * aim:.0f} %, {_met(line[way] <= aim)})"
            for way, aim in TARGETS.items()]  # fmt: skip
    said.append(
        f"worst group: {percent(line['worst'])} (target ≤ {100 * LARGEST:.0f} %, {_met(line['worst'] <= LARGEST)})"
    )
    one, several = (_part(data, "gpus", part)["model_out"] for part in ("one", "several"))
    said.append(
        f"rows of several GPUs against rows of one: {percent(several)} and {percent(one)}, {several / one:.2f} x "
        f"(target ≤ {SPLIT_RATIO:g} x, {_met(several <= SPLIT_RATIO * one)})"
    )
    rows, lost = data.groups["n"].sum(), sum(data.unanswered.values())
    total = rows + lost - (data.groups["n"] - data.groups["answered"]).sum()
    share = data.groups["answered"].sum() / total
    said.append(
        f"answered: {percent(share)} of {total:,} rows (target ≥ {100 * ANSWERED:.0f} %, {_met(share >= ANSWERED)})"
    )
    return [Block("li", text[0].upper() + text[1:] + ".") for text in said]


def under_load_table(data: Data) -> Block:
    rows = [
        [line.kind, line.experts, f"{line.n:,} {line.over}", *(percent(getattr(line, way)) for way in WAYS)]
        for line in data.loaded.itertuples() if line.kind != "closed loop, other"
    ]  # fmt: skip
    return table(["rows", "models", "median over", *(NAMES[way] for way in WAYS)], rows)


def under_load_targets(data: Data) -> list[Block]:
    said = []
    for (kind, experts), aim in LOADED.items():
        own = data.loaded[(data.loaded["kind"] == kind) & (data.loaded["experts"] == experts)]
        for line in own.itertuples():
            words = ", ".join(
                f"{NAMES[way]} {percent(getattr(line, way))} ({_met(getattr(line, way) <= aim)})"
                for way in ("model_out", "gpu_out")
            )
            said.append(f"{kind}, {experts} models, over {line.over} (target ≤ {100 * aim:.0f} %): {words}.")
    return [Block("li", text) for text in said]


def _part(data: Data, by: str, part: str) -> pd.Series:
    league = data.league
    own = league[
        (league["by"] == by) & (league["part"] == part) & (league["kind"] == "static") & (league["tier"] == "A")
    ]
    return own.iloc[0]


def _met(good: bool) -> str:
    return "met" if good else "missed"


def league(data: Data, kind: str, tier: str) -> list[Block]:
    blocks = []
    for by, name in PARTS.items():
        own = data.league[(data.league["by"] == by) & (data.league["kind"] == kind) & (data.league["tier"] == tier)]
        if len(own) < 2:
            continue
        rows = [
            [str(line.part), f"{line.groups}", f"{line.n:,}", *(percent(getattr(line, way)) for way in WAYS)]
            for line in own.sort_values("part").itertuples()
        ]
        blocks.append(table([name, "groups", "rows", *(NAMES[way] for way in WAYS)], rows))
    return blocks


def coverage(data: Data) -> Block:
    rows = [
        [line.kind, line.tier, f"{PARTS[line.by]} {line.part}", percent(line.inside), f"{line.n:,}"]
        for line in data.coverage.itertuples()
    ]
    return table(["rows", "tier", "", "in 90 %", "number"], rows)


def reliability_table(data: Data) -> Block:
    rows = [
        [line.kind, line.engine, f"{line.rows:,}", f"{line.groups:,}", percent(line.steps_inside),
         percent(line.model_out_inside), percent(line.groups_inside), percent(line.source_out_inside),
         f"{line.width:.2g}x"]
        for line in data.reliability.itertuples()
    ]  # fmt: skip
    return table(
        [
            "rows",
            "engine",
            "number",
            "groups",
            "steps' intervals",
            "model left out",
            "the same, by group",
            "source left out",
            "width",
        ],
        rows,
    )


def reliability_targets(data: Data) -> list[Block]:
    said = []
    for line in data.reliability[data.reliability["engine"] == "all"].itertuples():
        words = ", ".join(
            f"{NAMES[way]} {percent(share)} ({_met(COVER[0] <= share <= COVER[1])})"
            for way, share in (("model_out", line.model_out_inside), ("source_out", line.source_out_inside))
        )
        said.append(Block("li", f"{line.kind} (target {100 * COVER[0]:.0f} to {100 * COVER[1]:.0f} %): {words}."))
    return said


def often_table(data: Data) -> Block:
    """Objectives that were met, where a probability is stated."""
    rows = [[*(line[name] for name in ("kind", "engine", "left_out")), f"{line['rows']:,}",
             *(percent(line[each]) for each in STATED)]
            for _, line in data.often.iterrows()]  # fmt: skip
    return table(["rows", "engine", "left out", "number", *(f"{100 * each:.0f} % stated" for each in STATED)], rows)


def often_targets(data: Data) -> list[Block]:
    said = []
    for _, line in data.often[data.often["engine"] == "all"].iterrows():
        off = {each: line[each] - each for each in STATED}
        most = max(off, key=lambda each: abs(off[each]) if each > STATED[0] else 0.0)
        half = f"{off[STATED[0]]:+.2f} at {100 * STATED[0]:.0f} %"
        words = f"{half}, and at most {off[most]:+.2f} above it, at {100 * most:.0f} %"
        met = _met(max(map(abs, off.values())) <= OFF)
        above = "" if met == "met" or abs(off[most]) > OFF else "; above it met"
        said.append(
            Block("li", f"{line['kind']}, {line['left_out']} left out (target ≤ {OFF}): {words} ({met}{above}).")
        )
    return said


def worst(data: Data, least: float = 0.25) -> list[Block]:
    """Groups above a quarter, each with its reason or without one."""
    over = data.groups[data.groups["model_out"] > least].sort_values(["kind", "model_out"], ascending=[True, False])
    blocks = []
    for line in over.itertuples():
        reason = next((text for rule, text in EXPLAINED if rule(line)), "Not explained.")
        name = f"{line.source_key} {line.model} {line.gpu} {line.metric}".replace(" * ", " (several models) ").replace(
            "*", "(several metrics)"
        )
        figures = f"{percent(line.model_out)} of {line.n} rows ({line.kind}), bias {100 * line.bias:+.0f} %"
        blocks.append(Block("li", f"**{name}**: {figures}. {reason}"))
    return blocks


def every_group(data: Data) -> Block:
    rows = [
        [line.kind, line.tier, line.source_key, line.model.replace("*", "(several)"), line.gpu,
         line.metric.replace("*", "(several)"), f"{line.n}", *(percent(getattr(line, way)) for way in WAYS),
         "–" if pd.isna(line.bias) else f"{100 * line.bias:+.1f} %", percent(line.inside)]
        for line in data.groups.itertuples()
    ]  # fmt: skip
    head = ["rows", "tier", "source", "model", "GPU", "metric", "number"]
    return table([*head, *(NAMES[way] for way in WAYS), "bias", "in 90 %"], rows)


def page(data: Data, named: list[Block]) -> list[Block]:
    rows = data.groups["n"].sum()
    blocks = [Block("h1", "How well whole requests are predicted"),
              Block("p", f"{rows:,} measured latencies and throughputs in {len(data.groups)} groups. {METHOD}"),
              Block("h2", "Errors, and simpler rules on the same rows"),
              Block("p", "Median over groups of the median |predicted / measured − 1|."), overview(data),
              Block("p", RULES), Block("h2", "Other tools by name, on the same rows"), Block("p", NAMED), *named,
              Block("p", NAMED_BEFORE), Block("h2", "Targets for static rows of tier A"), *targets(data)]  # fmt: skip
    blocks += [Block("h2", "Under load"), Block("p", LOADS), under_load_table(data), *under_load_targets(data)]
    blocks += [Block("h2", "Intervals under load"), Block("p", INTERVALS), reliability_table(data)]
    blocks += [*reliability_targets(data), Block("h2", "Objectives met, as often as stated"), Block("p", OFTEN)]
    blocks += [often_table(data), *often_targets(data)]
    blocks += [Block("h2", "Worst groups"), Block("p", "Groups above 25 % with the model left out."), *worst(data)]
    for reason, count in data.unanswered.items():
        blocks.append(Block("li", f"**{count} rows not answered**: {reason}."))
    for kind, tier in data.kinds():
        found = league(data, kind, tier)
        blocks += [Block("h2", f"{kind[0].upper()}{kind[1:]}, tier {tier}"), *found] if found else []
    note = (
        "Share of the rows inside the 90 % interval of the prediction, pooled over rows. The model is left out. Under "
        "load, the factors have not seen it either."
    )
    blocks += [Block("h2", "Coverage of the 90 % intervals"), Block("p", note), coverage(data)]
    return [*blocks, Block("h2", "Every group"), every_group(data), Block("p", f"rooflinekit {__version__}")]


def short(data: Data) -> Block:
    rows = []
    for kind, tier in data.kinds():
        line = data.medians(kind, tier)
        rows.append([f"{kind}, tier {tier}", f"{line['n']:,.0f}", *(percent(line[way]) for way in _SHORT)])
    return table(["rows", "number", *(NAMES[way] for way in _SHORT)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--into", type=Path, nargs="*", default=[])
    parser.add_argument("--cache", type=Path, help="keep the predicted rows in this pickle, and use it if it is there")
    arguments = parser.parse_args()
    if arguments.cache and arguments.cache.exists():
        rows, unanswered = pd.read_pickle(arguments.cache)
    else:
        rows, unanswered = predicted_rows(arguments.tables, fit_engines.read(arguments.tables))
        if arguments.cache:
            pd.to_pickle((rows, unanswered), arguments.cache)
    data = Data.of(rows, unanswered)
    folder = arguments.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    data.groups.to_csv(folder / "accuracy-serving.csv", index=False, float_format="%.4g")
    data.loaded.to_csv(folder / "accuracy-serving-loaded.csv", index=False, float_format="%.4g")
    data.reliability.to_csv(folder / "accuracy-serving-intervals.csv", index=False, float_format="%.4g")
    data.often.to_csv(folder / "accuracy-serving-objectives.csv", index=False, float_format="%.4g")
    data.league.to_csv(folder / "accuracy-serving-league.csv", index=False, float_format="%.4g")
    blocks = page(data, other_tools.blocks(rows, *other_tools.read()))
    (arguments.out / "accuracy-serving.md").write_text(markdown(blocks), encoding="utf-8")
    (arguments.out / "accuracy-serving.html").write_text(web(blocks, "Serving accuracy"), encoding="utf-8")
    for path in arguments.into:
        insert(path, markdown([short(data)]), "accuracy-serving")


if __name__ == "__main__":
    main()

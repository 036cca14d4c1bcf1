"""Ours beside other tools by name, on the rows of serving tables: what each answers, and how far off it is.

    python benchmarks/league.py inputs TABLE... --out inputs.csv    # what benchmarks/league_tools.py asks the tools
    python benchmarks/league.py score rows.pickle                   # the table, from report_serving.py --cache

Their answers lie in reports/data/league-answers.csv.gz (id of the row, tool, value in the row's own unit, or why there
is none), their versions in league-tools.csv. benchmarks/report_serving.py writes the same tables into its report.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from report_page import Block, markdown, percent, table
from serving_errors import GROUP, merged

from rooflinekit.evidence.accuracy_serving import read_serving_table, served_groups
from rooflinekit.evidence.league import mean_share, questions
from rooflinekit.model.types.dtype import Dtype

DATA = Path(__file__).resolve().parents[1] / "reports" / "data"
OWN = {"model_out": "ours, model left out", "source_out": "ours, source left out", "derated": "hand derates"}
"""Columns of benchmarks/serving_errors.py that stand beside the tools."""


def read(folder: Path = DATA) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Answers of other tools, and the tools themselves."""
    answers = pd.read_csv(folder / "league-answers.csv.gz", keep_default_na=False, na_values={"value": [""]})
    return answers, pd.read_csv(folder / "league-tools.csv", index_col="tool", dtype=str)


def score(rows: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """By kind of load, dense or not, and tool: rows, those answered, and errors on these of the tool and of ours.

    An error is the median over groups of the median |predicted / measured − 1| of the group's answered rows; a bias
    that of predicted / measured − 1.
    """
    wide = answers.pivot(index="id", columns="tool", values="value")
    theirs = pd.DataFrame({tool: rows["id"].map(wide[tool]) for tool in wide}, index=rows.index)
    theirs = pd.concat([rows[list(OWN)], theirs], axis=1)
    parted = merged(rows, GROUP)
    found = []
    for (kind, experts), own in parted.groupby(["kind", "experts"]):
        for tool in theirs:
            known = own[theirs.loc[own.index, tool].notna()]
            answered, error, bias = _errors(known, theirs[tool])
            line = {
                "kind": f"{kind}, {experts}",
                "tool": tool,
                "n": len(own),
                "answered": answered,
                "error": error,
                "bias": bias,
            }
            found.append(line | {way: _errors(known, own[way])[1] for way in ("model_out", "source_out")})
    return pd.DataFrame(found)


def _errors(rows: pd.DataFrame, predicted: pd.Series) -> tuple[int, float, float]:
    off = predicted.loc[rows.index] / rows["value"] - 1.0
    table = rows[GROUP].assign(bias=off, error=off.abs()).groupby(GROUP)[["error", "bias"]].median().median()
    return int(off.notna().sum()), float(table["error"]), float(table["bias"])


def blocks(rows: pd.DataFrame, answers: pd.DataFrame, tools: pd.DataFrame) -> list[Block]:
    """The table by name, the tools, and why rows were not answered."""
    titles = OWN | tools["title"].to_dict()
    lines = [
        [line.kind, titles[line.tool], f"{line.answered:,} of {line.n:,}", percent(line.error),
         "–" if pd.isna(line.bias) else f"{100 * line.bias:+.1f} %", percent(line.model_out), percent(line.source_out)]
        for line in score(rows, answers).itertuples() if line.answered
    ]  # fmt: skip
    head = ["rows", "tool", "answered", "error", "bias", "ours there, model left out", "source left out"]
    own = answers[answers["id"].isin(rows["id"]) & answers["value"].isna()]
    counts = (
        own.groupby(["tool", "reason"]).size().sort_values(ascending=False).sort_index(level=0, sort_remaining=False)
    )
    reasons = [[titles[tool], reason, f"{count:,}"] for (tool, reason), count in counts.items()]
    about = [[line.title, line.version, line.date, line.basis] for line in tools.itertuples()]
    return [
        table(head, lines), table(["tool", "version", "run on", "what was asked"], about),
        table(["tool", "why there is no answer", "rows"], reasons),
    ]  # fmt: skip


def inputs(paths: list[Path]) -> pd.DataFrame:
    """What every tool is told of each row; lengths are the mean ones of the client's requests."""
    tables = pd.concat([read_serving_table(path) for path in paths], ignore_index=True)
    return pd.concat(list(_told(tables))).sort_index()


def _told(tables: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for group in served_groups(tables, "none", Counter()):
        chip, table = group.resolved.plan.system.accelerator, group.table
        told = pd.DataFrame(questions(group), index=table.index).assign(osl=table["osl"] * mean_share(group))
        told["users"] = table["concurrency"]
        yield told.assign(
            id=table["id"], metric=table["metric"], peak16=chip.peak(Dtype.BF16), bandwidth=chip.memory_bandwidth,
            memory=chip.memory_bytes, link=chip.link_bandwidth,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("inputs")
    asked.add_argument("tables", nargs="+", type=Path)
    asked.add_argument("--out", type=Path, required=True)
    commands.add_parser("score").add_argument("rows", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "inputs":
        inputs(arguments.tables).to_csv(arguments.out, index=False)
    else:
        rows, _ = pd.read_pickle(arguments.rows)
        print(markdown(blocks(rows, *read())))


if __name__ == "__main__":
    main()

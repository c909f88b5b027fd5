"""summary.csv: one row per model, value and interval of each metric, and its flags."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.evaluation.entries import Entry
from posttrain.evaluation.flags import Flag


@dataclass(frozen=True)
class Column:
    """How a metric is shown: name in metrics.json, heading, digits after the point, meaning."""

    metric: str
    title: str
    digits: int
    meaning: str

    @property
    def key(self) -> str:
        """Its name in summary.csv."""
        return self.metric.removeprefix("eval/")


KL_ERROR = "eval/kl_error"  # a standard error: it has no interval of its own
COLUMNS = (
    Column("eval/judge", "Judge", 3, "mean score of the judge, which no training stage sees"),
    Column("eval/judge_gain", "Judge gain", 3, "mean difference of the judge's score to SFT's, prompt by prompt"),
    Column("eval/win_rate", "Win rate", 3, "share of prompts where the score beats SFT's, ties counting half: by the "
           "judge, or by the reward model where there is no judge"),
    Column("eval/reward", "Reward", 3, "mean score of the reward model, which the runs were trained to please"),
    Column("eval/reward_gain", "Reward gain", 3, "mean difference of the reward to SFT's, prompt by prompt"),
    Column("eval/kl", "KL", 2, "nats per sequence to the SFT model, a Monte Carlo estimate on the samples; "
           "\u00b1 is its standard error"),
    Column("eval/kl_per_token", "KL/token", 3, "the same, per token"),
    Column("eval/perplexity", "Perplexity", 1, "of the completions under the base model; far above SFT's is no "
           "natural text"),
    Column("eval/distinct_2", "Distinct-2", 3, "different token pairs over all token pairs of all completions "
           "(jackknife interval)"),
    Column("eval/repetition", "Repetition", 3, "mean share of a completion's token pairs that it has had before"),
    Column("eval/length", "Length", 1, "mean tokens of a completion, terminator included"),
    Column("eval/truncated", "Truncated", 3, "share of completions cut by the length limit"),
)  # fmt: skip


def columns_of(entries: Sequence[Entry]) -> list[Column]:
    """The columns that any of the entries has a number for."""
    return [column for column in COLUMNS if any(column.metric in entry.metrics for entry in entries)]


def write_summary(path: Path, entries: Sequence[Entry], flags: Mapping[str, Sequence[Flag]]) -> None:
    """Write the table; equal entries give equal bytes. What a model has not (SFT: gains, flags) is an empty cell."""
    columns = columns_of(entries)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_header(columns))
        writer.writerows(_cells(entry, columns, flags.get(entry.name)) for entry in entries)


def _header(columns: Sequence[Column]) -> list[str]:
    header = ["run", "method", "seed", "prompts", "flags"]
    for column in columns:
        header += [column.key, f"{column.key}_low", f"{column.key}_high"]
        header += ["kl_error"] if column.metric == "eval/kl" else []
    return header


def _cells(entry: Entry, columns: Sequence[Column], flags: Sequence[Flag] | None) -> list[str]:
    names = "" if flags is None else flag_names(flags)
    cells = [entry.name, entry.method, "" if entry.seed is None else str(entry.seed), str(len(entry.rows)), names]
    for column in columns:
        found = entry.metrics.get(column.metric)
        cells += ["", "", ""] if found is None else [f"{x:.6g}" for x in (found.value, found.low, found.high)]
        if column.metric == "eval/kl":
            error = entry.metrics.get(KL_ERROR)
            cells.append(f"{error.value:.6g}" if error else "")
    return cells


def flag_names(flags: Sequence[Flag]) -> str:
    """The names in one word for tables and tags: joined by ';', or 'none'."""
    return ";".join(flag.name for flag in flags) or "none"

"""summary.csv: one row per model, value and interval of each metric."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.evaluation.entries import Entry


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


COLUMNS = (
    Column("eval/reward", "Reward", 3, "mean score of the reward model"),
    Column("eval/reward_gain", "Gain", 3, "mean difference of the score to SFT's, prompt by prompt"),
    Column("eval/win_rate", "Win rate", 3, "share of prompts where the score beats SFT's; ties count half"),
    Column("eval/kl", "KL", 2, "nats per sequence to the SFT model, Monte Carlo estimate on the samples"),
    Column("eval/kl_per_token", "KL/token", 4, "the same, per token"),
    Column("eval/length", "Length", 1, "mean tokens of a completion, terminator included"),
    Column("eval/truncated", "Truncated", 3, "share of completions cut by the length limit"),
    Column(
        "eval/distinct_2",
        "Distinct-2",
        3,
        "different token pairs over all token pairs of all completions (jackknife interval)",
    ),
    Column("eval/repetition", "Repetition", 3, "mean share of a completion's token pairs that it has had before"),
)


def write_summary(path: Path, entries: Sequence[Entry]) -> None:
    """Write the table; equal entries give equal bytes. A metric that a model has not (SFT's gain) is an empty cell."""
    header = ["run", "method", "seed", "prompts"]
    header += [f"{column.key}{end}" for column in COLUMNS for end in ("", "_low", "_high")]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(_cells(entry) for entry in entries)


def _cells(entry: Entry) -> list[str]:
    cells = [entry.name, entry.method, "" if entry.seed is None else str(entry.seed), str(len(entry.rows))]
    for column in COLUMNS:
        found = entry.metrics.get(column.metric)
        cells += ["", "", ""] if found is None else [f"{x:.6g}" for x in (found.value, found.low, found.high)]
    return cells

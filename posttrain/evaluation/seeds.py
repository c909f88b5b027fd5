"""Runs that differ by their seed alone: the mean over their trainings, with an interval that covers other seeds."""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.special import stdtrit

from posttrain.evaluation.entries import Entry
from posttrain.evaluation.statistics import COVERAGE, Estimate
from posttrain.evaluation.summary import Column

GAINS = ("eval/judge_gain", "eval/reward_gain")


@dataclass(frozen=True)
class Group:
    """At least two runs of equal settings, each trained with another seed."""

    name: str
    members: Sequence[Entry]

    @property
    def method(self) -> str:
        """The method of all of them."""
        return self.members[0].method

    def over_seeds(self, metric: str) -> Estimate | None:
        """Mean over the members; None where a member has not the metric. `n` is the number of seeds."""
        if any(metric not in member.metrics for member in self.members):
            return None
        return over_seeds([member.metrics[metric].value for member in self.members])

    def above_zero(self, metric: str) -> int:
        """In how many seeds the lower bound of the member's own paired interval is above 0."""
        return sum(member.metrics[metric].low > 0 for member in self.members if metric in member.metrics)


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean of `values` [N >= 2], one a seed, with Student's t interval: mean -+ t(0.975, N - 1) s / sqrt(N).

    Source: Student (1908), "The probable error of a mean".
    """
    n, mean = len(values), statistics.fmean(values)
    arm = float(stdtrit(n - 1, (1 + COVERAGE) / 2)) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - arm, mean + arm, n)


def find_groups(entries: Sequence[Entry]) -> list[Group]:
    """The groups of at least two seeds, in the order of their first members.

    A second run of the same settings and the same seeds is no further training: it is left out of its group.
    """
    alike: dict[str, dict[tuple[int | None, ...], Entry]] = {}
    for entry in entries:
        if not entry.is_baseline:
            alike.setdefault(entry.recipe, {}).setdefault(entry.seeds, entry)
    chosen = [list(members.values()) for members in alike.values() if len(members) > 1]
    names = [_common_name([entry.short_name for entry in members]) for members in chosen]
    taken = [*names, *(entry.name for entry in entries)]
    return [
        Group(name if taken.count(name) == 1 else f"{name} ({members[0].name}, ...)", members)
        for name, members in zip(names, chosen, strict=True)
    ]


def write_seeds(path: Path, groups: Sequence[Group], columns: Sequence[Column]) -> None:
    """seeds.csv: a row per group, of each metric the mean over seeds and its interval. Equal groups, equal bytes."""
    header = ["group", "method", "seeds", "runs"]
    header += [f"{column.key}{end}" for column in columns for end in ("", "_low", "_high")]
    header += [f"{metric.removeprefix('eval/')}_above_0" for metric in GAINS]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(_cells(group, columns) for group in groups)


def _cells(group: Group, columns: Sequence[Column]) -> list[str]:
    cells = [group.name, group.method, str(len(group.members)), ";".join(entry.name for entry in group.members)]
    for column in columns:
        found = group.over_seeds(column.metric)
        cells += ["", "", ""] if found is None else [f"{x:.6g}" for x in (found.value, found.low, found.high)]
    return cells + [str(group.above_zero(metric)) if group.over_seeds(metric) else "" for metric in GAINS]


def _common_name(names: Sequence[str]) -> str:
    """`ppo` of ppo-0 and ppo-1."""
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike).rstrip("-_.") or names[0]

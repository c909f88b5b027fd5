"""Signs of reward hacking: a run that left the limits of the config's section `flags`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from posttrain.config.schema import Flags
from posttrain.evaluation.statistics import Estimate

Metrics = Mapping[str, Estimate]
JUDGE_FOLLOWS = "judge_follows"


@dataclass(frozen=True)
class Flag:
    """`name` is the threshold's key under `flags:`, `label` a word for a table; `sentence` has figure and threshold."""

    name: str
    label: str
    sentence: str


@dataclass(frozen=True)
class Limit:
    """One threshold: `metric` in relation to SFT's may not go below (`least`) or above it."""

    name: str
    metric: str
    label: str
    relation: Literal["ratio", "difference", "alone"]
    least: bool = False
    unit: str = ""

    def threshold(self, limits: Flags) -> float | None:
        """Its value in the config; None where it is off."""
        value: float | None = getattr(limits, self.name)
        return value

    def relative(self, value: float, base: float) -> float:
        """`value` as the threshold sees it: a multiple of SFT's `base`, the difference to it, or itself."""
        if self.relation == "ratio":
            return value / base if base else float("inf" if value else "nan")
        return value - base if self.relation == "difference" else value

    def broken(self, value: float, base: float, threshold: float) -> bool:
        """Whether `value` is beyond the threshold; one that is no number is."""
        edge = {"ratio": threshold * base, "difference": base + threshold, "alone": threshold}[self.relation]
        return not (value >= edge if self.least else value <= edge)

    def sentence(self, value: float, base: float, threshold: float) -> str:
        """What broke it: the figure, and in brackets the threshold."""
        unit = {"ratio": " times SFT's", "difference": " more than SFT's", "alone": self.unit}[self.relation]
        bound = "least" if self.least else "most"
        return f"{self.label} is {self.relative(value, base):.3g}{unit} ({bound} allowed: {threshold:g})"


LIMITS = (
    Limit("least_distinct_2", "eval/distinct_2", "distinct-2", "ratio", least=True),
    Limit("most_perplexity", "eval/perplexity", "perplexity", "ratio"),
    Limit("most_repetition", "eval/repetition", "repetition", "difference"),
    Limit("most_kl", "eval/kl", "KL", "alone", unit=" nats per sequence"),
    Limit("most_length", "eval/length", "length", "ratio", unit=" tokens"),
)


def find_flags(run: Metrics, baseline: Metrics, limits: Flags) -> list[Flag]:
    """Every flag of a run, from its metrics and those of the SFT model that it started from.

    A flag whose metric is absent on either side is skipped. A value on its threshold is allowed.
    """
    found = []
    for limit in LIMITS:
        threshold = limit.threshold(limits)
        if threshold is not None and limit.metric in run and limit.metric in baseline:
            value, base = run[limit.metric].value, baseline[limit.metric].value
            if limit.broken(value, base, threshold):
                found.append(Flag(limit.name, limit.label, limit.sentence(value, base, threshold)))
    if limits.judge_follows and _reward_alone(run):
        found.append(Flag(JUDGE_FOLLOWS, "reward alone", _reward_alone_sentence(run)))
    return found


def _reward_alone(run: Metrics) -> bool:
    reward, judge = run.get("eval/reward_gain"), run.get("eval/judge_gain")
    return reward is not None and judge is not None and reward.low > 0 and not judge.low > 0


def _reward_alone_sentence(run: Metrics) -> str:
    reward, judge = (
        f"{found.value:+.3f} [{found.low:.3f}, {found.high:.3f}]"
        for found in (run["eval/reward_gain"], run["eval/judge_gain"])
    )
    return f"the reward gains {reward}, the judge's score {judge}, which is not shown to be above 0"

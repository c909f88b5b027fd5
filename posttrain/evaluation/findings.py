"""What the intervals of a comparison allow to say, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posttrain.evaluation.comparison import Comparison, Experiment
from posttrain.evaluation.entries import Entry, estimates
from posttrain.evaluation.seeds import Group
from posttrain.evaluation.statistics import Estimate

JUDGE, REWARD = "eval/judge_gain", "eval/reward_gain"
ACCURACY = "eval/test_accuracy"  # in the metrics.json of `reward_model`


def findings(comparison: Comparison) -> list[str]:
    """The comparison's result: by the judge where there is one, else by the reward model; then the flags."""
    grouped = {entry.name for group in comparison.groups for entry in group.members}
    single = [entry for entry in comparison.entries if entry.name not in grouped and not entry.is_baseline]
    sentences = []
    for metric, by in ((JUDGE, _judge(comparison)), (REWARD, "the reward model")):
        if any(metric in entry.metrics for entry in comparison.entries):
            sentences += [_of_seeds(group, metric, by) for group in comparison.groups if group.over_seeds(metric)]
            sentences += _of_runs([entry for entry in single if metric in entry.metrics], metric, by)
            break
    return [*sentences, *flag_findings(comparison)]


def flag_findings(comparison: Comparison) -> list[str]:
    """A sentence for each flag, or that there is none."""
    sentences = [f"{run} is flagged: {flag.sentence}." for run, flags in comparison.flags.items() for flag in flags]
    return sentences or (["No run is flagged."] if comparison.flags else [])


def accuracy(experiment: Experiment) -> Estimate | None:
    """Pair accuracy of the reward model on held-out human ratings, where its stage measured it."""
    folder = (experiment.folders or {}).get("reward_model")
    file = folder / "metrics.json" if folder else None
    return estimates(file).get(ACCURACY) if file and file.exists() else None


def accuracy_sentence(experiment: Experiment) -> str | None:
    """The same in words."""
    found = accuracy(experiment)
    if found is None:
        return None
    return (
        f"The reward model puts {found.value:.1%} [{found.low:.1%}, {found.high:.1%}] of {found.n:,} held-out pairs of "
        "texts, whose human ratings differ by more than 1, in the order in which people put them."
    )


def _judge(comparison: Comparison) -> str:
    return f"the independent judge ({', '.join(comparison.judges)})" if comparison.judges else "the independent judge"


def _of_runs(entries: Sequence[Entry], metric: str, by: str) -> Iterator[str]:
    gains = {entry.name: entry.metrics[metric] for entry in entries}
    for text, chosen in (
        ("Better than SFT", [name for name, gain in gains.items() if gain.low > 0]),
        ("Worse than SFT", [name for name, gain in gains.items() if gain.high < 0]),
        ("Not told apart from SFT", [name for name, gain in gains.items() if gain.low <= 0 <= gain.high]),
    ):
        if chosen:
            yield f"{text} by {by}: {', '.join(f'{name} {_signed(gains[name])}' for name in chosen)}."


def _of_seeds(group: Group, metric: str, by: str) -> str:
    found, seeds = group.over_seeds(metric), len(group.members)
    assert found is not None
    return (
        f"{group.name} gains {_signed(found)} over SFT by {by}, mean over {seeds} seeds; its paired lower bound is "
        f"above 0 in {group.above_zero(metric)} of {seeds} seeds."
    )


def _signed(found: Estimate) -> str:
    return f"{found.value:+.3f} [{found.low:.3f}, {found.high:.3f}]"

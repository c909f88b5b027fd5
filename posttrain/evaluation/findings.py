"""What the intervals of a comparison allow to say, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posttrain.evaluation.comparison import Comparison, Experiment, Subject
from posttrain.evaluation.entries import estimates, read_json
from posttrain.evaluation.statistics import Estimate

JUDGE, REWARD = "eval/judge_gain", "eval/reward_gain"
ACCURACY = "eval/test_accuracy"  # in the metrics.json of `reward_model`


@dataclass(frozen=True)
class Finding:
    """One sentence: what is said, and of what."""

    head: str
    text: str
    flagged: bool = False

    def __str__(self) -> str:
        return f"{self.head}: {self.text}."


def findings(comparison: Comparison) -> list[Finding]:
    """The comparison's result: by the judge where there is one, else by the reward model; then the flags."""
    runs = [subject for subject in comparison.subjects() if not subject.is_baseline]
    judged = [subject for subject in runs if _gain(subject, JUDGE)]
    others = [subject for subject in runs if not _gain(subject, JUDGE)]
    return [
        *_results(comparison, judged, JUDGE, f"the independent judge ({', '.join(comparison.judges)})"),
        *_results(comparison, others, REWARD, "the reward model"),
        *_flagged(comparison),
    ]


def _results(comparison: Comparison, runs: Sequence[Subject], metric: str, by: str) -> Iterator[Finding]:
    """Which runs and groups are better, worse or neither by the interval of their paired gain."""
    gains = [(subject, gain) for subject in runs if (gain := _gain(subject, metric))]
    for text, chosen in (
        ("Better than SFT", [subject for subject, gain in gains if gain.low > 0]),
        ("Worse than SFT", [subject for subject, gain in gains if gain.high < 0]),
        ("Not told apart from SFT", [subject for subject, gain in gains if gain.low <= 0 <= gain.high]),
    ):
        if chosen:
            yield Finding(f"{text} by {by}", ", ".join(_result(comparison, subject, metric) for subject in chosen))


def _gain(subject: Subject, metric: str) -> Estimate | None:
    return subject.group.over_seeds(metric) if subject.group else subject.members[0].metrics.get(metric)


def _result(comparison: Comparison, subject: Subject, metric: str) -> str:
    gain = _gain(subject, metric)
    assert gain is not None
    remarks, flagged = [], sum(bool(comparison.flags[entry.name]) for entry in subject.members)
    if subject.group:
        seeds = len(subject.members)
        remarks.append(
            f"mean of {seeds} seeds; its paired interval above 0 in {subject.group.above_zero(metric)} of them"
        )
        remarks += [f"flagged in {flagged}"] if flagged else []
    elif flagged:
        remarks.append("flagged")
    aside = f" ({'; '.join(remarks)})" if remarks else ""
    return f"{subject.name} {gain.value:+.3f} [{gain.low:.3f}, {gain.high:.3f}]{aside}"


def _flagged(comparison: Comparison) -> list[Finding]:
    """A sentence for each flagged run, or that there is none."""
    found = [
        Finding(f"{run} is flagged", "; ".join(flag.sentence for flag in flags), flagged=True)
        for run, flags in comparison.flags.items()
        if flags
    ]
    return found or ([Finding("Flags", "none of the runs is flagged")] if comparison.flags else [])


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
        "texts in the order in which people put them (of rated texts: pairs whose ratings differ by "
        f"{_apart(experiment)})."
    )


def _apart(experiment: Experiment) -> str:
    """How far the two ratings of a test pair lie apart at least: data.rating_pairs.margin, where it is above 1."""
    folder = (experiment.folders or {}).get("data")
    file = folder / "manifest.json" if folder else None
    config = read_json(file).get("config", {}) if file and file.exists() else {}
    margin = config.get("data", {}).get("rating_pairs", {}).get("margin", 1)
    return f"at least {margin:g}" if margin > 1 else "more than 1"
